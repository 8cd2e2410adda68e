"""Files whose content does not fit the rest of their directory, and special files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.formats import FORMATS

from bertkit.errors import BertkitError


def set_value(index: int | slice, value: int, dtype: str) -> Callable[[Path], None]:
    """Return a function that changes one number of an array file."""

    def change(path: Path) -> None:
        array = np.fromfile(path, dtype)
        array[index] = value
        array.tofile(path)

    return change


def keys(**values: Any) -> Callable[[Path], None]:
    """Return a function that changes keys of a JSON file."""

    def change(path: Path) -> None:
        data = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**data, **values}), encoding="utf-8")

    return change


def content(data: bytes) -> Callable[[Path], None]:
    """Return a function that replaces the content of a file."""

    def change(path: Path) -> None:
        path.write_bytes(data)

    return change


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "file", "change", "message"),
    [
        ("corpus", "corpus/shard-00000.documents", set_value(0, 9999, "<u4"), "damaged"),
        ("corpus", "corpus/shard-00000.sentences", set_value(0, 255, "u1"), "damaged"),
        ("corpus", "corpus/shard-00000.tokens", set_value(slice(None), 60000, "<u2"), "60000"),
        ("corpus", "corpus/manifest.json", content(b"[" * 100_000), "manifest"),
        ("pairs", "pairs/manifest.json", content(b"[" * 100_000), "manifest"),
        ("pairs", "pairs/source.lengths", set_value(0, 9999, "<u4"), "damaged"),
        ("pairs", "pairs/target.tokens", set_value(slice(None), 60000, "<u2"), "60000"),
        ("pairs", "pairs/manifest.json", content(b'{"a": "\xff"}'), "manifest"),
        ("lstm", "generation_config.json", keys(decoder_start_token_id=99), "token id 99"),
        ("lstm", "generation_config.json", keys(suppress_tokens=[99]), "token id 99"),
        ("lstm", "generation_config.json", keys(forced_bos_token_id=99), "token id 99"),
        ("gpt2", "generation_config.json", keys(num_beams=10**9), "beams"),
        ("t5", "tokenizer_config.json", keys(model_input_names=0.5), "model_input_names"),
        ("rows-toml", "run.toml", content(b"a = " + b"[" * 5000), "TOML"),
        ("rows-toml", "run.toml", content(b"a = " + b"9" * 5000), "TOML"),
        ("rows-toml", "run.toml", pipe, "not a file"),
        ("rows-classify", "rows.parquet", pipe, "not a file"),
        ("vectors", "vectors.txt.gz", pipe, "not a file"),
        ("vectors", "glove.txt", pipe, "not a file"),
    ],
)
def test_loader_rejects_corrupted_content(
    name: str, file: str, change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / name
    FORMATS[name].make(folder)
    FORMATS[name].use(folder)
    change(folder / file)
    with pytest.raises(BertkitError, match=message):
        FORMATS[name].use(folder)
