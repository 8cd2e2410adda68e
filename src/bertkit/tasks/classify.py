"""Labels, or one number, for a text or a pair of texts. Devlin et al. 2019, section 4.1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from bertkit import metrics
from bertkit.batch import Batch
from bertkit.data.tables import Table
from bertkit.errors import DataError, did_you_mean
from bertkit.models.model import Model
from bertkit.objectives.loss import Loss, Totals

TEXTS = (
    "text",
    "text_a",
    "sentence1",
    "sentence_a",
    "premise",
    "question1",
    "question",
    "#1 string",
    "review",
    "sentence",
)
"""Usual names of the text, `sentence` last: beside a question it is the pair (QNLI)."""
PAIRS = (
    "pair",
    "text_b",
    "sentence2",
    "sentence_b",
    "hypothesis",
    "question2",
    "passage",
    "#2 string",
    "sentence",
)
LABELS = ("label", "score", "quality", "class", "gold_label", "relatedness_score", "target")


@dataclass(frozen=True)
class Columns:
    """Which columns of a file hold what; `pair` is None for single texts."""

    text: str
    label: str | None
    pair: str | None = None

    def __str__(self) -> str:
        parts = (("text", self.text), ("pair", self.pair), ("label", self.label))
        return ", ".join(f"{role} = {name!r}" for role, name in parts if name is not None)


@dataclass(frozen=True)
class Example:
    """One row: a text or a pair, and its label as written."""

    text: str
    pair: str | None
    label: str | None
    line: int


def choose_columns(
    table: Table,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    labelled: bool = True,
) -> Columns:
    """Columns as named, or guessed from usual names and from what they hold.

    Raises: DataError when a named column is not there, or none can be guessed.
    """
    for name in filter(None, (text, pair, label)):
        if name not in table.columns:
            raise DataError(
                f"{table.file}: no column {name!r}; {did_you_mean(name, table.columns)}"
            )
    lower = {column.lower(): column for column in table.columns}
    taken = {text, pair, label}

    def usual(names: Sequence[str]) -> str | None:
        found = next((lower[n] for n in names if n in lower and lower[n] not in taken), None)
        taken.add(found)
        return found

    label = label or (usual(LABELS) if labelled else None)
    single = text is not None and pair is None
    text = text or usual(TEXTS)
    if text is not None and not single:
        pair = pair or usual(PAIRS)
    rest = [column for column in table.columns if column not in taken]
    if label is None and labelled and len(rest) > 1:
        label = min(reversed(rest), key=lambda column: len({row[column] for row in table.rows}))
        rest.remove(label)
    if text is None and rest:
        text = max(rest, key=lambda column: sum(len(row[column]) for row in table.rows))
    if text is None or (labelled and label is None):
        lacking = "text" if text is None else "label"
        raise DataError(
            f"{table.file}: cannot tell which column is the {lacking}; name it with "
            f"--{lacking} (columns: {', '.join(table.columns)})"
        )
    return Columns(text, label, pair)


def examples(table: Table, columns: Columns) -> list[Example]:
    """The rows of a table as examples. Raises: DataError at an empty text or label."""
    found = []
    for row, line in zip(table.rows, table.lines, strict=True):
        label = row[columns.label].strip() if columns.label is not None else None
        if label == "":
            raise DataError(f"{table.file}:{line}: no label; give one or remove the row")
        pair = row[columns.pair] if columns.pair is not None else None
        found.append(Example(row[columns.text], pair, label, line))
    return found


class Classify:
    """The task: softmax over named labels, or one number when `labels` has one name."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self.index = {label: place for place, label in enumerate(self.labels)}

    @property
    def regression(self) -> bool:
        return len(self.labels) == 1

    @staticmethod
    def of(examples: Sequence[Example], *, regression: bool | None = None) -> Classify:
        """The task that these examples pose.

        Without `regression` it is one when every label is a number and some is no integer.
        """
        labels = sorted({cast(str, example.label) for example in examples}, key=_natural)
        numbers = [_number(label) for label in labels]
        if regression is None:
            regression = all(n is not None for n in numbers) and any(
                n != int(n) for n in numbers if n is not None
            )
        if not regression and len(labels) < 2:
            raise DataError(f"only one label, {labels[0]!r}: there is nothing to learn")
        return Classify(("score",) if regression else labels)

    def target(self, example: Example, where: str) -> float | int:
        """A label as the loss wants it. Raises: DataError for one that training never saw."""
        label = cast(str, example.label)
        if self.regression:
            number = _number(label)
            if number is None:
                raise DataError(f"{where}:{example.line}: label {label!r} is not a number")
            return number
        if label not in self.index:
            raise DataError(
                f"{where}:{example.line}: label {label!r} is not in the training file; "
                f"{did_you_mean(label, self.labels)}"
            )
        return self.index[label]

    def loss(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        """Cross-entropy, or squared error for a regression, averaged over the step's examples."""
        states = model.encoder(batch)
        outputs = model.heads["classify"](states, batch).float()
        targets = batch.targets["classify"]
        correct = {}
        if self.regression:
            loss = F.mse_loss(outputs.squeeze(1), targets, reduction="sum")
        else:
            loss = F.cross_entropy(outputs, targets, reduction="sum")
            correct["classify"] = (outputs.argmax(-1) == targets).sum()
        loss = loss / totals["classify"]
        return Loss(loss, {"classify": loss.detach()}, correct)

    def targets(self, values: Sequence[float | int]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32 if self.regression else torch.int64)

    def score(self, outputs: Tensor, examples: Sequence[Example]) -> dict[str, float]:
        """accuracy, F1 and Matthews; or Pearson and Spearman. Shapes: outputs (S, L)."""
        actual = [cast(str, example.label) for example in examples]
        if self.regression:
            return metrics.regression(outputs[:, 0].numpy(), [float(label) for label in actual])
        predicted = [self.labels[place] for place in outputs.argmax(-1).tolist()]
        return metrics.classification(predicted, actual)


def _number(label: str) -> float | None:
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _natural(label: str) -> tuple[float, str]:
    """Numbers by value, then words by letters."""
    number = _number(label)
    return (math.inf if number is None else number, label)
