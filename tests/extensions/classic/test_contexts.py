"""Cosines and two-dimensional maps of a word's states in several texts."""

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


def test_contexts_separate_word_senses(minilm: Path) -> None:
    loaded = load(minilm)
    word = ContextsPipeline("minilm", FrozenEncoder(loaded, Engine(loaded.model)))
    (found,) = word.run(word.prepare([("bank", (*MONEY, *RIVER))], long="error"))
    assert [text[slice(*span)] for text, span in zip(found.texts, found.ranges, strict=True)] == [
        "bank"
    ] * 4
    first, last = np.array(found.cosines[0]), np.array(found.cosines[-1])
    assert first.min() > 0.9  # Embeddings of the word differ only by position.
    same_sense, other_sense = (last[0, 1] + last[2, 3]) / 2, last[:2, 2:].mean()
    assert same_sense > other_sense + 0.1
    first_axis = np.array(found.maps[-1])[:, 0]
    assert np.sign(first_axis[:2]).tolist() == (-np.sign(first_axis[2:])).tolist()


@given(st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_plane_matches_scikit_learn_pca(count: int, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((count, 12)).astype(np.float32)
    bertkit_plane = plane(rows)
    components = min(2, count)
    sklearn_plane = PCA(components, svd_solver="full").fit_transform(rows)
    np.testing.assert_allclose(abs(bertkit_plane[:, :components]), abs(sklearn_plane), atol=1e-3)


def test_plane_of_equal_rows_is_zero() -> None:
    assert not plane(np.ones((3, 4), np.float32)).any()


def test_contexts_reject_invalid_texts(minilm: Path) -> None:
    loaded = load(minilm)
    word = ContextsPipeline("minilm", FrozenEncoder(loaded, Engine(loaded.model)))
    with pytest.raises(DataError, match="'no such thing': does not contain 'bank'"):
        word.prepare([("bank", ("a bank", "no such thing"))], long="error")
    with pytest.raises(DataError, match="texts: enter 2 to 32 lines with the word, got 1"):
        word.prepare([("bank", ("a bank",))], long="error")
    with pytest.raises(DataError, match="tokens, but the limit is 256"):
        word.prepare([("bank", ("a bank", "so " * 400 + "bank"))], long="error")


def test_causal_model_encodes_text_after_eos(english: list[str], tmp_path: Path) -> None:
    """The text follows an EOS token, and later tokens do not change the word's state."""
    tokenizer = train_tokenizer(english[:5], kind="bpe", size=400, use="write")
    gpt = tiny_folder(
        tmp_path / "gpt", tokenizer, "lm", family=GPT2, layers=2, spread=0.2, length=48
    )
    loaded = load(gpt)
    word = ContextsPipeline("gpt", FrozenEncoder(loaded, Engine(loaded.model)))
    texts = ("The class has one name.", "The class is a statement.", "A loop in the class")
    prepared = word.prepare([("class", texts)], long="error")
    assert prepared[0].features[0].encoding.ids[0] == loaded.tokenizer.eos
    (found,) = word.run(prepared)
    assert found.sees == "the text before it"
    cosines = np.array(found.cosines)
    np.testing.assert_allclose(cosines[:, 0, 1], 1.0, atol=1e-5)
    assert cosines[-1, 0, 2] < 1 - 1e-3
    with pytest.raises(DataError, match="tokens, but the limit is 4"):
        word.prepare([("class", ("class", "so " * 50 + "class"))], long="error")


def test_word_vectors_are_independent_of_text() -> None:
    vectors = Vectors(["class", "loop"], np.float32([[1, 2], [3, 0]]))
    word = ContextsPipeline("vectors.txt", FrozenVectors(vectors))
    (found,) = word.run(word.prepare([("class", ("a Class", "class"))], long="truncate"))
    assert found.sees == "the word only"
    np.testing.assert_allclose(found.cosines, 1.0, atol=1e-6)
    assert word.policies == ("error",)
    with pytest.raises(DataError, match=r"vectors\.txt: no vector for 'classes'"):
        word.prepare([("class", ("a class", "classes"))], long="truncate")
