"""Whatever gives logits answers by a task: one, many, a stream."""

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
    """Long where a text has more than four tokens."""

    def __init__(self) -> None:
        self.task, self.tokenizer = Classify(("short", "long")), tiny_tokenizer("abc")
        self.length, self.head = 8, None

    def outputs(self, features: Sequence[Feature]) -> list[Outputs]:
        return [np.array([[4.5, len(f.encoding)]], np.float32) for f in features]


def test_one_many_and_a_stream() -> None:
    answer = ByLength()
    assert answer("a").label == "short"
    assert [one.label for one in answer(["a", "a b c", "b"])] == ["short", "long", "short"]
    stream = answer(iter(["a b c"] * (ITEMS_PER_CHUNK + 1)))
    assert {one.label for one in stream} == {"long"}
    works = answer.prepare([("a", "b"), ("a", "b c")])
    assert [work.tokens for work in works] == [5, 6]
    assert [one.label for one in answer.run(works)] == ["long", "long"]


def test_what_is_refused() -> None:
    answer = ByLength()
    with pytest.raises(DataError, match="unsupported input of type int"):
        answer.answers([answer._example(1)])
    with pytest.raises(ConfigError, match="long: classify supports error, truncate, window"):
        answer("a", long="middle")  # type: ignore[call-overload]
    with pytest.raises(DataError, match="but the limit is 8"):
        answer("a b c " * 5)
    cut = answer("a b c " * 5, long="truncate")
    assert cut.truncated


def test_work_and_parts() -> None:
    assert list(batched("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert Work([], more=3).tokens == 3
    assert not Work([]).truncated
