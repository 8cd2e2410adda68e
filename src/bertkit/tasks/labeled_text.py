"""Texts with labels: a row, what may be said of its labels, and the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from bertkit.config import Positive, Settings, Share
from bertkit.data.columns import Roles, choose_columns
from bertkit.data.row_errors import each_of
from bertkit.data.row_readers import Rows, Source
from bertkit.errors import DataError
from bertkit.tasks.task import Reader, Reading
from bertkit.tasks.trained_columns import open_rows


@dataclass(frozen=True)
class LabelExample:
    """One row: a text or a pair, and its label as written."""

    text: str
    pair: str | None = None
    label: str | None = None
    where: str = "a text"
    """File and line, for messages."""


def examples(table: Rows, roles: Roles) -> list[LabelExample]:
    """Return the rows of a table as examples.

    Raises:
        DataError: If a text or label is empty.
    """
    texts, labels = table.texts(roles.text), roles.labels_of(table)
    pairs = [None] * len(table) if roles.pair is None else table.texts(roles.pair)

    def example(index: int) -> LabelExample:
        where, label = table.where(index), labels[index]
        label = None if label is None else label.strip()
        if label == "":
            raise DataError(f"{where}: no label; give one or remove the row")
        text, pair = texts[index], pairs[index]
        if not text.strip() or (pair is not None and not pair.strip()):
            raise DataError(f"{where}: the text is empty; remove the row")
        return LabelExample(text, pair, label, where)

    return each_of(example, range(len(table)))


class LabeledTextReader(Reader[LabelExample]):
    """Texts or pairs with labels, from a table."""

    def read(
        self, source: Source, reading: Reading, *, labelled: bool
    ) -> tuple[list[LabelExample], str]:
        table = open_rows(source, reading)
        roles = choose_columns(
            table,
            text=reading.text_column,
            pair=reading.pair_column,
            label=reading.label_column,
            labelled=labelled,
        )
        return examples(table, roles), f"{table.summary}; {len(table):,} rows; {roles}"

    def example(self, text: str, others: Sequence[str]) -> LabelExample:
        if len(others) > 1:
            raise DataError(f"{text[:40]!r}: {len(others) + 1} texts; give one, or a pair")
        if not text.strip() or not all(other.strip() for other in others):
            raise DataError("a text is empty: there is nothing to label; leave it out")
        return LabelExample(text, *others)

    def key(self, example: LabelExample) -> tuple[str, str | None]:
        return example.text, example.pair

    def group(self, example: LabelExample) -> str:
        return example.text


PROBLEMS = {
    "regression": "regression",
    "multi_label": "multi_label_classification",
    "single": "single_label_classification",
}
"""Our kinds -> the `problem_type` of transformers."""


def reads_pairs(settings: Mapping[str, Any]) -> bool | None:
    """Whether a folder's classifier was learned from pairs; None where config.json says nothing."""
    match settings.get("bertkit"):
        case {"task": {"options": {"pairs": bool(pairs)}}}:
            return pairs
    return None


def label_of(example: LabelExample) -> str:
    """Raises: DataError where there is none."""
    if example.label is None:
        raise DataError(f"{example.where}: no label; give one or remove the row")
    return example.label


class ClassifyOptions(Settings, frozen=True):
    """What the rows and their labels are."""

    pairs: bool | None = None
    """Whether each text has a second one; as the training file has it otherwise."""
    regression: bool | None = None
    """Whether labels are quantities; guessed from fractions otherwise."""
    multi_label: bool | None = None
    """Whether a text may have several labels: a JSON list, or a | between them. Guessed from
    JSON lists otherwise."""
    threshold: Share | None = None
    """Probability from which a label is predicted. With two labels: of the second label; default:
    0.5. With several labels per text: of each label; default: optimized on dev for each label."""
    tune_threshold: bool = False
    """With two labels: whether to use the threshold with the highest F1 of the second label on
    dev."""
    thresholds: tuple[Share, ...] = ()
    """Thresholds that were optimized on dev, in the order of the labels."""
    calibrate: bool = False
    """With one label a text: divide the head's outputs by a temperature that dev teaches, so that
    scores are as high as answers are right (Guo et al. 2017)."""
    temperature: Positive | None = None
    """That temperature; what dev taught."""
    both_orders: bool = False
    """Read a pair in both orders and add what the head says of each: for pairs of which neither
    text comes first, such as similarity. Radford et al. 2018, section 3.3."""
    contrastive: bool = False
    """Few-shot training (SetFit): learn vectors from pairs of texts, near each other if the labels
    are equal, then a linear layer on them (Tunstall et al. 2022)."""
    class_weights: Literal["none", "balanced"] = "none"
    """Class weights for imbalanced data: balanced uses the inverse frequency of each class; with
    several labels, texts with a label get as much weight as texts without it."""


class LabelAnswer(msgspec.Struct, frozen=True):
    """The likeliest label of a text (or the number of a regression), and all of them."""

    label: str
    score: float
    scores: dict[str, float]
    truncated: bool = False


class LabelsAnswer(msgspec.Struct, frozen=True):
    """The labels of a text whose probability reaches the threshold, likeliest first, and all."""

    labels: list[str]
    scores: dict[str, float]
    truncated: bool = False
