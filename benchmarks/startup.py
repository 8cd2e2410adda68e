"""A fresh process to its first embedding: import, load all-MiniLM-L6-v2, embed one sentence."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from benchmarks.embed import minilm
from benchmarks.harness import Options, compare
from benchmarks.kept import How

OURS = """
import sys, bertkit
print(bertkit.pipeline("embed", sys.argv[1])(["A first sentence."]).shape)
"""
PEER = """
import sys
from sentence_transformers import SentenceTransformer
print(SentenceTransformer(sys.argv[1], device="cpu").encode(["A first sentence."]).shape)
"""


def main(options: Options) -> None:
    book = options.book("startup")
    what, peer = "fresh process to the first embedding", "sentence-transformers"
    if book.wanted(what, peer):
        book.add(
            compare(
                what,
                _process(OURS),
                _process(PEER),
                peer_name=peer,
                unit="s",
                work=None,
                target=2.0,
                repeats=1 if options.quick else 5,
                how=(How("fp32, a fresh process"), How("fp32, a fresh process")),
            )
        )
    book.close()


def _process(code: str) -> Callable[[], None]:
    command = [sys.executable, "-c", code, str(minilm())]

    def call() -> None:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert done.stdout.strip().endswith("(1, 384)"), done.stdout

    return call
