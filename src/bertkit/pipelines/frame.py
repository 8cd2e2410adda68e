"""Answers as a table, for programs that go on with pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bertkit.config import flat
from bertkit.data.labels import number
from bertkit.data.rows_in_memory import of_dataset
from bertkit.errors import DataError
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import free


@check_keywords
def frame(answers: Any, rows: Any = None) -> Any:
    """A pandas DataFrame with a row for each answer and a column for each thing that it says.

    Numbers by label are columns such as `scores.good`. What was asked, texts or `rows` of any kind,
    becomes the first columns, and gives the index; an answer's column whose name is taken there is
    called `predicted_label`. Labels that all are numbers, or true and false, become these.
    Raises: DataError where pandas is missing, or there are more or fewer rows than answers.
    """
    try:
        import pandas
    except ImportError:
        raise DataError("frame: pandas is not installed; pip install pandas") from None
    if isinstance(answers, msgspec.Struct):
        answers, rows = [answers], rows if rows is None else [rows]
    told = pandas.DataFrame([_told(answer) for answer in answers])
    asked = None if rows is None else _asked(rows, pandas)
    if "label" in told and not _are_words(told["label"], asked):
        told["label"] = _as_values(told["label"], answers)
    if asked is None:
        return told
    if len(asked) != len(told):
        raise DataError(f"frame: {len(asked):,} rows and {len(told):,} answers; give as many")
    told.index = asked.index
    told.columns = [free(name, asked.columns) for name in told.columns]
    return pandas.concat([asked, told], axis=1)


def _told(answer: Any) -> dict[str, Any]:
    if isinstance(answer, np.ndarray):
        return {"vector": answer}
    told = msgspec.to_builtins(answer)
    return flat(told) if isinstance(told, Mapping) else {"answer": told}


def _asked(rows: Any, pandas: Any) -> Any:
    """The rows as a DataFrame; a column by itself, and texts, are called text."""
    if isinstance(rows, str):
        rows = [rows]
    if isinstance(rows, Path):
        raise DataError(f"frame: {rows} is a file; read it with pandas, and give the DataFrame")
    if isinstance(rows, pandas.DataFrame):
        return rows
    if isinstance(rows, pandas.Series):
        return rows.to_frame(name=rows.name if rows.name is not None else "text")
    if hasattr(rows, "features") and hasattr(rows, "column_names"):  # of datasets
        return pandas.DataFrame(list(of_dataset(rows)))
    if hasattr(rows, "to_pandas"):  # of polars or pyarrow
        table = rows.to_pandas()
        return table if isinstance(table, pandas.DataFrame) else table.to_frame(name="text")
    if isinstance(rows, Mapping):
        return pandas.DataFrame(rows)
    rows = list(rows)
    if rows and isinstance(rows[0], tuple):
        names = ("text", "pair")[: len(rows[0])]
        return pandas.DataFrame([row[:2] for row in rows], columns=names)
    if rows and isinstance(rows[0], Mapping):
        return pandas.DataFrame(rows)
    return pandas.DataFrame({"text": rows})


def _are_words(labels: Iterable[str], asked: Any) -> bool:
    """Whether a column of the rows has these labels as words, be they numbers."""
    words = set(labels)
    columns = () if asked is None else (asked[name] for name in asked.columns)
    return any(words <= {value for value in column if isinstance(value, str)} for column in columns)


def _as_values(labels: Iterable[str], answers: Iterable[Any]) -> list[Any]:
    """What labels stand for, by all that have a score: those of some rows alone may all be numbers
    where not all labels are.
    """
    known = dict.fromkeys(labels)
    for answer in answers:
        known |= dict.fromkeys(getattr(answer, "scores", None) or ())
    values = dict(zip(known, _values(list(known)), strict=True))
    return [values[label] for label in labels]


def _values(labels: Sequence[str]) -> list[Any]:
    """Labels as what they were before they were written: numbers and truth values."""
    truth = {"True": True, "False": False, "true": True, "false": False}
    kinds: Iterable[Callable[[str], Any]] = (int, number, truth.get)
    for kind in kinds:
        try:
            values = [kind(label) for label in labels]
        except ValueError:
            continue
        written = [str(value) for value in values]
        # .jsonl has true where pandas has True
        if None not in values and list(labels) in (written, [one.lower() for one in written]):
            return values
    return list(labels)
