"""A small model that commands are asked with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertkit.checkpoint.folder import save
from bertkit.families import BERT
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.text.train import train


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    torch.manual_seed(0)
    tokenizer = train(english[:5], kind="wordpiece", size=200)
    config = TransformerConfig(
        vocab=tokenizer.vocab_size, hidden=16, layers=1, heads=2, intermediate=32, length=64
    )
    folder = tmp_path_factory.mktemp("cli") / "model"
    save(folder, build(config, ("mlm", "nsp")), tokenizer, BERT)
    return folder
