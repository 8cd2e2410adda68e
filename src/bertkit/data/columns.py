"""Columns of a labeled file: recognized by their names, or named by the user."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bertkit.data.row_errors import read_each
from bertkit.data.row_readers import NAMES, Rows
from bertkit.errors import DataError, did_you_mean

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
"""Names of the text column. `sentence` is the pair of a question in QNLI, and so comes last."""
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
"""Names of the column of second texts."""
LABELS = (
    "labels",
    "score",
    "quality",
    "class",
    "gold_label",
    "relatedness_score",
    "entailment_judgment",
    "target",
    "is_duplicate",
)
"""Names of the label column if no column is called `label`."""

ONE_HOT = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""Values of a one-hot column."""

LONGEST_NAME = 30
"""Maximum number of characters of the name of a column in messages."""


def check_columns(table: Rows, *names: str | None, only: bool = False) -> None:
    """Check that a table has the named columns, and that its rows have equally many columns.

    Args:
        table: The rows.
        *names: The columns that the user named.
        only: If true, no other columns are used. Rows may then have more or fewer other columns.

    Raises:
        DataError: If a column is missing, or a row has another number of columns.
    """
    for name in names:
        if name is None or name in table.columns:
            continue
        if table.header and name.isdecimal():
            hint = f"set --no-header to name columns by number ({_columns(table)})"
        elif len(table.columns) == 1 and table.separator:
            hint = f"set --separator if the rows have several columns ({_columns(table)})"
        else:
            hint = did_you_mean(name, table.columns)
        raise DataError(f"{table.name}: no column {name!r}; {hint}")
    table.check_lengths(*(filter(None, names) if only else ()))


def find_columns(table: Rows, names: Sequence[str], *used: str | None) -> list[str]:
    """Return the columns with one of these names, in any case, in the order of the names."""
    columns = {column.lower(): column for column in table.columns if column not in used}
    return [columns[name] for name in names if name in columns]


def first_column(table: Rows, names: Sequence[str], *used: str | None) -> str | None:
    """Return the first of the columns that `find_columns` returns, if any."""
    return next(iter(find_columns(table, names, *used)), None)


def missing_columns(
    table: Rows, options: Mapping[str, str], *, has_header_option: bool = True
) -> DataError:
    """Return the error for roles without a column.

    Args:
        table: The rows.
        options: Option of each role, such as `{"--text-column": "text"}`.
        has_header_option: If true, the user can set --no-header.
    """
    roles = " and the ".join(options.values())
    message = (
        f"{table.name}: no column has a known name for the {roles}; set {' and '.join(options)}"
    )
    if has_header_option and table.header and "--text-column" in options:
        message += ", or --no-header if the first line is data"
    return DataError(f"{message} ({_columns(table)})")


def _columns(table: Rows) -> str:
    names = (
        name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..." for name in table.columns
    )
    if len(table.columns) > 1 or not table.separator:
        return f"columns: {', '.join(names)}"
    separator = NAMES.get(table.separator, table.separator)
    return f"only one column, because the first line contains no {separator}: {', '.join(names)}"


def choose_text(table: Rows, text: str | None = None) -> str:
    """Return the column of texts: as named, or the first with a known name.

    Raises:
        DataError: If the table lacks the column.
    """
    check_columns(table, text)
    chosen = text or first_column(table, TEXTS)
    if chosen is None:
        raise missing_columns(table, {"--text-column": "text"}, has_header_option=False)
    return chosen


def label_columns(label: str | None, columns: Collection[str]) -> list[str]:
    """Return the columns of labels: the column of this name, or a list such as `toxic,insult`."""
    if label is None or label in columns or "," not in label:
        return [] if label is None else [label]
    return [name.strip() for name in label.split(",")]


@dataclass(frozen=True)
class Roles:
    """The columns of labeled texts; `pair` is None for single texts.

    `labels` are one-hot columns: one per label, with 1 if the text has the label.
    """

    text: str
    label: str | None
    pair: str | None = None
    labels: tuple[str, ...] = ()

    def labels_of(self, table: Rows) -> Sequence[str | None]:
        """Return the label of each row as written, or a JSON list for one-hot columns.

        Raises:
            DataError: If a one-hot column contains other values than 0 and 1.
        """
        if not self.labels:
            return [None] * len(table) if self.label is None else table.texts(self.label)
        columns = [table.texts(column) for column in self.labels]

        def label(index: int) -> str:
            names = []
            for name, values in zip(self.labels, columns, strict=True):
                value = ONE_HOT.get(values[index].strip().lower())
                if value is None:
                    raise DataError(
                        f"{table.where(index)}: expected 0 or 1 in column {name!r}, got "
                        f"{values[index]!r}; set --label-column to columns of 0 and 1, or to a "
                        "single column"
                    )
                if value:
                    names.append(name)
            return json.dumps(names, ensure_ascii=False)

        return read_each(label, range(len(table)))

    def __str__(self) -> str:
        parts = (("text", self.text), ("pair", self.pair), ("label", self.label))
        return ", ".join(f"{role} = {name!r}" for role, name in parts if name is not None)


def choose_columns(
    table: Rows,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    labeled: bool = True,
) -> Roles:
    """Return the columns of text, pair and label: as named, or with known names.

    Args:
        table: The rows.
        text: Column of the text. If set, only `pair` sets a column of second texts.
        pair: Column of the second text.
        label: Column of the label, or one-hot columns separated by commas.
        labeled: If true, the rows need a label.

    Raises:
        DataError: If a column is missing, or several have a known name of the label.
    """
    labels = label_columns(label, table.columns)
    is_complete = text is not None and (label is not None or not labeled)
    check_columns(table, text, pair, *labels, only=is_complete)
    used = [text, pair, *labels]
    if labeled and label is None:
        known = find_columns(table, ("label",), *used) or find_columns(table, LABELS, *used)
        if len(known) > 1:
            raise DataError(
                f"{table.name}: the label could be {' or '.join(map(repr, known))}; set "
                "--label-column"
            )
        label = next(iter(known), None)
        used.append(label)
    if text is None:
        text = first_column(table, TEXTS, *used)
        if text is not None and pair is None:
            pair = first_column(table, PAIRS, text, *used)
    missing = {}
    if text is None:
        missing["--text-column"] = "text"
    if labeled and label is None:
        missing["--label-column"] = "label"
    if text is None or missing:
        raise missing_columns(table, missing)
    return Roles(text, label, pair, tuple(labels) if len(labels) > 1 else ())
