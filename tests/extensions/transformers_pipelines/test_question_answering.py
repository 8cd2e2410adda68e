"""Arguments, questions, and candidates of question answering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.extensions.transformers_pipelines.cases import FAR

import bertkit
from bertkit.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 0}, "top_k"),
        ({"max_seq_len": 65}, "max_seq_len: must be at most 64"),
        ({"max_seq_len": 20, "doc_stride": 19}, "doc_stride: windows overlap by 19 tokens"),
        ({"null_threshold": 1}, "null_threshold: QuestionAnsweringPipeline has no such setting"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: dict[str, Any], message: str, models: Path
) -> None:
    answer = bertkit.pipeline("question-answering", models / "reader")
    with pytest.raises(ConfigError, match=message):
        answer(**FAR, **arguments)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "pass question= and context="),
        (({"question": "who?"},), r"inputs\[0\]: expected a context"),
        (([{"question": " ", "context": "a"}],), r"inputs\[0\]: expected a question"),
        ((["who?", "where?"], ["a"]), "2 questions, but 1 contexts"),
        (("who?", ["a"]), "pass question= and context="),
        (("a", "b", "c"), "pass question= and context="),
    ],
)
def test_invalid_questions_are_rejected(inputs: Any, message: str, models: Path) -> None:
    answer = bertkit.pipeline("question-answering", models / "reader")
    with pytest.raises(DataError, match=message):
        answer(*inputs)


def test_candidates_without_probability_are_not_returned(models: Path) -> None:
    """transformers also returns spans of more than `max_answer_len` tokens, with a score of 0."""
    answer = bertkit.pipeline("question-answering", models / "reader")
    found = answer(question="who?", context="the cat sat", top_k=50, max_answer_len=2)
    assert [row["answer"] for row in sorted(found, key=lambda row: (row["start"], row["end"]))] == [
        "the", "the cat", "cat", "cat sat", "sat",
    ]  # fmt: skip
    assert all(row["score"] > 0 for row in found)
