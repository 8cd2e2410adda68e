"""Tests of inference with a task: single texts, lists and streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.factories import tiny_tokenizer

from bertkit.errors import ConfigError, DataError
from bertkit.tasks.classify import Classify
from bertkit.tasks.inference import ITEMS_PER_CHUNK, Answering, Work, batched
from bertkit.tasks.labeled_text import LabelAnswer
from bertkit.tasks.task import Feature, Outputs


class ByLength(Answering[LabelAnswer]):
    """Classifier that predicts "long" if a text has more than four tokens."""

    def __init__(self) -> None:
        self.task, self.tokenizer = Classify(("short", "long")), tiny_tokenizer("abc")
        self.length, self.head = 8, None

    def outputs(self, features: Sequence[Feature]) -> list[Outputs]:
        return [np.array([[4.5, len(f.encoding)]], np.float32) for f in features]


def test_call_accepts_single_texts_lists_and_streams() -> None:
    answer = ByLength()
    assert answer("a").label == "short"
    assert [result.label for result in answer(["a", "a b c", "b"])] == ["short", "long", "short"]
    stream = answer(iter(["a b c"] * (ITEMS_PER_CHUNK + 1)))
    assert {result.label for result in stream} == {"long"}
    works = answer.prepare([("a", "b"), ("a", "b c")])
    assert [work.tokens for work in works] == [5, 6]
    assert [result.label for result in answer.run(works)] == ["long", "long"]


def test_call_rejects_invalid_input() -> None:
    answer = ByLength()
    with pytest.raises(DataError, match="unsupported input of type int"):
        answer.answers([answer._example(1)])
    with pytest.raises(ConfigError, match="long: classify supports error, truncate, window"):
        answer("a", long="middle")  # type: ignore[call-overload]
    with pytest.raises(DataError, match="but the limit is 8"):
        answer("a b c " * 5)
    cut = answer("a b c " * 5, long="truncate")
    assert cut.truncated


def test_batched_and_work_sizes() -> None:
    assert list(batched("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert Work([], more=3).tokens == 3
    assert not Work([]).truncated
