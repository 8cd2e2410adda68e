"""The code of the pages on other tools runs against a server, with the packages of these tools.

The server is started with the command of the pages. The test replaces the address of the page by
the address of the server.
"""

from __future__ import annotations

import importlib.util
import os
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.outputs import missing
from tests.docs.test_tutorial import DOCS, blocks
from tests.extensions.serving.test_processes import process
from tests.factories import tiny_folder, tiny_tokenizer

PACKAGES = {
    "langchain": ("langchain_openai",),
    "llamaindex": ("llama_index",),
    "haystack": ("haystack", "haystack_integrations"),
}
"""Required packages by page."""

SERVE = "$ bertkit serve models/minilm models/ranker --truncate"
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def server(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("tools")
    (root / "models").mkdir()
    (root / "models" / "minilm").symlink_to(minilm.resolve())
    tokenizer = tiny_tokenizer([*string.ascii_lowercase, "."])
    more = {"task": "respond", "length": 16}  # questions fit, and texts are truncated
    tiny_folder(root / "models" / "ranker", tokenizer, "choose", **more)
    words = SERVE.split()[3:]
    arguments = [str(root / word) if word.startswith("models/") else word for word in words]
    with process(*arguments) as (_, address):
        yield address


@pytest.mark.parametrize("page", PACKAGES)
def test_page_code_runs_against_server(page: str, server: str, tmp_path: Path) -> None:
    for package in PACKAGES[page]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'bertkit[dev]'")
    text = (DOCS / "guide" / f"{page}.md").read_text(encoding="utf-8")
    assert SERVE in text.splitlines()
    programs = list(blocks(text))
    assert programs
    for block in programs:
        assert (block.language, ADDRESS in block.code) == ("python", True)
        done = subprocess.run(
            [sys.executable, "-c", block.code.replace(ADDRESS, server)],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout
        assert block.shown
        assert not missing(block.shown, done.stdout), done.stdout
