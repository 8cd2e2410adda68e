"""Tests of the embed pipeline: dtype, order and long texts."""

from pathlib import Path

import numpy as np
import pytest

import bertkit
from bertkit.errors import DataError


def test_embed_returns_float32_rows(folders: Path) -> None:
    embed = bertkit.pipeline("embed", folders / "pretrained")
    vectors = embed(["a b", "c", "a b"])
    assert vectors.shape == (3, 16)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-6)
    np.testing.assert_allclose(embed("a b")[0], vectors[0], atol=1e-6)
    assert embed([]).shape == (0, 16)


def test_long_texts_are_rejected_truncated_or_windowed(folders: Path) -> None:
    embed = bertkit.pipeline("embed", folders / "pretrained")
    long = " ".join("abcdefghij" * 3)
    with pytest.raises(DataError, match=r"32 tokens.*16"):
        embed([long])
    cut = embed([long], long="truncate")
    np.testing.assert_allclose(cut, embed([" ".join("abcdefghijabcd")]), atol=1e-5)
    whole = embed([long], long="window")
    assert whole.shape == cut.shape
    assert abs(whole - cut).max() > 1e-4
    short = ["a b c", "d"]
    np.testing.assert_allclose(embed(short, long="window"), embed(short), atol=1e-6)


def test_window_embeddings_are_weighted_by_length(folders: Path) -> None:
    embed = bertkit.pipeline("embed", folders / "pretrained")
    text = " ".join("abcdefghijabcdefghij")
    windows = embed.tokenizer.windows(text, max_length=16, overlap=4)
    assert len(windows) > 1
    parts = [embed([embed.tokenizer.decode(w.ids)])[0] * len(w) for w in windows]
    expected = sum(parts) / sum(len(w) for w in windows)
    np.testing.assert_allclose(embed([text], long="window")[0], expected, atol=1e-5)
