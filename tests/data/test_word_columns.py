"""Taggers read columns of words and raw text identically."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import tiny_config, tiny_tokenizer
from tests.tasks.test_tag import CRF, IOB2, answered, fit, tagged

from bertkit.data.tag_schemes import BIOES, SCHEMES, spans
from bertkit.data.tagged_text import TaggedText as Example
from bertkit.data.word_columns import split_words, words_of
from bertkit.models.model import build
from bertkit.tasks.tag import Tag, TagOptions
from bertkit.tasks.task import Feature, Reading, by_example, group
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

PUNCTUATION = ".-'&/"
WORDS = [
    "U.S.", "O'Neill", "AT&T", "Chester-le-Street", "1990/91", "4-38", "'s", "...", "st", "北京",
    "a北.b",
]  # fmt: skip
SENTENCES = [
    "U.S. and U.K. today. O'Neill left Chester-le-Street for AT&T in 1990/91 ... 北京 很 大"
] * 4


@lru_cache
def vocabulary(kind: Any) -> Tokenizer:
    if kind == "wordpiece":
        letters = "abcdefghijklmnopqrstuvwxyz0123456789北京很大"
        return tiny_tokenizer([*letters, *(f"##{a}" for a in letters), *PUNCTUATION])
    return train(SENTENCES, kind=kind, size=300)


def entities_of(example: Example) -> list[dict[str, Any]]:
    return [
        {"start": example.word_spans[a][0], "end": example.word_spans[b - 1][1], "label": kind}
        for a, b, kind in spans(example.tags or [])
    ]


def as_text(example: Example, folder: Path) -> Example:
    """Return the sentence as raw text with character spans."""
    path = folder / "text.jsonl"
    row = {"text": example.text, "entities": entities_of(example)}
    path.write_text(json.dumps(row), encoding="utf-8")
    [found], _ = Tag.reader.read(path, Reading(), labeled=True)
    return found


def features(task: Tag, example: Example, kind: str, length: int = 64) -> list[Feature]:
    return task.features([example], vocabulary(kind), length, long="window", labeled=True)


words = st.sampled_from(WORDS) | st.text("abc.-'&北", min_size=1, max_size=6)
sentences = st.lists(st.tuples(words, st.sampled_from(IOB2)), min_size=1, max_size=9)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
def test_columns_and_joined_text_have_equal_features(
    kind: str, scheme: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    labels = IOB2 if scheme == "iob2" else tuple(BIOES.labels(["LOC", "PER"]))
    task = Tag(labels, TagOptions(scheme=scheme))
    folder = tmp_path_factory.mktemp("text")

    @given(sentences, st.sampled_from([64, 12]))
    @settings(max_examples=60)
    def check(sentence: list[tuple[str, str]], length: int) -> None:
        text = " ".join(word for word, _ in sentence)
        gold = SCHEMES["iob2"].encode(spans([tag for _, tag in sentence]), len(sentence))
        columns = tagged(text, " ".join(gold))
        raw = as_text(columns, folder)
        pairs = [features(task, example, kind, length) for example in (columns, raw)]
        for expected, actual in zip(*pairs, strict=True):
            assert expected.encoding.ids.tolist() == actual.encoding.ids.tolist()
            assert expected.token_indices.tolist() == actual.token_indices.tolist()
            assert expected.target.tolist() == actual.target.tolist()
        predicted = []
        for example, windows in zip((columns, raw), pairs, strict=True):
            rows = [9 * np.eye(len(labels), dtype=np.float32)[window.target] for window in windows]
            outputs = by_example([example], group(windows), rows)
            [answer] = task.answers(outputs, torch.nn.Identity())
            assert task.score([answer], [example])["f1"] == (1.0 if spans(gold) else 0.0)
            predicted.append([(e.start, e.end, e.type) for e in answer.entities])
            assert np.allclose([e.score for e in answer.entities], 1.0, atol=0.01)
        assert predicted[0] == predicted[1]
        assert len(answer.words) == len(words_of(text))

    check()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_tokens_of_columns_match_tokens_of_text(kind: str) -> None:
    task = Tag(IOB2, TagOptions(scheme="iob2"))
    text = "O'Neill left AT&T ... for Chester-le-Street in 1990/91"
    [feature] = features(task, tagged(text, " ".join(["O"] * 8)), kind)
    assert feature.encoding.ids.tolist() == vocabulary(kind).encode(text).ids.tolist()
    # The control: the model is also trained on further parts of words.
    assert len(feature.target) > 8


def test_word_parts_continue_entity_or_repeat_tag() -> None:
    example = tagged("the U.S. won 4-38", "O B-LOC O O")
    [feature] = features(Tag(IOB2, TagOptions(scheme="iob2")), example, "wordpiece")
    assert [IOB2[tag] for tag in feature.target] == ["O", "B-LOC", *["I-LOC"] * 3, *["O"] * 4]
    speech = Tag(("NNP", "VBD", "DT", "CD"), TagOptions(scheme="none"))
    example = tagged("the U.S. won 4-38", "DT NNP VBD CD")
    [feature] = features(speech, example, "wordpiece")
    expected = ["DT", *["NNP"] * 4, "VBD", *["CD"] * 3]
    assert [speech.labels[tag] for tag in feature.target] == expected


def test_word_tag_comes_from_its_first_part() -> None:
    """Published taggers are trained on the first token of a word only."""
    task = Tag(IOB2, TagOptions(scheme="iob2"))
    example = tagged("U.S. won", "B-LOC O")
    [feature] = features(task, example, "wordpiece")
    rows = 9 * np.eye(5, dtype=np.float32)[[1, 3, 0, 3, 0]]
    [answer] = task.answers(by_example([example], [[feature]], [rows]), torch.nn.Identity())
    assert answer.tags == ["B-LOC", "O"]
    assert task.score([answer], [example]) == {
        "precision": 1.0, "recall": 1.0, "f1": 1.0, "accuracy": 1.0
    }  # fmt: skip


def test_parts_without_token_use_previous_token() -> None:
    """A token such as "U.S." of a Unigram vocabulary covers several parts."""
    tokenizer = tiny_tokenizer(["a"])
    parts = split_words("x U.S. a", [(0, 1), (2, 6), (7, 8)])
    assert parts.chunks == ["x", "U.S.", "a"]
    assert parts.spans == [(0, 1), (2, 3), (3, 4), (4, 5), (5, 6), (7, 8)]
    assert parts.words == [0, 1, 1, 1, 1, 2]
    encoding = parts.of_tokens(tokenizer.encode(parts.chunks))
    assert [word for word in encoding.words if word is not None] == [0, 1, 2, 3, 4, 5]
    assert parts.ends([0, 1, 5]) == [1, 5, 6]
    assert parts.ends([1, 3]) == [3, 5]


def learn(task: Tag, examples: Sequence[Example], length: int) -> Any:
    torch.manual_seed(0)
    tokenizer = vocabulary("wordpiece")
    config = tiny_config(tokenizer, hidden=32, intermediate=64, length=length, dropout=0.0)
    model = build(config, {task.head: task.build_head}, labels=task.labels)
    fit(task, model, task.features(examples, tokenizer, length, long="window", labeled=True), 60)
    return model


@pytest.mark.parametrize("length", [64, 16])
@pytest.mark.parametrize("crf", [False, True], ids=["softmax", "crf"])
def test_trained_tagger_predicts_equal_entities(crf: bool, length: int) -> None:
    examples = [
        tagged("O'Neill left the U.S. in 1990/91", "B-PER O O B-LOC O O"),
        tagged("AT&T is in Chester-le-Street", "B-LOC O O B-LOC"),
        tagged("b U.K. O'Neill", "O B-LOC B-PER"),
    ]
    task = Tag(IOB2, CRF if crf else TagOptions(scheme="iob2"))
    model = learn(task, examples, length)
    tokenizer = vocabulary("wordpiece")
    columns = answered(task, model, tokenizer, examples, length)
    assert task.score(columns, examples)["f1"] == 1.0
    raw = answered(
        task, model, tokenizer, [Tag.reader.example(e.text, ()) for e in examples], length
    )
    for expected, actual in zip(columns, raw, strict=True):
        for a, b in zip(expected.entities, actual.entities, strict=True):
            assert (a.text, a.type, a.start, a.end) == (b.text, b.type, b.start, b.end)
            assert a.score == pytest.approx(b.score, abs=1e-6)
