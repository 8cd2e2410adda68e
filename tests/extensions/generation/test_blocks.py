"""Blocks of documents: each token is predicted once, from its own document."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import tiny_corpus

from bertkit.data.corpus import Corpus
from bertkit.data.shuffling import EVALUATION_EPOCH
from bertkit.errors import TokenizerError
from bertkit.extensions.generation.blocks import Blocks
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Corpus:
    directory = tmp_path_factory.mktemp("blocks")
    texts = ["x", *english[:9]]
    return Corpus.open(tiny_corpus(directory, texts, kind="bpe", size=300, use="write"))


@pytest.fixture(scope="module")
def tokenizer(corpus: Corpus) -> Tokenizer:
    return corpus.tokenizer()


@given(length=st.integers(1, 4000), chosen=st.sets(st.integers(0, 9), min_size=1))
@settings(max_examples=30)
def test_blocks_cover_documents_without_overlap(
    corpus: Corpus, tokenizer: Tokenizer, length: int, chosen: set[int]
) -> None:
    documents = np.array(sorted(chosen))
    blocks = Blocks(corpus, tokenizer, length=length, documents=documents)
    samples = [blocks.sample(0, index) for index in range(len(blocks))]
    assert all(1 <= len(block) <= length for block in samples)
    assert all((block.ids[1:] == block.labels[:-1]).all() for block in samples)
    expected_ids, expected_labels = [], []
    for document in documents:
        text = corpus.slice(*map(int, corpus.document_starts[document : document + 2]))
        expected_ids += [tokenizer.eos, *text]
        expected_labels += [*text, tokenizer.eos]
    assert np.concatenate([block.ids for block in samples]).tolist() == expected_ids
    assert np.concatenate([block.labels for block in samples]).tolist() == expected_labels


def test_epochs_contain_every_block_once_in_new_order(corpus: Corpus, tokenizer: Tokenizer) -> None:
    blocks = Blocks(corpus, tokenizer, length=50, seed=3)
    first, second = (blocks.batch(n * len(blocks), len(blocks)) for n in (0, 1))
    everything = sorted(tuple(blocks.sample(0, i).ids) for i in range(len(blocks)))
    assert sorted(tuple(block.ids) for block in first) == everything
    assert sorted(tuple(block.ids) for block in second) == everything
    assert [tuple(b.ids) for b in first] != [tuple(b.ids) for b in second]
    part = blocks.batch(7, 5)
    assert [tuple(b.ids) for b in part] == [tuple(b.ids) for b in first[7:12]]
    assert tuple(blocks.sample(EVALUATION_EPOCH, 4).ids) == tuple(blocks.sample(0, 4).ids)


def test_blocks_reject_tokenizer_without_eos_token(corpus: Corpus, english: list[str]) -> None:
    tokenizer = train(english[:9], kind="wordpiece", size=300)
    with pytest.raises(TokenizerError, match="has no eos token"):
        Blocks(corpus, tokenizer, length=50)
