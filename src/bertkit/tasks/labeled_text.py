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
    """Text or pair of texts, with the label as it is written in the file."""

    text: str
    pair: str | None = None
    label: str | None = None
    where: str = "a text"
    """File and line, for messages."""


def examples(table: Rows, roles: Roles) -> list[LabelExample]:
    """Convert the rows of a table to examples.

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
    """Reader of labeled texts or text pairs from the rows of a table."""

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
"""Value of `problem_type` in transformers for each type of classification."""


def reads_pairs(settings: Mapping[str, Any]) -> bool | None:
    """Return whether a classifier was trained on pairs, or None if `config.json` does not say."""
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
    """Whether labels are quantities. Default: true if all labels are numbers and at least one has a
    fraction."""
    multi_label: bool | None = None
    """Whether a text can have several labels, which are written as a JSON list or separated by |.
    Default: true if all labels are JSON lists."""
    threshold: Share | None = None
    """Minimum probability of a predicted label. If there are two labels, it applies to the second
    label (default: 0.5). If a text can have several labels, it applies to each label (default:
    optimized on dev for each label)."""
    tune_threshold: bool = False
    """Whether to use the threshold with which the second of two labels has the highest F1 on
    dev."""
    thresholds: tuple[Share, ...] = ()
    """Thresholds that were optimized on dev, in the order of the labels."""
    calibrate: bool = False
    """Whether to divide the logits by a temperature that is optimized on dev, so that probabilities
    are calibrated (Guo et al. 2017). Requires one label per text."""
    temperature: Positive | None = None
    """Temperature that was optimized on dev."""
    both_orders: bool = False
    """Whether to run the model on each pair as (A, B) and as (B, A), and add the outputs. This
    suits symmetric tasks such as similarity (Radford et al. 2018, section 3.3)."""
    contrastive: bool = False
    """Whether to use few-shot training (SetFit): embeddings are trained on pairs of texts with
    equal or different labels, and then a linear layer on the embeddings (Tunstall et al. 2022)."""
    class_weights: Literal["none", "balanced"] = "none"
    """Class weights for imbalanced data. With balanced, the weight of a class is inversely
    proportional to its frequency. If a text can have several labels, the texts with a label get as
    much weight in total as the texts without it."""


class LabelAnswer(msgspec.Struct, frozen=True):
    """The most probable label of a text and its score, or the number of a regression.

    `scores` contains the scores of all labels.
    """

    label: str
    score: float
    scores: dict[str, float]
    truncated: bool = False


class LabelsAnswer(msgspec.Struct, frozen=True):
    """Labels whose probability reaches their threshold, the most probable first.

    `scores` contains the probabilities of all labels.
    """

    labels: list[str]
    scores: dict[str, float]
    truncated: bool = False
