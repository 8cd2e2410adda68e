"""A word in several texts: its states compared, and laid on a plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from bertkit.checkpoint.folder import load
from bertkit.engine.engine import Engine
from bertkit.errors import DataError
from bertkit.view.contexts import ContextsPipeline, plane

MONEY = ["The bank lent us money.", "A bank charges interest on a loan."]
RIVER = ["We sat on the bank of the river.", "Reeds grow on the muddy bank of a stream."]


def test_meanings_part(minilm: Path) -> None:
    loaded = load(minilm)
    word = ContextsPipeline(loaded, Engine(loaded.model))
    (found,) = word.run(word.prepare([("bank", (*MONEY, *RIVER))], long="error"))
    assert [text[slice(*place)] for text, place in zip(found.texts, found.ranges, strict=True)] == [
        "bank"
    ] * 4
    first, last = np.array(found.cosines[0]), np.array(found.cosines[-1])
    assert first.min() > 0.9  # but for the position they are one
    same, other = (last[0, 1] + last[2, 3]) / 2, last[:2, 2:].mean()
    assert same > other + 0.1
    across = np.array(found.maps[-1])[:, 0]
    assert np.sign(across[:2]).tolist() == (-np.sign(across[2:])).tolist()


@given(st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_the_plane_is_that_of_scikit_learn(count: int, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((count, 12)).astype(np.float32)
    ours = plane(rows)
    components = min(2, count)
    theirs = PCA(components, svd_solver="full").fit_transform(rows)
    np.testing.assert_allclose(abs(ours[:, :components]), abs(theirs), atol=1e-3)


def test_equal_rows_stand_on_one_place() -> None:
    assert not plane(np.ones((3, 4), np.float32)).any()


def test_texts_without_the_word(minilm: Path) -> None:
    loaded = load(minilm)
    word = ContextsPipeline(loaded, Engine(loaded.model))
    with pytest.raises(DataError, match="'bank' is not in 'no such thing'"):
        word.prepare([("bank", ("a bank", "no such thing"))], long="error")
    with pytest.raises(DataError, match="texts: 1; a word is compared in 2 to 32"):
        word.prepare([("bank", ("a bank",))], long="error")
    with pytest.raises(DataError, match="tokens, and the model reads 256"):
        word.prepare([("bank", ("a bank", "so " * 400 + "bank"))], long="error")
