"""Fixture of a tiny model for command tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories import tiny_folder

from bertkit.text.vocabulary_training import train


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    tokenizer = train(english[:5], kind="wordpiece", size=200)
    return tiny_folder(tmp_path_factory.mktemp("cli") / "model", tokenizer, "mlm", "nsp", length=64)
