"""Fixtures of tiny model directories with random weights and several heads."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories import tiny_folder, tiny_tokenizer

LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    tokenizer = tiny_tokenizer(LETTERS)
    for name, heads, labels in (
        ("pretrained", ("mlm", "nsp"), ()),
        ("classifier", ("classify",), ("no", "yes", "perhaps")),
        ("regressor", ("classify",), ("score",)),
    ):
        tiny_folder(root / name, tokenizer, *heads, labels=labels, length=16)
    return root
