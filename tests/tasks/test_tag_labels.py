"""Tests of the label conventions of published token classification models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.factories import tiny_tokenizer
from tests.tasks.test_tag import tagged

from bertkit.data.tag_schemes import standard_labels
from bertkit.tasks.tag import Tag
from bertkit.tasks.task import by_example

TOKENIZER = tiny_tokenizer("abcdef")


def entities(labels: tuple[str, ...], tags: str) -> list[tuple[int, int, str]]:
    """Return the entities, as word indices, if a model with these labels predicts these tags."""
    task = Tag.restore(labels, {})
    example = tagged(" ".join("abcdef"[: len(tags.split())]), " ".join(["O"] * len(tags.split())))
    [feature] = task.features([example], TOKENIZER, 32, long="window", labeled=False)
    rows = 9 * np.eye(len(labels), dtype=np.float32)[[labels.index(tag) for tag in tags.split()]]
    [answer] = task.answers(by_example([example], [[feature]], [rows]), torch.nn.Identity())
    return [(e.start // 2, (e.end + 1) // 2, e.type) for e in answer.entities]


@pytest.mark.parametrize(
    ("labels", "tags", "expected"),
    [
        ("O B-PER I-PER L-PER U-PER", "B-PER I-PER L-PER U-PER O", [(0, 3, "PER"), (3, 4, "PER")]),
        ("B-X M-X E-X S-X O", "B-X M-X E-X S-X S-X", [(0, 3, "X"), (3, 4, "X"), (4, 5, "X")]),
        ("O B-X M-X E-X W-X", "O B-X E-X W-X", [(1, 3, "X"), (3, 4, "X")]),
        ("O I-X E-X I-Y E-Y", "I-X E-X E-X I-Y E-Y", [(0, 2, "X"), (2, 3, "X"), (3, 5, "Y")]),
        ("O I-X I-Y", "I-X I-X I-Y O", [(0, 2, "X"), (2, 3, "Y")]),
        ("o b-per i-per", "b-per i-per o b-per", [(0, 2, "per"), (3, 4, "per")]),
        ("O B_PER I_PER", "B_PER B_PER I_PER", [(0, 1, "PER"), (1, 3, "PER")]),
        ("O PER-B PER-I LOC-B LOC-I", "PER-B PER-I LOC-B O", [(0, 2, "PER"), (2, 3, "LOC")]),
        ("O PER_B PER_I PER_L PER_U", "PER_U PER_B PER_L", [(0, 1, "PER"), (1, 3, "PER")]),
        ("O B I", "B I B O", [(0, 2, "ENTITY"), (2, 3, "ENTITY")]),
        ("O B:a-b I:a-b", "B:a-b I:a-b O", [(0, 2, "a-b")]),
    ],
)
def test_labels_of_published_taggers_yield_entities(
    labels: str, tags: str, expected: list[tuple[int, int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert entities(tuple(labels.split()), tags) == expected
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("labels", ["O PER LOC", "O X-PER Y-PER", "O B-A I-A Z", "O S-A U-A B-A"])
def test_other_labels_with_outside_warn_once(
    labels: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Tag.restore(tuple(labels.split()), {})
    assert task.scheme is None
    assert task.labels == tuple(labels.split())
    assert capsys.readouterr().err.count("no supported tag scheme") == 1


@pytest.mark.parametrize("labels", ["NN VB DT", "N-x V-x", "S_x U_x", "a b c"])
def test_labels_without_entities_are_unchanged(
    labels: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert standard_labels(labels.split()) is None
    assert Tag.restore(tuple(labels.split()), {}).scheme is None
    assert capsys.readouterr().err == ""


def test_saved_scheme_keeps_its_labels(capsys: pytest.CaptureFixture[str]) -> None:
    task = Tag(("O", "PER", "b-LOC"), Tag.Options(scheme="none"))
    again = Tag.restore(task.labels, task.settings())
    assert (again.labels, again.scheme) == (task.labels, None)
    assert capsys.readouterr().err == ""
