"""Time from the start of a process to the first embedding with all-MiniLM-L6-v2.

The time includes imports, loading the model, and embedding one sentence. The model directory is
compared with sentence-transformers. The directory of `bertkit export` is compared with ONNX Runtime
and tokenizers, and with fastembed if it is installed; all three load the same exported directory.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.embed import minilm
from benchmarks.harness import Options, compare
from benchmarks.kept import Setup
from bertkit.console import quietly
from bertkit.extensions.export.export import export

FIRST = "fresh process to the first embedding"
EXPORTED = "fresh process to the first embedding, exported"

BERTKIT = """
import sys, bertkit
print(bertkit.embed(sys.argv[1], ["A first sentence."]).shape)
"""
SENTENCE_TRANSFORMERS = """
import sys
from sentence_transformers import SentenceTransformer
print(SentenceTransformer(sys.argv[1], device="cpu").encode(["A first sentence."]).shape)
"""
BY_HAND = """
import sys
import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer
read = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json").encode("A first sentence.")
session = InferenceSession(sys.argv[1] + "/model.onnx", providers=["CPUExecutionProvider"])
names = ("input_ids", "attention_mask", "token_type_ids")
rows = (read.ids, read.attention_mask, read.type_ids)
given = {name: np.array([row], np.int64) for name, row in zip(names, rows)}
print(session.run(["sentence_embedding"], given)[0].shape)
"""
FASTEMBED = """
import sys
import numpy as np
from fastembed import TextEmbedding
name = "sentence-transformers/all-MiniLM-L6-v2"
model = TextEmbedding(name, specific_model_path=sys.argv[1])
print(np.stack(list(model.embed(["A first sentence."]))).shape)
"""


def main(options: Options) -> None:
    book = options.book("startup")
    repeats = 1 if options.quick else 11
    rows: list[tuple[str, str, str, float]] = [
        (FIRST, "sentence-transformers", SENTENCE_TRANSFORMERS, 2.0),
        (EXPORTED, "ONNX Runtime and tokenizers", BY_HAND, 1.0),
    ]
    if importlib.util.find_spec("fastembed") is not None:
        rows.append((EXPORTED, "fastembed", FASTEMBED, 1.0))
    else:
        book.leave_out("no fastembed row: it is not installed")
    with TemporaryDirectory() as directory:
        exported = Path(directory, "exported")
        if any(book.needs(title, peer) for title, peer, *_ in rows if title == EXPORTED):
            with quietly():
                export(minilm(), out=exported)
            for name in ("config.json", "special_tokens_map.json"):  # fastembed requires them.
                if (minilm() / name).exists():
                    shutil.copy(minilm() / name, exported)
        for title, peer, code, target in rows:
            if not book.needs(title, peer):
                continue
            folder = exported if title == EXPORTED else minilm()
            setup = Setup("fp32, a fresh process")
            book.add(
                compare(
                    title,
                    _process(BERTKIT, folder),
                    _process(code, folder),
                    peer_name=peer,
                    unit="s",
                    work=None,
                    target=target,
                    repeats=repeats,
                    setups=(setup, setup),
                )
            )
    book.close()


def _process(code: str, folder: Path) -> Callable[[], None]:
    command = [sys.executable, "-c", code, str(folder)]
    # pip stores the bytecode of packages. bertkit runs from its sources, so it must store it, too.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def call() -> None:
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        assert done.stdout.strip().endswith("(1, 384)"), done.stdout

    return call
