"""A fresh process to its first embedding: import, load all-MiniLM-L6-v2, embed one sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from benchmarks import harness
from benchmarks.embed import minilm

OURS = """
import sys, bertkit
print(bertkit.pipeline("embed", sys.argv[1])(["A first sentence."]).shape)
"""
PEER = """
import sys
from sentence_transformers import SentenceTransformer
print(SentenceTransformer(sys.argv[1], device="cpu").encode(["A first sentence."]).shape)
"""


def main(*, quick: bool = False) -> None:
    rows = [
        harness.compare(
            "fresh process to the first embedding",
            _process(OURS),
            _process(PEER),
            peer_name="sentence-transformers",
            unit="s",
            work=None,
            target=2.0,
            repeats=1 if quick else 5,
        )
    ]
    if quick:
        harness.show("startup, quick", rows)
    else:
        harness.write("startup", rows)


def _process(code: str) -> Callable[[], None]:
    command = [sys.executable, "-c", code, str(minilm())]

    def call() -> None:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert done.stdout.strip().endswith("(1, 384)"), done.stdout

    return call
