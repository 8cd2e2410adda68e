"""Scores of choices and sentences, compared with transformers."""

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
from bertkit.tasks.labeled_text import LabelExample
from bertkit.text.vocabulary_training import END_OF_TEXT, train


@pytest.fixture(scope="module", params=["gpt2", "no end token"])
def folder(
    request: pytest.FixtureRequest, english: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    directory = tmp_path_factory.mktemp("likelihood")
    spec = json.loads(train(english[:40], kind="bpe", size=500, use="write").core.to_str())
    if request.param != "gpt2":
        spec["added_tokens"] = []
        del spec["model"]["vocab"][END_OF_TEXT]
    (directory / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    family = GPT2 if request.param == "gpt2" else OPENAI_GPT
    tokenizer = bertkit.Tokenizer.load(directory)
    shape = {"length": 60, "intermediate": 64, "spread": 0.3}
    return tiny_folder(directory / "model", tokenizer, "lm", family=family, **shape)


QUESTIONS = [
    ChoiceQuestion("The class statement", ("defines a class", "eats", "an object of it"), 0),
    ChoiceQuestion("Names refer to objects.", ("yes", "no they do not"), 1, "Do they?"),
    ChoiceQuestion("The loop ends as the _ is false.", ("condition", "name"), 0),
    ChoiceQuestion("A name is an _.", ("identifier", "object of a class"), 1),
    ChoiceQuestion("word " * 70, ("is long", "a value"), 1),
]


def hf_logprobs(folder: Path, before: str, text: str) -> np.ndarray[Any, Any]:
    """Return the log-probability of each token of `text`, computed by transformers."""
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = bertkit.load(folder).tokenizer
    first, second = (ids.tolist() for ids in tokenizer.ids([before, text]))
    ids = [*tokenizer.ends, *first, *second][-60:]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    every = logits[torch.arange(len(ids) - 1), ids[1:]].numpy()
    return every[-len(second) :]


def test_choice_accuracy_matches_transformers(folder: Path) -> None:
    mean, summed = [], []
    for question in QUESTIONS:
        texts = [(question.text, f" {choice}") for choice in question.choices]
        if question.stem:
            texts = [(f"{question.text}\n{question.stem}", text) for _, text in texts]
        if "_ is" in question.text:  # the choice fills the gap, and the rest is scored
            before, suffix = question.text.split("_")
            texts = [(before + choice, suffix) for choice in question.choices]
        scores = [hf_logprobs(folder, *text) for text in texts]
        mean.append(np.argmax([logprobs.mean() for logprobs in scores]) == question.answer)
        summed.append(np.argmax([logprobs.sum() for logprobs in scores]) == question.answer)
    result = evaluate_likelihood(folder, QUESTIONS)
    chance = np.mean([1 / 3, 1 / 2, 1 / 2, 1 / 2, 1 / 2])
    assert result == ChoicesScore(np.mean(mean), np.mean(summed), pytest.approx(chance), 1, 5)
    limited = evaluate_likelihood(folder, QUESTIONS, rows=2)
    assert limited.rows == 2


def test_evaluate_likelihood_accepts_multiple_choice_file(folder: Path, tmp_path: Path) -> None:
    rows = [{"context": q.text, "question": q.stem, "choices": q.choices, "label": q.answer}
            for q in QUESTIONS if q.stem]  # fmt: skip
    (tmp_path / "q.jsonl").write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    result = evaluate_likelihood(folder, tmp_path / "q.jsonl")
    assert isinstance(result, ChoicesScore)
    assert result.rows == 1


SENTENCES = [
    ("The class statement defines a class.", "1"), ("class The a.", "0"), ("Names are bound.", "1"),
    ("of the of", "0"), ("A name refers to an object.", "1"), ("to to refers", "0"),
]  # fmt: skip
LABELED = [LabelExample(text, None, label, f"row {i}") for i, (text, label) in enumerate(SENTENCES)]
THREE_LABELS = [LabelExample("a", None, label) for label in "012"]


def test_threshold_uses_train_and_score_uses_dev(folder: Path) -> None:
    tokenizer = bertkit.load(folder).tokenizer
    every = [hf_logprobs(folder, "", text) for text, _ in SENTENCES]
    means = [row.mean() for row in every]
    if not tokenizer.ends:  # the first token has no probability
        tokens = tokenizer.ids([text for text, _ in SENTENCES])
        assert all(len(row) == len(ids) - 1 for row, ids in zip(every, tokens, strict=True))
    train_rows, dev_rows = LABELED[:4], LABELED[2:]
    result = evaluate_likelihood(folder, dev_rows, train=train_rows)
    assert isinstance(result, AcceptabilityScore)
    likely = np.array([row.label == "1" for row in train_rows])
    assert result.threshold == pytest.approx(best_threshold(np.array(means[:4]), likely), abs=1e-4)
    predictions = ["1" if mean >= result.threshold else "0" for mean in means[2:]]
    expected = metrics.classification(predictions, [str(e.label) for e in dev_rows], ["0", "1"])
    assert result.matthews == pytest.approx(expected["matthews"])
    assert result.accuracy == pytest.approx(expected["accuracy"])
    swapped = [LabelExample(e.text, None, "10"[int(str(e.label))]) for e in dev_rows]
    control = evaluate_likelihood(folder, swapped, train=train_rows)
    assert isinstance(control, AcceptabilityScore)
    assert control.threshold == result.threshold  # dev does not change the threshold
    assert control.matthews == pytest.approx(-result.matthews)


def test_zero_shot_label_is_the_most_probable_word(folder: Path) -> None:
    words = {"0": "false", "1": "true"}
    right = 0
    for example in LABELED:
        scores = {
            label: hf_logprobs(folder, f"{example.text} very", f" {word}").sum()
            for label, word in words.items()
        }
        right += max(scores, key=lambda name: scores[name]) == example.label
    label_words = [f"{label}={word}" for label, word in words.items()]
    options: dict[str, Any] = {"template": "{text} very {label}", "words": label_words}
    (result,) = evaluate_prompts(folder, train=LABELED[:2], dev=LABELED, shots=[0], **options)
    assert result.accuracy == pytest.approx(right / len(LABELED))


SCORES = st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=1, max_size=20)


@given(rows=SCORES)
def test_best_threshold_maximizes_correlation(rows: list[tuple[int, bool]]) -> None:
    scores, likely = np.array([float(s) for s, _ in rows]), np.array([flag for _, flag in rows])

    def matthews(threshold: float) -> float:
        predicted, actual = (["01"[int(x)] for x in side] for side in (scores >= threshold, likely))
        return metrics.classification(predicted, actual, ["0", "1"])["matthews"]

    best = matthews(best_threshold(scores, likely))
    possible = [matthews(threshold) for threshold in {*(np.unique(scores) + 0.5), -9.0}]
    assert best == pytest.approx(max(possible), abs=1e-9)


@pytest.mark.parametrize(
    ("examples", "options", "message"),
    [
        ([LabelExample("word " * 80, None, "1", "a:1")], {}, "a:1: the text to score must have 1"),
        (LABELED[:2], {"train": THREE_LABELS}, "must contain exactly two labels, got 3"),
        ([LabelExample("a b", "c", "1", "f:1")], {}, "f:1: a second text is not supported"),
        ([LabelExample("a b", None, "7", "f:2")], {}, "f:2: label '7' is not in the training file"),
    ],
)
def test_evaluate_likelihood_rejects_invalid_examples(
    folder: Path, examples: list[LabelExample], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BertkitError, match=message):
        evaluate_likelihood(folder, examples, **{"train": LABELED, **options})


def test_evaluate_likelihood_rejects_model_without_lm_head(tiny: Path) -> None:
    with pytest.raises(CheckpointError, match="use a generative model"):
        evaluate_likelihood(tiny, QUESTIONS)


def test_evaluate_likelihood_rejects_too_long_choice(folder: Path) -> None:
    with pytest.raises(DataError, match="a question: the text to score must have 1 to"):
        evaluate_likelihood(folder, [ChoiceQuestion("a", ("word " * 80, "b"), 0)])
