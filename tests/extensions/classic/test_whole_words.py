"""Sentences of whole words: inputs and targets of ELMo."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bertkit.extensions.classic.character_ids import sentence_ids
from bertkit.extensions.classic.whole_words import WholeWordSentences, sentence_batches
from bertkit.recipes.prepare import prepare
from bertkit.text.vocabulary_training import train
from bertkit.text.word_splitting import word_splitter


def test_sample_adds_bos_and_eos_around_sentence(tmp_path: Path) -> None:
    text = "The cat saw the dog. A dog's bone! the the"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    tokenizer = train([text], kind="words", size=50, min_frequency=1)
    names = tokenizer.pieces(range(tokenizer.vocab_size))
    assert names[:5] == ["<S>", "</S>", "<UNK>", "the", "dog"]  # Most frequent first.
    corpus = prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "corpus")
    marks = tokenizer.bos, tokenizer.eos, tokenizer.unk
    samples = WholeWordSentences(corpus, names, marks=marks, size=5, characters=12)
    sentence = samples.sample(0, 0)
    words = [word for word, _ in word_splitter().pre_tokenize_str("The cat saw the dog.")]
    np.testing.assert_array_equal(sentence.ids, sentence_ids(words, 12))
    assert sentence.words.tolist() == [0, 2, 2, 2, 3, 4, 2, 1]  # Other words are <UNK>.
    (batch,) = sentence_batches([sentence], 100)
    assert batch.targets["forward"].tolist() == sentence.words.tolist()[1:]
    assert batch.targets["backward"].tolist() == sentence.words.tolist()[:-1]


def test_word_splitter_separates_chinese_characters() -> None:
    spans = word_splitter().pre_tokenize_str("他 went")
    assert [word for word, _ in spans] == ["他", "went"]
