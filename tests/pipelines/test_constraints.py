"""Tests that every decoding method respects constraints, and that scores ignore constraints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.extensions.generation.test_chat_format import vocabulary
from tests.factories import tiny_folder

import bertkit
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.stepper import Request
from bertkit.families import FAMILIES

METHODS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "lookup": {"prompt_lookup_num_tokens": 3},
    "sampling": {"temperature": 1.0},
    "top-k": {"temperature": 2.0, "top_k": 3, "top_p": 0.9, "min_p": 0.01},
    "several": {"temperature": 1.0, "num_return_sequences": 3},
    "beams": {"num_beams": 2},
    "many beams": {"num_beams": 7, "num_return_sequences": 3},
    "stopped beams": {"num_beams": 3, "early_stopping": True, "length_penalty": 0.0},
}
LIMITS: dict[str, dict[str, Any]] = {
    "none": {},
    "min_tokens": {"min_tokens": 6},
    "no_repeat": {"no_repeat_ngram_size": 1},
    "penalty": {"repetition_penalty": 2.0},
}
CHOICES = [
    ["sat", "fell"],
    ["a", "ab", "abc"],
    ["one"],
    ["yes", "a very long choice of words", "n"],
]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Generate:
    out = tmp_path_factory.mktemp("constraints") / "gpt"
    shape = {"layers": 2, "length": 64, "spread": 0.5, "hidden": 24}
    tiny_folder(out, vocabulary("plain"), "lm", family=FAMILIES["gpt2"], **shape)
    return Generate(bertkit.load(out))


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("choices", CHOICES, ids="|".join)
def test_text_is_one_of_the_choices(
    writer: Generate, choices: list[str], method: str, limit: str
) -> None:
    decoding = {**METHODS[method], **LIMITS[limit]}
    for prefix in ("", "It "):
        for texts in writer(["The cat", "b"], decoding, prefix=prefix, choices=choices):
            assert texts
            assert {text.text for text in texts} <= {prefix + choice for choice in choices}


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("method", METHODS)
def test_decoding_methods_respect_limits(writer: Generate, method: str, limit: str) -> None:
    decoding = {"max_tokens": 12, **METHODS[method], **LIMITS[limit]}
    for texts in writer(["The cat", "b"], decoding, prefix="Q", stop=["zz"]):
        for text in texts:
            assert text.text.startswith("Q")
            assert text.tokens >= 6 * (limit == "min_tokens")
            if limit == "no_repeat":
                letters = text.text.replace("\N{REPLACEMENT CHARACTER}", "")
                assert len(set(letters)) == len(letters)


def log_probability(writer: Generate, prompt: str, text: str) -> tuple[float, int]:
    """Return the log-probability of a text and its end token, and the number of tokens."""
    ids = writer.tokenizer.ids([prompt])[0].tolist()
    tokens = [*writer.tokenizer.ids([text])[0].tolist(), writer.tokenizer.eos]
    total = 0.0
    for position, token in enumerate(tokens):
        _, logits = writer.stepper.start([Request(np.array(ids + tokens[:position]))])
        total += float(torch.log_softmax(logits, -1)[0, token])
    return total, len(tokens)


@pytest.mark.parametrize("method", METHODS)
def test_score_is_the_log_probability_of_the_model(writer: Generate, method: str) -> None:
    decoding = {**METHODS[method], "length_penalty": 2.0, "repetition_penalty": 1.5}
    for constraints in ({"choices": ["sat", "fell"]}, {"choices": ["ab"], "prefix": "c"}):
        (texts,) = writer(["The cat"], decoding, **constraints)  # type: ignore[arg-type]
        for text in texts:
            total, length = log_probability(writer, "The cat", text.text)
            expected = total / length**2 if "num_beams" in METHODS[method] else total
            assert text.score == pytest.approx(expected, rel=1e-4)


def test_best_beam_of_choices_is_the_most_probable(writer: Generate) -> None:
    choices = ["sat", "sit", "fell", "of"]
    scores = {c: log_probability(writer, "The cat", c)[0] for c in choices}
    ((best, *_),) = writer(["The cat"], {"num_beams": 4, "length_penalty": 0.0}, choices=choices)
    assert best.score == pytest.approx(scores[best.text], rel=1e-4)


def test_choices_that_cannot_be_generated_are_rejected(writer: Generate) -> None:
    for decoding in ({"max_tokens": 3}, {"max_tokens": 3, "num_beams": 2}):
        with pytest.raises(
            DataError, match="choices: the longest text has 4 tokens, but at most 3"
        ):
            writer(["The cat"], decoding, choices=["a", "fell"])
    with pytest.raises(ConfigError, match="choices cannot be combined with stop"):
        writer(["The cat"], choices=["a", "fell"], stop=["e"])
