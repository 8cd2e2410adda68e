"""A folder says how it pools, and sentence-transformers reads the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertkit.checkpoint.folder import load, save
from bertkit.checkpoint.pooling import read_pooling, write_pooling
from bertkit.families import BERT
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.nn.pool import Pooling
from bertkit.pipelines import pipeline
from bertkit.text.train import train


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_both_make_the_same_vectors(
    mode: Any, normalize: bool, english: list[str], tmp_path: Path
) -> None:
    tokenizer = train(english[:3], kind="wordpiece", size=200)
    config = TransformerConfig(
        vocab=tokenizer.vocab_size, hidden=16, layers=2, heads=2, intermediate=24, length=48
    )
    save(tmp_path, build(config, ()), tokenizer, BERT)
    pooling = Pooling(mode, normalize)
    write_pooling(tmp_path, pooling, hidden=16, length=32)
    assert read_pooling(tmp_path) == (pooling, tmp_path, 32)
    assert load(tmp_path).length == 32
    texts = [text[:20] for text in english[:4]]
    ours = pipeline("embed", tmp_path)(texts)
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[parity]'")
    theirs = peer.SentenceTransformer(str(tmp_path), device="cpu").encode(texts)
    assert abs(ours - theirs).max() <= 1e-5
