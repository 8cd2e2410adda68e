"""Selection of the columns of a labeled file, by known names or by names that the user sets."""

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
"""Names that identify the text column. `sentence` is last, because it is the second text in QNLI.
"""
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
"""Names that identify the column of second texts."""
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
"""Names that identify the label column if no column is called `label`."""

ONE_HOT = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""Values that a one-hot column can contain."""

LONGEST_NAME = 30
"""Maximum number of characters of a column name in messages. Longer names are truncated."""


def check_columns(table: Rows, *names: str | None, only: bool = False) -> None:
    """Check that a table has the named columns, and that all rows have the same number of columns.

    Args:
        table: The rows.
        *names: Columns that the user has named.
        only: Whether only the named columns are used. If so, rows may differ in the number of
            other columns.

    Raises:
        DataError: If a column is missing, or the number of columns differs between rows.
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
    """Return the columns that have one of the names, ignoring case, in the order of the names.

    Columns in `used` are skipped.

    Raises:
        DataError: If the names of two of the columns differ only in case.
    """
    found = {c: c.lower() for c in table.columns if c not in used and c.lower() in names}
    if len({*found.values()}) < len(found):
        raise DataError(
            f"{table.name}: among the columns {', '.join(map(repr, found))}, two names differ only "
            "in case; rename one, or set the columns to use"
        )
    return sorted(found, key=lambda column: names.index(found[column]))


def first_column(table: Rows, names: Sequence[str], *used: str | None) -> str | None:
    """Return the first column that `find_columns` returns, or None."""
    return next(iter(find_columns(table, names, *used)), None)


def find_label(table: Rows, *used: str | None) -> str | None:
    """Return the column with a known name for labels, or None. Columns in `used` are skipped.

    Raises:
        DataError: If several columns have such a name, and none is called `label`.
    """
    known = find_columns(table, ("label",), *used) or find_columns(table, LABELS, *used)
    if len(known) > 1:
        raise DataError(
            f"{table.name}: the label could be {' or '.join(map(repr, known))}; set --label-column"
        )
    return next(iter(known), None)


def missing_columns(
    table: Rows, options: Mapping[str, str], *, has_header_option: bool = True
) -> DataError:
    """Return the error to raise if no column is known to contain the texts or labels.

    Args:
        table: The rows.
        options: Options that set the missing columns, each with the content of the column, such as
            `{"--text-column": "text"}`.
        has_header_option: Whether the user can set --no-header.
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
    """Return the text column: the column `text` or, by default, the first with a known name.

    Raises:
        DataError: If the table does not contain the column.
    """
    check_columns(table, text)
    chosen = text or first_column(table, TEXTS)
    if chosen is None:
        raise missing_columns(table, {"--text-column": "text"}, has_header_option=False)
    return chosen


def label_columns(label: str | None, columns: Collection[str]) -> list[str]:
    """Return the label columns: one column, or several from a list such as `toxic,insult`."""
    if label is None or label in columns or "," not in label:
        return [] if label is None else [label]
    return [name.strip() for name in label.split(",")]


@dataclass(frozen=True)
class Roles:
    """Names of the columns that contain the texts and labels.

    `pair` is None if examples consist of one text. `labels` contains one-hot columns, if there are
    any: one column per label, with the value 1 if the text has the label, and 0 otherwise.
    """

    text: str
    label: str | None
    pair: str | None = None
    labels: tuple[str, ...] = ()

    def labels_of(self, table: Rows) -> Sequence[str | None]:
        """Return the label of each row as written in the table.

        If there are one-hot columns, the label is a JSON list of names.

        Raises:
            DataError: If a one-hot column contains a value other than 0 and 1.
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
    """Choose the columns of texts, second texts, and labels.

    A column that the user does not set is chosen by its name.

    Args:
        table: The rows.
        text: Column of the text. If it is set, second texts are used only if `pair` is set too.
        pair: Column of the second text.
        label: Column of the label, or several one-hot columns separated by commas.
        labeled: Whether the rows must have labels.

    Raises:
        DataError: If a column is missing, or several columns have a name that identifies the label
            column.
    """
    labels = label_columns(label, table.columns)
    is_complete = text is not None and (label is not None or not labeled)
    check_columns(table, text, pair, *labels, only=is_complete)
    used = [text, pair, *labels]
    if labeled and label is None:
        label = find_label(table, *used)
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
