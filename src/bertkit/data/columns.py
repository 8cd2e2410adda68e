"""Which column of a labelled file holds what: as named, or told by usual names and by values."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bertkit.data.paths import suffix
from bertkit.data.tables import FEWEST, NO_TAB, LabeledTable, are_texts
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
LABELS = (
    "score",
    "quality",
    "class",
    "gold_label",
    "relatedness_score",
    "entailment_judgment",
    "target",
)
"""Usual names of the label, where no column is called so."""

NUMBERS = frozenset({"", "id", "idx", "index", "guid", "pair_id", "pairid", "#1 id", "#2 id"})
"""Usual names of columns that number the rows or their texts; pandas leaves its own without."""

USUAL = frozenset({"label", *TEXTS, *PAIRS, *LABELS})
"""Columns that are called so hold what their name says, whatever their values are."""

ONE_HOT = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""Values of a one-hot column."""

INTEGER = re.compile(r"\s*[+-]?\d+\s*")


class UnassignedColumns:
    """The columns of a table that have no role yet; one that is chosen has one."""

    def __init__(self, table: LabeledTable, *named: str | None) -> None:
        """Those `named` have a role already, and where they stand in the first row of a `table`
        that seemed to have no header, it becomes one. Raises: DataError for one that is not there.
        """
        table.expect([name for name in named if name])
        for name in filter(None, named):
            if name not in table.columns and table.unnamed:
                raise DataError(
                    f"{table.file}: no column {name!r}; no header line was seen; say --header if "
                    f"the first line names the columns (columns: {', '.join(table.columns)})"
                )
            if name not in table.columns:
                near = did_you_mean(name, table.columns)
                raise DataError(f"{table.file}: no column {name!r}; {near}")
        self.table = table
        left = [c for c in table.columns if c.lower() not in NUMBERS and c not in named]
        self.ids = [c for c in left if c.lower() not in USUAL and self._numbers_rows(c)]
        self.left = [c for c in left if c not in self.ids]

    def _numbers_rows(self, column: str) -> bool:
        """Whether it holds integers that are all different, as an ID does."""
        seen: set[str] = set()
        for row in self.table.rows:
            if row[column] in seen or not INTEGER.fullmatch(row[column]):
                return False
            seen.add(row[column])
        return len(seen) >= FEWEST

    def _is_one_hot(self, column: str) -> bool:
        """Whether it contains only 0 and 1, or true and false."""
        return all(row[column].strip().lower() in ONE_HOT for row in self.table.rows)

    def usual(self, names: Sequence[str]) -> list[str]:
        """Those left that are called so, in the order of the names and in any case."""
        lower = {column.lower(): column for column in self.left}
        return [lower[name] for name in names if name in lower]

    def first(self, names: Sequence[str]) -> str | None:
        """Choose the first with a usual name, if there is one."""
        chosen = next(iter(self.usual(names)), None)
        if chosen is not None:
            self.left.remove(chosen)
        return chosen

    def only(self, option: str, candidates: Sequence[str], what: str | None = None) -> str:
        """Choose the one candidate for a role, which its `option` is named after; `what` the column
        holds is by default called the same. Raises: DataError where it is none or several."""
        if len(candidates) == 1:
            (chosen,) = candidates
            self.left.remove(chosen)
            return chosen
        table, several = self.table, ""
        if len(table.columns) == 1 and suffix(table.file) == ".tsv":
            several = f": {NO_TAB}"
        elif len(table.columns) == 1 and option == "label":
            raise DataError(
                f"{table.file}: the rows have one column, {table.columns[0]!r}, and labels are "
                "lacking; give each row a label too"
            )
        elif candidates:
            several = f": it could be {' or '.join(map(repr, candidates))}"
            if option == "label" and all(map(self._is_one_hot, candidates)):
                names = ",".join(candidates)
                several += f", or all of them, {names!r}, if a text may have several labels"
        elif self.ids:
            several = f": {self.ids[0]!r} holds integers that are all different, as an ID does"
        raise DataError(
            f"{table.file}: cannot tell which column is the {what or option}{several}; name it "
            f"with --{option}-column (columns: {', '.join(table.columns)})"
        )

    def texts(self) -> list[str]:
        """Return the columns without a role whose values have three words on average."""
        rows = self.table.rows
        return [c for c in self.left if are_texts([row[c] for row in rows])]

    def fewest_values(self) -> str:
        """Of those left, the one with the fewest different values; of several the last."""
        return min(reversed(self.left), key=lambda c: len({row[c] for row in self.table.rows}))


def choose_text(table: LabeledTable, text: str | None = None) -> str:
    """The column of texts alone: as named, or told as `choose_columns` does. Raises: DataError."""
    columns = UnassignedColumns(table, text)
    return text or columns.first(TEXTS) or columns.only("text", columns.texts() or columns.left)


def label_columns(label: str | None, columns: Collection[str]) -> list[str]:
    """Return the columns of labels: the column of this name, or a list such as `toxic,insult`."""
    if label is None or label in columns or "," not in label:
        return [] if label is None else [label]
    return [name.strip() for name in label.split(",")]


@dataclass(frozen=True)
class Roles:
    """The columns of labelled texts; `pair` is None for single texts.

    `labels` are one-hot columns: one per label, with 1 if the text has the label.
    """

    text: str
    label: str | None
    pair: str | None = None
    labels: tuple[str, ...] = ()

    def label_of(self, row: Mapping[str, str], where: str) -> str | None:
        """Return the label of a row as written; of one-hot columns, a JSON list.

        Raises:
            DataError: If a one-hot column contains something else than 0 and 1.
        """
        if not self.labels:
            return None if self.label is None else row[self.label].strip()
        for column in self.labels:
            if row[column].strip().lower() not in ONE_HOT:
                raise DataError(
                    f"{where}: expected 0 or 1 in column {column!r}, got {row[column]!r}; set "
                    "--label-column to columns of 0 and 1, or to a single column"
                )
        names = [column for column in self.labels if ONE_HOT[row[column].strip().lower()]]
        return json.dumps(names, ensure_ascii=False)

    def __str__(self) -> str:
        parts = (("text", self.text), ("pair", self.pair), ("label", self.label))
        return ", ".join(f"{role} = {name!r}" for role, name in parts if name is not None)


def choose_columns(
    table: LabeledTable,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    labelled: bool = True,
) -> Roles:
    """Columns as named, or told by usual names and by what they hold; never one of several.

    Without a usual name the label is the one column that is left, and the text the one that reads
    like one; of two columns that both may be either, the label has fewer different values.
    Raises: DataError when a named column is not there, or it cannot be told which is which.
    """
    named = (text, pair, label, *label_columns(label, table.columns))
    table.expect([name for name in named if name])
    labels = label_columns(label, table.columns)
    columns = UnassignedColumns(table, text, pair, *labels)
    alone = text is not None and pair is None
    if labelled and label is None and (usual := columns.usual(["label"]) or columns.usual(LABELS)):
        label = columns.only("label", usual)
    text = text or columns.first(TEXTS)
    if text is not None and not alone and pair is None:
        pair = columns.first(PAIRS)
    if text is None and labelled and label is None and len(columns.left) == 2:
        short = [column for column in columns.left if column not in columns.texts()]
        label = columns.only("label", short if len(short) == 1 else [columns.fewest_values()])
    if text is None:
        text = columns.only("text", columns.texts() or columns.left)
    if labelled and not alone and pair is None and (second := columns.texts()):
        raise DataError(
            f"{table.file}: {second[0]!r} beside {text!r} could be the second text of a pair; "
            "name it with --pair-column, or the only text with --text-column"
        )
    if labelled and label is None:
        label = columns.only("label", columns.left)
    return Roles(text, label, pair, tuple(labels) if len(labels) > 1 else ())
