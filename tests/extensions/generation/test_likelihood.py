"""Choices and sentences are told apart by transformers' own log-probabilities; the threshold by
train alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import tiny_folder

import bertkit
from bertkit import metrics
from bertkit.data.multiple_choice import ChoiceQuestion
from bertkit.errors import BertkitError, CheckpointError, DataError
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.extensions.generation.likelihood import (
    AcceptabilityScore,
    ChoicesScore,
    best_threshold,
    evaluate_likelihood,
)
from bertkit.extensions.generation.prompts import evaluate_prompts
from bertkit.tasks.classify import LabelExample
from bertkit.text.vocabulary_training import END_OF_TEXT, train


@pytest.fixture(scope="module", params=["gpt2", "no end token"])
def folder(
    request: pytest.FixtureRequest, english: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    place = tmp_path_factory.mktemp("likelihood")
    spec = json.loads(train(english[:40], kind="bpe", size=500, use="write").core.to_str())
    if request.param != "gpt2":
        spec["added_tokens"] = []
        del spec["model"]["vocab"][END_OF_TEXT]
    (place / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    family = GPT2 if request.param == "gpt2" else OPENAI_GPT
    tokenizer = bertkit.Tokenizer.load(place)
    shape = {"length": 60, "intermediate": 64, "spread": 0.3}
    return tiny_folder(place / "model", tokenizer, "lm", family=family, **shape)


QUESTIONS = [
    ChoiceQuestion("The class statement", ("defines a class", "eats", "an object of it"), 0),
    ChoiceQuestion("Names refer to objects.", ("yes", "no they do not"), 1, "Do they?"),
    ChoiceQuestion("The loop ends as the _ is false.", ("condition", "name"), 0),
    ChoiceQuestion("A name is an _.", ("identifier", "object of a class"), 1),
    ChoiceQuestion("word " * 70, ("is long", "a value"), 1),
]


def theirs(folder: Path, before: str, text: str) -> np.ndarray[Any, Any]:
    """The log-probability of each token of a text, all read at once by transformers."""
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = bertkit.load(folder).tokenizer
    first, second = (ids.tolist() for ids in tokenizer.ids([before, text]))
    ids = [*tokenizer.ends, *first, *second][-60:]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    every = logits[torch.arange(len(ids) - 1), ids[1:]].numpy()
    return every[-len(second) :]


def test_choices_are_those_of_their_log_probabilities(folder: Path) -> None:
    mean, summed = [], []
    for question in QUESTIONS:
        texts = [(question.text, f" {choice}") for choice in question.choices]
        if question.stem:
            texts = [(f"{question.text}\n{question.stem}", text) for _, text in texts]
        if "_ is" in question.text:  # the choice is put there, and the rest is scored
            before, behind = question.text.split("_")
            texts = [(before + choice, behind) for choice in question.choices]
        scores = [theirs(folder, *text) for text in texts]
        mean.append(np.argmax([one.mean() for one in scores]) == question.answer)
        summed.append(np.argmax([one.sum() for one in scores]) == question.answer)
    found = evaluate_likelihood(folder, QUESTIONS)
    chance = np.mean([1 / 3, 1 / 2, 1 / 2, 1 / 2, 1 / 2])
    assert found == ChoicesScore(np.mean(mean), np.mean(summed), pytest.approx(chance), 1, 5)
    some = evaluate_likelihood(folder, QUESTIONS, rows=2)
    assert some.rows == 2


def test_the_files_of_choose_are_read(folder: Path, tmp_path: Path) -> None:
    rows = [{"context": q.text, "question": q.stem, "choices": q.choices, "label": q.answer}
            for q in QUESTIONS if q.stem]  # fmt: skip
    (tmp_path / "q.jsonl").write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    found = evaluate_likelihood(folder, tmp_path / "q.jsonl")
    assert isinstance(found, ChoicesScore)
    assert found.rows == 1


SENTENCES = [
    ("The class statement defines a class.", "1"), ("class The a.", "0"), ("Names are bound.", "1"),
    ("of the of", "0"), ("A name refers to an object.", "1"), ("to to refers", "0"),
]  # fmt: skip
LABELLED = [
    LabelExample(text, None, label, f"row {i}") for i, (text, label) in enumerate(SENTENCES)
]


def test_the_threshold_is_of_train_and_the_score_of_dev(folder: Path) -> None:
    means = [theirs(folder, "", text)[:].mean() for text, _ in SENTENCES]
    if not bertkit.load(folder).tokenizer.ends:  # the first token has no probability
        tokens = bertkit.load(folder).tokenizer.ids([text for text, _ in SENTENCES])
        every = [theirs(folder, "", text) for text, _ in SENTENCES]
        assert all(len(one) == len(ids) - 1 for one, ids in zip(every, tokens, strict=True))
    learned, scored = LABELLED[:4], LABELLED[2:]
    found = evaluate_likelihood(folder, scored, train=learned)
    assert isinstance(found, AcceptabilityScore)
    likely = np.array([one.label == "1" for one in learned])
    assert found.threshold == pytest.approx(best_threshold(np.array(means[:4]), likely), abs=1e-4)
    given = ["1" if mean >= found.threshold else "0" for mean in means[2:]]
    expected = metrics.classification(given, [str(e.label) for e in scored], ["0", "1"])
    assert found.matthews == pytest.approx(expected["matthews"])
    assert found.accuracy == pytest.approx(expected["accuracy"])
    other = evaluate_likelihood(folder, scored, train=[*learned, LABELLED[1], LABELLED[3]])
    turned = [LabelExample(e.text, None, "10"[int(str(e.label))]) for e in scored]
    control = evaluate_likelihood(folder, turned, train=learned)
    assert isinstance(other, AcceptabilityScore)
    assert isinstance(control, AcceptabilityScore)
    assert control.threshold == found.threshold  # what is scored chooses nothing
    assert control.matthews == pytest.approx(-found.matthews)


def test_a_label_is_the_word_that_is_likeliest_behind_the_text(folder: Path) -> None:
    words = {"0": "false", "1": "true"}
    right = 0
    for example in LABELLED:
        scores = {
            label: theirs(folder, f"{example.text} very", f" {word}").sum()
            for label, word in words.items()
        }
        right += max(scores, key=lambda one: scores[one]) == example.label
    template, format_message = (
        "{text} very {label}",
        [f"{label}={word}" for label, word in words.items()],
    )
    more: dict[str, Any] = {"template": template, "words": format_message, "shots": [0]}
    (found,) = evaluate_prompts(folder, train=LABELLED[:2], dev=LABELLED, **more)
    assert found.accuracy == pytest.approx(right / len(LABELLED))


SCORES = st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=1, max_size=20)


@given(rows=SCORES)
def test_no_threshold_has_a_higher_correlation(rows: list[tuple[int, bool]]) -> None:
    scores, likely = np.array([float(s) for s, _ in rows]), np.array([one for _, one in rows])

    def matthews(threshold: float) -> float:
        given, actual = (["01"[int(x)] for x in side] for side in (scores >= threshold, likely))
        return metrics.classification(given, actual, ["0", "1"])["matthews"]

    found = matthews(best_threshold(scores, likely))
    assert found == pytest.approx(
        max(matthews(t) for t in {*(np.unique(scores) + 0.5), -9.0}), abs=1e-9
    )


@pytest.mark.parametrize(
    ("examples", "more", "message"),
    [
        (
            [LabelExample("word " * 80, None, "1", "a:1")],
            {},
            "a:1: expected 1 to 59 tokens to score, got",
        ),
        (
            LABELLED[:2],
            {"train": [LabelExample("a", None, x) for x in "012"]},
            "expected two labels, got 3",
        ),
        ([LabelExample("a b", "c", "1", "f:1")], {}, "f:1: a second text is not supported"),
        ([LabelExample("a b", None, "7", "f:2")], {}, "f:2: label '7' is not in the training file"),
    ],
)
def test_what_cannot_be_scored(
    folder: Path, examples: list[LabelExample], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(BertkitError, match=message):
        evaluate_likelihood(folder, examples, **{"train": LABELLED, **more})


def test_only_models_that_write_are_asked(tiny: Path) -> None:
    with pytest.raises(CheckpointError, match="use a generative model"):
        evaluate_likelihood(tiny, QUESTIONS)


def test_a_choice_that_fills_the_model_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"a question: expected .* tokens to score"):
        evaluate_likelihood(folder, [ChoiceQuestion("a", ("word " * 80, "b"), 0)])
