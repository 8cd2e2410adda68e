"""Tests of the functions that all tasks share: names, records, batches and groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import tiny_tokenizer

from bertkit import tasks
from bertkit.errors import CheckpointError, ConfigError
from bertkit.models.model import HEADS
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions
from bertkit.tasks.task import Feature, Reader, Task, group, make_batch
from bertkit.text.tokenizer import Tokenizer


@pytest.mark.parametrize("name", tasks.TASKS)
def test_every_task_is_complete(name: str) -> None:
    task = tasks.find(name)
    assert task.name == name
    assert task.__doc__
    assert task.long
    assert not task.__abstractmethods__
    assert isinstance(task.reader, Reader)
    labels = ("summary",) if name == "summarize" else ("O", "B-x", "I-x")
    first = task.restore(labels, {})
    again = task.restore(labels, first.settings())
    assert (again.labels, again.options) == (first.labels, first.options)
    assert again.head in HEADS or type(again).build_head is not Task.build_head
    with pytest.raises(CheckpointError, match=r"bertkit\.task\.options"):
        task.restore(labels, {"bertkit": {"task": {"name": name, "options": {"nothing": 1}}}})
    with pytest.raises(CheckpointError, match=r"config\.json"):
        task.restore(labels, {"bertkit": {"task": {"name": name, "options": 3}}})


def test_find_returns_tasks_and_rejects_unknown_names() -> None:
    assert tasks.find("classify") is Classify
    assert tasks.find("bertkit.tasks.classify:Classify") is Classify
    for name, message in (
        ("clasify", "did you mean 'classify'"),
        ("nowhere:Task", "cannot be imported"),
        ("bertkit.tasks.classify:Nothing", "cannot be imported"),
        ("bertkit.tasks.classify:ClassifyOptions", "not a subclass of"),
        (":Task", "cannot be imported"),
        ("..classify:Classify", "cannot be imported"),
    ):
        with pytest.raises(ConfigError, match=message):
            tasks.find(name)


def test_find_reports_any_error_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, code in (("raises", "raise ValueError('no')"), ("broken", "def (:")):
        (tmp_path / f"{name}_task.py").write_text(code, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"cannot be imported \((ValueError: no|SyntaxError)"):
            tasks.find(f"{name}_task:Task")


def test_task_name_is_inferred_from_record_or_head() -> None:
    record = {"bertkit": {"task": {"name": "respond"}}}
    assert tasks.task_name_of(record, ("choose",)) == "respond"
    assert tasks.task_name_of({}, ("choose",)) == "choose"
    assert tasks.task_name_of({}, ("crf",)) == "tag"
    assert tasks.task_name_of({}, ("mlm", "nsp")) is None
    broken: tuple[Any, ...] = (3, {"task": 3}, {"task": {"name": 3}})
    for value in broken:
        assert tasks.task_name_of({"bertkit": value}, ("answer",)) == "answer"


@pytest.fixture
def tokenizer() -> Tokenizer:
    return tiny_tokenizer("abcd")


def test_token_indices_are_shifted_in_batch(tokenizer: Tokenizer) -> None:
    encodings = [tokenizer.encode(text) for text in ("a b c", "a b c d")]
    task: Task[Any, Any] = Classify(("x", "y"), ClassifyOptions())
    features = [Feature(e, i, token_indices=np.array([1, 3])) for i, e in enumerate(encodings)]
    batch = make_batch(task, features)
    assert batch.token_indices is not None
    assert batch.token_indices.tolist() == [1, 3, 6, 8]
    assert torch.equal(batch.ids[batch.token_indices], torch.tensor([5, 7, 5, 7]))
    assert batch.targets == {}


def test_features_are_grouped_by_example(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("a")
    features = [Feature(encoding, index) for index in (0, 0, 2, 3, 3)]
    assert [len(found) for found in group(features)] == [2, 0, 1, 2]
