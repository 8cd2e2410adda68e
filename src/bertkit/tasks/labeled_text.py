"""Examples, options, and predictions of text classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from bertkit.config import Positive, Settings, Share
from bertkit.data.columns import Roles, choose_columns
from bertkit.data.row_errors import read_each
from bertkit.data.row_readers import Rows, Source
from bertkit.errors import DataError
from bertkit.tasks.task import Reader, Reading
from bertkit.tasks.trained_columns import open_rows


@dataclass(frozen=True)
class LabelExample:
    """Text or pair of texts, with the label as written in the file."""

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
            raise DataError(f"{where}: no label; add a label or remove the row")
        text, pair = texts[index], pairs[index]
        if not text.strip() or (pair is not None and not pair.strip()):
            raise DataError(f"{where}: the text is empty; remove the row")
        return LabelExample(text, pair, label, where)

    return read_each(example, range(len(table)))


class LabeledTextReader(Reader[LabelExample]):
    """Reader of texts or pairs with labels, from a table."""

    def read(
        self, source: Source, reading: Reading, *, labeled: bool
    ) -> tuple[list[LabelExample], str]:
        table = open_rows(source, reading)
        roles = choose_columns(
            table,
            text=reading.text_column,
            pair=reading.pair_column,
            label=reading.label_column,
            labeled=labeled,
        )
        return examples(table, roles), f"{table.summary}; {len(table):,} rows; {roles}"

    def example(self, text: str, others: Sequence[str]) -> LabelExample:
        if len(others) > 1:
            raise DataError(f"{text[:40]!r}: {len(others) + 1} texts; pass one text or a pair")
        if not text.strip() or not all(other.strip() for other in others):
            raise DataError("a text is empty; remove it")
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
"""Type of classification -> `problem_type` in transformers."""


def reads_pairs(settings: Mapping[str, Any]) -> bool | None:
    """Return whether a classifier was trained on pairs; None if `config.json` lacks it."""
    match settings.get("bertkit"):
        case {"task": {"options": {"pairs": bool(pairs)}}}:
            return pairs
    return None


def label_of(example: LabelExample) -> str:
    """Return the label of an example.

    Raises:
        DataError: If the example has no label.
    """
    if example.label is None:
        raise DataError(f"{example.where}: no label; add a label or remove the row")
    return example.label


class ClassifyOptions(Settings, frozen=True):
    """Options of text classification."""

    pairs: bool | None = None
    """Whether examples are pairs of texts. Default: inferred from the training file."""
    regression: bool | None = None
    """Whether labels are quantities. Default: true if all labels are numbers and some have a
    fraction."""
    multi_label: bool | None = None
    """Whether a text can have several labels, as a JSON list or separated by |. Default: true if
    all labels are JSON lists."""
    threshold: Share | None = None
    """Minimum probability of a predicted label. With two labels, it applies to the second label
    (default: 0.5). With several labels per text, it applies to each label (default: optimized on
    dev for each label)."""
    tune_threshold: bool = False
    """With two labels: whether to use the threshold with the highest F1 of the second label on
    dev."""
    thresholds: tuple[Share, ...] = ()
    """Thresholds that were optimized on dev, in the order of the labels."""
    calibrate: bool = False
    """With one label per text: whether to divide the logits by a temperature that is optimized on
    dev, so that probabilities are calibrated (Guo et al. 2017)."""
    temperature: Positive | None = None
    """Temperature that was optimized on dev."""
    both_orders: bool = False
    """Whether to run the model on each pair as (A, B) and (B, A) and add the outputs, for symmetric
    tasks such as similarity (Radford et al. 2018, section 3.3)."""
    contrastive: bool = False
    """Few-shot training (SetFit): train embeddings on pairs of texts with equal and different
    labels, then a linear layer on the embeddings (Tunstall et al. 2022)."""
    class_weights: Literal["none", "balanced"] = "none"
    """Class weights for imbalanced data: balanced uses the inverse frequency of each class; with
    several labels, texts with a label get as much weight as texts without it."""


class LabelAnswer(msgspec.Struct, frozen=True):
    """Most probable label of a text, or the number of a regression, and all scores."""

    label: str
    score: float
    scores: dict[str, float]
    truncated: bool = False


class LabelsAnswer(msgspec.Struct, frozen=True):
    """Labels of a text that reach their threshold, most probable first, and all probabilities."""

    labels: list[str]
    scores: dict[str, float]
    truncated: bool = False
