"""Conversion of predictions to a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bertkit.config import flat
from bertkit.data.labels import number
from bertkit.data.rows_in_memory import read_dataset
from bertkit.errors import DataError
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import unused_column_name


@check_keywords
def frame(answers: Any, rows: Any = None) -> Any:
    """Convert predictions to a DataFrame with one row per prediction and one column per field.

    The scores of labels become columns such as `scores.good`. If a column of `rows` already has the
    name of a field, the column of the field gets the prefix `predicted_`. Labels are converted to
    numbers or to booleans if all of them can be converted.

    Args:
        answers: One prediction, or several.
        rows: Inputs of the predictions, as texts or rows. They become the first columns, and they
            determine the index.

    Returns:
        The DataFrame.

    Raises:
        DataError: If pandas is not installed, or the numbers of rows and predictions differ.
    """
    try:
        import pandas
    except ImportError:
        raise DataError("frame: pandas is not installed; run pip install pandas") from None
    if isinstance(answers, msgspec.Struct):
        answers, rows = [answers], rows if rows is None else [rows]
    outputs = pandas.DataFrame([_fields(answer) for answer in answers])
    inputs = None if rows is None else _to_frame(rows, pandas)
    if "label" in outputs and not _are_strings(outputs["label"], inputs):
        outputs["label"] = _convert_labels(outputs["label"], answers)
    if inputs is None:
        return outputs
    if len(inputs) != len(outputs):
        raise DataError(f"frame: {len(inputs):,} rows, but {len(outputs):,} predictions")
    outputs.index = inputs.index
    outputs.columns = [unused_column_name(name, inputs.columns) for name in outputs.columns]
    return pandas.concat([inputs, outputs], axis=1)


def _fields(answer: Any) -> dict[str, Any]:
    if isinstance(answer, np.ndarray):
        return {"vector": answer}
    value = msgspec.to_builtins(answer)
    return flat(value) if isinstance(value, Mapping) else {"answer": value}


def _to_frame(rows: Any, pandas: Any) -> Any:
    """Convert rows to a DataFrame. A list of texts becomes the column `text`."""
    if isinstance(rows, str):
        rows = [rows]
    if isinstance(rows, Path):
        raise DataError(f"frame: {rows} is a file; read it with pandas and pass the DataFrame")
    if isinstance(rows, pandas.DataFrame):
        return rows
    if isinstance(rows, pandas.Series):
        return rows.to_frame(name=rows.name if rows.name is not None else "text")
    # The rows are a Dataset of Hugging Face datasets.
    if hasattr(rows, "features") and hasattr(rows, "column_names"):
        return pandas.DataFrame(list(read_dataset(rows)))
    # The rows are a table of polars or pyarrow.
    if hasattr(rows, "to_pandas"):
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


def _are_strings(labels: Iterable[str], inputs: Any) -> bool:
    """Return whether a column of the inputs contains these labels as strings."""
    strings = set(labels)
    columns = () if inputs is None else (inputs[name] for name in inputs.columns)
    return any(strings <= {v for v in column if isinstance(v, str)} for column in columns)


def _convert_labels(labels: Iterable[str], answers: Iterable[Any]) -> list[Any]:
    """Convert labels to numbers or booleans, if this is possible for all labels with a score."""
    known = dict.fromkeys(labels)
    for answer in answers:
        known |= dict.fromkeys(getattr(answer, "scores", None) or ())
    values = dict(zip(known, _parse(list(known)), strict=True))
    return [values[label] for label in labels]


def _parse(labels: Sequence[str]) -> list[Any]:
    """Convert labels to numbers or booleans. Return them unchanged if one of them is neither."""
    booleans = {"True": True, "False": False, "true": True, "false": False}
    parsers: Iterable[Callable[[str], Any]] = (int, number, booleans.get)
    for parse in parsers:
        try:
            values = [parse(label) for label in labels]
        except ValueError:
            continue
        written = [str(value) for value in values]
        # Booleans may be written as true (JSON) or True (pandas).
        if None not in values and list(labels) in (written, [text.lower() for text in written]):
            return values
    return list(labels)
