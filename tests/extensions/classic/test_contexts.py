"""A word in several texts: its states compared, and laid on a plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from tests.factories import tiny_folder

from bertkit.checkpoint.directory import load
from bertkit.engine.engine import Engine
from bertkit.errors import DataError
from bertkit.extensions.classic.contexts import ContextsPipeline, plane
from bertkit.extensions.classic.word_models import FrozenVectors
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.pipelines.frozen_words import FrozenEncoder
from bertkit.text.vocabulary_training import train as train_tokenizer

MONEY = ["The bank lent us money.", "A bank charges interest on a loan."]
RIVER = ["We sat on the bank of the river.", "Reeds grow on the muddy bank of a stream."]


def test_meanings_part(minilm: Path) -> None:
    loaded = load(minilm)
    word = ContextsPipeline("minilm", FrozenEncoder(loaded, Engine(loaded.model)))
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
    word = ContextsPipeline("minilm", FrozenEncoder(loaded, Engine(loaded.model)))
    with pytest.raises(DataError, match="'bank' is not in 'no such thing'"):
        word.prepare([("bank", ("a bank", "no such thing"))], long="error")
    with pytest.raises(DataError, match="texts must be 2 to 32 lines with the word, got 1"):
        word.prepare([("bank", ("a bank",))], long="error")
    with pytest.raises(DataError, match="tokens, but the limit is 256"):
        word.prepare([("bank", ("a bank", "so " * 400 + "bank"))], long="error")


def test_a_causal_model_reads_as_bertkit_contexts_does(english: list[str], tmp_path: Path) -> None:
    """Behind the end of a text, so that what comes later changes nothing."""
    writes = train_tokenizer(english[:5], kind="bpe", size=400, use="write")
    gpt = tiny_folder(tmp_path / "gpt", writes, "lm", family=GPT2, layers=2, spread=0.2, length=48)
    loaded = load(gpt)
    word = ContextsPipeline("gpt", FrozenEncoder(loaded, Engine(loaded.model)))
    texts = ("The class has one name.", "The class is a statement.", "A loop in the class")
    works = word.prepare([("class", texts)], long="error")
    assert works[0].features[0].encoding.ids[0] == loaded.tokenizer.eos
    (found,) = word.run(works)
    assert found.sees == "what stands before it"
    cosines = np.array(found.cosines)
    np.testing.assert_allclose(cosines[:, 0, 1], 1.0, atol=1e-5)
    assert cosines[-1, 0, 2] < 1 - 1e-3
    with pytest.raises(DataError, match="tokens, but the limit is 4"):
        word.prepare([("class", ("class", "so " * 50 + "class"))], long="error")


def test_word_vectors_have_one_for_all_texts() -> None:
    vectors = Vectors(["class", "loop"], np.float32([[1, 2], [3, 0]]))
    word = ContextsPipeline("vectors.txt", FrozenVectors(vectors))
    (found,) = word.run(word.prepare([("class", ("a Class", "class"))], long="truncate"))
    assert found.sees == "nothing of its text"
    np.testing.assert_allclose(found.cosines, 1.0, atol=1e-6)
    assert word.policies == ("error",)
    with pytest.raises(DataError, match=r"vectors\.txt has no vector of 'classes'"):
        word.prepare([("class", ("a class", "classes"))], long="truncate")
