"""Tests of multiple choice: file formats, scores per choice, and the softmax per question."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import hf_folder, tiny_model, tiny_tokenizer

from bertkit.batch import Batch
from bertkit.checkpoint.directory import load
from bertkit.data.multiple_choice import ChoiceQuestion
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError, DataError
from bertkit.models.model import Model
from bertkit.objectives.loss import totals
from bertkit.tasks import find
from bertkit.tasks.choose import ChoiceAnswer, Choose
from bertkit.tasks.task import Feature, Outputs, Reading, by_example, group, make_batch, run_head
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer

TOKENS = "abcdefghijklmnop"
TASK = Choose()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer(TOKENS)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Model:
    return tiny_model(tokenizer, "choose", dropout=0.0, spread=0.3).eval()


def read(
    tokenizer: Tokenizer,
    examples: Sequence[ChoiceQuestion],
    *,
    long: Long = "error",
    labeled: bool = False,
) -> list[Feature]:
    return TASK.features(examples, tokenizer, 32, long=long, labeled=labeled)


def packed(features: Sequence[Feature]) -> Batch:
    return make_batch(TASK, sorted(features, key=lambda f: len(f.encoding)))


def scores_of(model: Model, features: Sequence[Feature]) -> list[Outputs]:
    return run_head(TASK, Engine(model, precision=None, max_batch_tokens=10**6), features)


def answered(
    model: Model, tokenizer: Tokenizer, examples: Sequence[ChoiceQuestion]
) -> list[ChoiceAnswer]:
    features = read(tokenizer, examples)
    outputs = scores_of(model, features)
    return TASK.answers(by_example(examples, group(features), outputs), model.heads["choose"])


QUESTIONS = [
    ChoiceQuestion("a b c", ("d e", "f", "g h i j"), 2, "k"),
    ChoiceQuestion("e f", ("a", "b c d e f g"), 0),
    ChoiceQuestion("p", ("o n m l", "k", "j i", "h", "g f e d c b a"), 1, "a b"),
]


# ---- Model inputs and targets


def test_stem_precedes_choice_in_second_segment(tokenizer: Tokenizer) -> None:
    features = read(tokenizer, QUESTIONS, labeled=True)
    assert [f.example for f in features] == [0] * 3 + [1] * 2 + [2] * 5
    assert [f.target for f in features[:3]] == [False, False, True]
    tokens = tokenizer.pieces(features[0].encoding.ids)
    assert tokens == ["[CLS]", "a", "b", "c", "[SEP]", "k", "d", "e", "[SEP]"]
    assert features[0].encoding.types.tolist() == [0] * 5 + [1] * 4
    assert tokenizer.pieces(features[3].encoding.ids) == ["[CLS]", "e", "f", "[SEP]", "a", "[SEP]"]


def test_batch_maps_sequences_to_questions(tokenizer: Tokenizer) -> None:
    features = sorted(read(tokenizer, QUESTIONS, labeled=True), key=lambda f: len(f.encoding))
    batch = make_batch(TASK, features)
    assert batch.example is not None
    assert batch.example.tolist() == [f.example for f in features]
    assert batch.example.tolist() != sorted(batch.example.tolist())  # the choices are scattered
    targets = batch.targets["choose"].tolist()
    assert [features[index].example for index in targets] == [0, 1, 2]
    assert all(features[index].target for index in targets)
    # Examples are numbered within the batch, also in the last batch of an epoch.
    later = make_batch(TASK, [f for f in features if f.example == 2])
    assert later.example is not None
    assert later.example.tolist() == [0] * 5


def test_loss_equals_cross_entropy_over_choices(model: Model, tokenizer: Tokenizer) -> None:
    features = read(tokenizer, QUESTIONS, labeled=True)
    batch = packed(features)
    loss = TASK.loss(model, batch, totals([batch]))
    rows = scores_of(model, features)
    expected, right = 0.0, 0
    for number, question in enumerate(QUESTIONS):
        scores = [
            float(row[0, 0]) for row, f in zip(rows, features, strict=True) if f.example == number
        ]
        assert question.answer is not None
        expected += np.log(np.exp(scores).sum()) - scores[question.answer]
        right += int(np.argmax(scores)) == question.answer
    assert loss.total.item() == pytest.approx(expected / 3, abs=1e-5)
    assert int(loss.correct["choose"]) == right


# ---- Predictions

LETTERS = st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=6).map(" ".join)
CHOICES = st.lists(LETTERS, min_size=2, max_size=6)


@settings(max_examples=12, deadline=None)
@given(questions=st.lists(st.tuples(LETTERS, CHOICES), min_size=1, max_size=4), data=st.data())
def test_scores_do_not_depend_on_choice_order(
    questions: list[tuple[str, list[str]]], data: st.DataObject, model: Model, tokenizer: Tokenizer
) -> None:
    examples = [Choose.reader.example(text, choices) for text, choices in questions]
    together = answered(model, tokenizer, examples)
    for example, answer in zip(examples, together, strict=True):
        assert sum(answer.scores) == pytest.approx(1.0)
        assert answer.score == max(answer.scores) == answer.scores[answer.index]
        assert answer.choice == example.choices[answer.index]
        order = data.draw(st.permutations(range(len(example.choices))))
        mixed = Choose.reader.example(example.text, [example.choices[i] for i in order])
        [moved] = answered(model, tokenizer, [mixed])
        assert moved.scores == pytest.approx([answer.scores[i] for i in order], abs=1e-5)


def test_error_record_contains_answers(model: Model, tokenizer: Tokenizer) -> None:
    answers = answered(model, tokenizer, QUESTIONS)
    right = [a.index == q.answer for a, q in zip(answers, QUESTIONS, strict=True)]
    assert TASK.score(answers, QUESTIONS) == {"accuracy": sum(right) / 3}
    wrong = ChoiceAnswer(0, "d e", 0.7, [0.7, 0.2, 0.1])
    record = TASK.error_record(wrong, QUESTIONS[0])
    assert record.shown == "a b c k"
    assert (record.expected, record.answered) == ("g h i j", "d e (0.70)")
    assert record.severity == pytest.approx(0.9)


def test_truncation_shortens_text_before_choice(tokenizer: Tokenizer) -> None:
    long = ChoiceQuestion(" ".join("abcdefghij" * 4), ("k l", "m"), 0, "n o", "quiz.jsonl:7")
    with pytest.raises(DataError, match=r"quiz\.jsonl:7: 47 tokens with choice 1, .* is 32"):
        read(tokenizer, [long])
    features = read(tokenizer, [long, QUESTIONS[1]], long="truncate")
    assert [len(f.encoding) for f in features[:2]] == [32, 32]
    assert [f.encoding.truncated for f in features] == [True, True, False, False]
    tokens = tokenizer.pieces(features[0].encoding.ids)
    assert tokens == ["[CLS]", *("abcdefghij" * 4)[:25], "[SEP]", *"nokl", "[SEP]"]
    assert features[0].encoding.types.tolist() == [0] * 27 + [1] * 5
    outputs = [np.zeros((1, 1), np.float32)] * 4
    answers = TASK.answers(
        by_example([long, QUESTIONS[1]], group(features), outputs), torch.nn.Identity()
    )
    assert [a.truncated for a in answers] == [True, False]


def test_truncation_shortens_choice_longer_than_model(tokenizer: Tokenizer) -> None:
    huge = ChoiceQuestion("a b", (" ".join("cdef" * 10), "g"))
    features = read(tokenizer, [huge], long="truncate")
    assert tokenizer.pieces(features[0].encoding.ids) == [
        *("[CLS]", "[SEP]"),
        *("cdef" * 10)[:29],
        "[SEP]",
    ]
    assert not features[1].encoding.truncated
    with pytest.raises(DataError, match="3 tokens are too few"):
        TASK.features([huge], tokenizer, 3, long="truncate", labeled=False)


def test_example_rejects_fewer_than_two_choices() -> None:
    assert find("choose") is Choose
    assert Choose.reader.example("a", ["b", "c"]) == ChoiceQuestion("a", ("b", "c"))
    for text, choices, message in [
        ("a", [], "expected at least two choices"),
        ("a", ["b"], "expected at least two choices"),
        ("", ["b", "c"], "the text is empty"),
        ("a", ["b", " "], "choice 2 of 2 is empty"),
    ]:
        with pytest.raises(DataError, match=message):
            Choose.reader.example(text, choices)


# ---- Parity with transformers


def padded(features: Sequence[Feature], count: int) -> dict[str, torch.Tensor]:
    """Pad the features to tensors of shape (questions, choices, T) for transformers."""
    longest = max(len(f.encoding) for f in features)
    shape = (len(features), longest)
    out = {
        name: torch.zeros(shape, dtype=torch.long)
        for name in ("input_ids", "token_type_ids", "attention_mask")
    }
    for row, feature in enumerate(features):
        size = len(feature.encoding)
        out["input_ids"][row, :size] = torch.from_numpy(feature.encoding.ids)
        out["token_type_ids"][row, :size] = torch.from_numpy(feature.encoding.types)
        out["attention_mask"][row, :size] = 1
    return {name: rows.view(-1, count, longest) for name, rows in out.items()}


def test_logits_loss_and_gradients_equal_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    hf_model = hf_folder(tmp_path / "theirs", "BertForMultipleChoice", tokenizer)
    loaded = load(tmp_path / "theirs", heads=("choose",))
    assert not loaded.report.fresh
    examples = [
        ChoiceQuestion("a b c", ("d e", "f", "g h i j"), 2, "k"),
        ChoiceQuestion("e f", ("a", "b c d e f g", "h"), 0),
        ChoiceQuestion("p a a b b", ("o n m l", "k", "j i"), 1),
    ]
    features = read(tokenizer, examples, labeled=True)
    labels = torch.tensor([e.answer for e in examples])
    hf_output = hf_model(**padded(features, 3), labels=labels)
    logits = np.concatenate(scores_of(loaded.model, features)).reshape(3, 3)
    np.testing.assert_allclose(logits, hf_output.logits.detach().numpy(), atol=1e-5)
    batch = packed(features)
    loss = TASK.loss(loaded.model, batch, totals([batch])).total
    assert loss.item() == pytest.approx(hf_output.loss.item(), abs=1e-5)
    loss.backward()
    hf_output.loss.backward()
    torch.testing.assert_close(
        loaded.model.encoder.embedding.tokens.weight.grad,
        hf_model.bert.embeddings.word_embeddings.weight.grad,
        atol=1e-5,
        rtol=1e-3,
    )
    # Controls: the loss differs with a wrong label or a choice in the wrong question.
    wrong_loss = hf_model(**padded(features, 3), labels=labels.roll(1)).loss
    assert abs(loss.item() - wrong_loss.item()) > 1e-3
    assert batch.example is not None
    wrong = next(i for i in range(9) if i not in batch.targets["choose"])
    mixed = batch.example.clone()
    mixed[wrong] = (mixed[wrong] + 1) % 3
    wrong_loss = TASK.loss(loaded.model, replace(batch, example=mixed), {"choose": 3}).total
    assert abs(loss.item() - wrong_loss.item()) > 1e-3


# ---- Readers


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def examples_of(path: Path, *, labeled: bool = True) -> list[ChoiceQuestion]:
    return Choose.reader.read(path, Reading(), labeled=labeled)[0]


def test_reader_parses_json_rows(tmp_path: Path) -> None:
    rows = [
        {"question": "Is it?", "choices": ["yes", "no"], "label": "no"},
        {"context": "It is.", "question": "Is it?", "choices": ["yes", "no", "2"], "label": 0},
        {"context": "It is", "choices": ["so.", "2"], "label": "2"},
    ]
    path = written(tmp_path, "q.jsonl", "\n".join(map(json.dumps, rows)))
    found, message = Choose.reader.read(path, Reading(), labeled=True)
    assert [(e.text, e.stem, e.answer) for e in found] == [
        ("Is it?", "", 1),
        ("It is.", "Is it?", 0),
        ("It is", "", 1),
    ]
    assert message.endswith("3 questions of 2 to 3 choices")
    assert {e.answer for e in examples_of(path, labeled=False)} == {None}


GOOD = {"question": "Q", "choices": ["a", "b"], "label": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"label": None}, r":1: no label"),
     ({"question": None}, r":1: the question or context is empty"),
     ({"question": " "}, r"is empty or missing"), ({"label": 2}, r":1: label 2 is not the index"),
     ({"label": -1}, r":1: label -1 is not the index"),
     ({"choices": []}, r":1: label 0 is not the index"), ({"label": True}, r":1: Expected"),
     ({"label": "c"}, r":1: 'c' is not"), ({"choices": "a b"}, r":1: Expected `array`"),
     ({"choices": ["a"]}, r":1: only one choice"), ({"choices": ["a", " "]}, r"choice 2 of 2 is e"),
     ({"choices": ["a", "a"]}, r"the correct choice 'a' occurs twice")],
)  # fmt: skip
def test_reader_rejects_invalid_rows(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    row = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(DataError, match=message):
        examples_of(written(tmp_path, "q.jsonl", json.dumps(row)))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.jsonl", '\n{"question": "Q"', r"q\.jsonl:2: invalid JSON"),
        ("q.jsonl", "", r"q\.jsonl: the file is empty"),
        ("q.csv", "a,b", r"q\.csv: unknown file type; pass a \.jsonl"),
    ],
)
def test_reader_rejects_invalid_files(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        examples_of(written(tmp_path, name, text))


def test_reader_rejects_missing_file_and_unsupported_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no\.jsonl: no such file"):
        examples_of(tmp_path / "no.jsonl")
    with pytest.raises(ConfigError, match=r"^label_column: not supported by choose; remove it"):
        Choose.reader.read(tmp_path / "no.jsonl", Reading(label_column="x"), labeled=True)


def test_check_rejects_questions_without_right_choice() -> None:
    with pytest.raises(DataError, match="f:2: the right choice is missing"):
        Choose().check(
            [ChoiceQuestion("a", ("b", "c"), 0), ChoiceQuestion("a", ("b", "c"), where="f:2")]
        )
