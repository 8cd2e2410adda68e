"""Fixtures: a small set of English texts with a vocabulary, a corpus, and a run file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.factories import tiny_folder

from bertkit import cli
from bertkit.recipes.prepare import prepare
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.text.tokenizer import Tokenizer

RUN = """
[model]
layers = 1
hidden = 32
heads = 2
intermediate = 64
max_positions = 64

[sampling]
length = 32
held_out = 0.1

[train]
steps = 12
batch_size = 8
max_batch_tokens = 128
learning_rate = 1e-3
warmup_steps = 2
precision = "fp32"
log_every = 1
save_every = 2
evaluate_every = 6
evaluate_samples = 16
"""


@dataclass(frozen=True)
class World:
    texts: Path
    vocab: Path
    corpus: Path
    config: Path
    model: Path


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> World:
    root = tmp_path_factory.mktemp("world")
    (root / "texts").mkdir()
    for i, text in enumerate(english[:24]):
        (root / "texts" / f"{i:02}.txt").write_text(text, encoding="utf-8")
    train_vocabulary([root / "texts"], kind="wordpiece", size=300, out=root / "vocab")
    tokenizer = Tokenizer.load(root / "vocab")
    prepare([root / "texts"], tokenizer=tokenizer, out=root / "corpus", processes=1)
    (root / "tiny.toml").write_text(RUN, encoding="utf-8")
    tiny_folder(root / "model", tokenizer, "classify", labels=("no", "yes"))
    return World(
        root / "texts", root / "vocab", root / "corpus", root / "tiny.toml", root / "model"
    )


RunCommand = Callable[..., str]


@pytest.fixture
def run_rejected(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Return a function that runs a command, checks that it fails, and returns its message."""

    def check(*arguments: object) -> str:
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        messages = [line for line in err.splitlines() if line.startswith("bertkit: ")]
        assert code == 2, err
        assert len(messages) == 1, err
        assert err.splitlines()[-1] == messages[0], err
        assert "Traceback" not in err
        assert not out
        return messages[0]

    return check


class Forker:
    """Runner of commands in separate processes that tests can kill."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process, self.errors = process, errors

    def __call__(self, *argv: object, **job: Any) -> int:
        (code,) = self.together(1, *argv, **job)
        return code

    def together(self, world: int, *argv: object, **job: Any) -> list[int]:
        """Run a command in `world` processes and return their exit codes by rank."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        job = {"argv": [str(word) for word in argv], "world": world, **job}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the forking process ended"
        codes: list[int] = json.loads(answer)
        return codes

    @property
    def output(self) -> str:
        return self.errors.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    errors = tmp_path_factory.mktemp("forker") / "stderr"
    script = Path(__file__).with_name("forker.py")
    process = subprocess.Popen(
        [sys.executable, str(script), str(errors)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with process:
        yield Forker(process, errors)
        assert process.stdin is not None
        process.stdin.close()
