"""Predictions for the rows of a file, written with the columns of the file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from bertkit.config import flat
from bertkit.console import say
from bertkit.data.document_readers import STDIN, numbered
from bertkit.data.paths import suffix
from bertkit.data.row_readers import Rows, Source
from bertkit.errors import ConfigError, DataError
from bertkit.progress import progress
from bertkit.storage import check_unused, csv_line, writing
from bertkit.tasks.examples import read_examples
from bertkit.tasks.inference import (
    ITEMS_PER_CHUNK,
    TEXTS_PER_BATCH,
    Answering,
    batched,
    unused_column_name,
)
from bertkit.tasks.task import Reading, policy_of_files
from bertkit.tasks.trained_columns import try_rows
from bertkit.text.long_texts import Long

KINDS = (".csv", ".tsv", ".jsonl")

Row = Mapping[str, Any]


def check_out(out: Path) -> None:
    """Check that predictions can be written to a path.

    Args:
        out: Output path.

    Raises:
        ConfigError: If the file exists or its format is not supported.
    """
    if out.suffix not in KINDS:
        raise ConfigError(f"--out must be a .csv, .tsv or .jsonl file, got {out}")
    check_unused(out)


def predict_file(
    answer: Answering[Any],
    file: Path,
    reading: Reading,
    *,
    long: Long | None = None,
    watched: bool = True,
) -> tuple[Sequence[Row], Iterator[Any]]:
    """Read the rows of a file, and predict for each row.

    Args:
        answer: The model.
        file: Path of the file.
        reading: Columns and format of the file.
        long: What to do with texts that are too long: raise an error, truncate them, or split them
            into windows. By default, the task decides; see `policy_of_files`. The number of
            truncated texts is logged.
        watched: Whether to show a progress bar.

    Returns:
        The rows, and an iterator over their predictions.

    Raises:
        DataError: If a row is invalid. The message names the file and the line.
        ConfigError: If the task does not support the value of `long`.
    """
    source = _source(answer.task.name, file, reading)
    examples = read_examples(
        type(answer.task), source, reading, labeled=False, learned=answer.columns
    )
    records = dict(source.records()) if isinstance(source, Rows) else {}
    rows = [records.get(example.where, {"where": example.where}) for example in examples]
    return rows, predict_examples(answer, examples, long=long, watched=watched)


def predict_examples(
    answer: Answering[Any],
    examples: Sequence[Any],
    *,
    long: Long | None = None,
    watched: bool = True,
) -> Iterator[Any]:
    """Yield a prediction for each example.

    Args:
        answer: The model.
        examples: The examples.
        long: What to do with texts that are too long: raise an error, truncate them, or split them
            into windows. By default, the task decides; see `policy_of_files`. The number of
            truncated texts is logged.
        watched: Whether to show a progress bar.
    """
    long = long or policy_of_files(answer.task)
    # Texts that the task compares with each other must be in the same batch.
    size = TEXTS_PER_BATCH if answer.task.batching == "step" else ITEMS_PER_CHUNK
    truncated = 0
    with progress(watched=watched) as bar:
        task = bar.add_task("answering", total=len(examples), note="")
        for part in batched(examples, size):
            for prediction in answer.answers(part, long=long):
                truncated += getattr(prediction, "truncated", False)
                yield prediction
            bar.advance(task, len(part))
    if truncated:
        say(f"{truncated:,} of {len(examples):,} texts were truncated to the maximum length")


def predict_texts(
    answer: Answering[Any], texts: Iterable[str], pair: Sequence[str], *, long: Long | None = None
) -> Iterator[tuple[Row, Any]]:
    """Yield each text, in the form of a row, with its prediction.

    Args:
        answer: The model.
        texts: The texts.
        pair: Second text, or several texts, to combine with each text; empty for single texts.
        long: What to do with texts that are too long. By default, the task decides.
    """
    extra = {"pair": pair[0] if len(pair) == 1 else list(pair)} if pair else {}
    for part in batched(texts, ITEMS_PER_CHUNK):
        answers = answer([(text, pair) if pair else text for text in part], long=long)
        for text, prediction in zip(part, answers, strict=True):
            yield {"text": text, **extra}, prediction


def write_answers(
    out: Path, answered: Iterable[tuple[Row, Any]], columns: Sequence[str] = ()
) -> int:
    """Write rows with their predictions to a .csv, .tsv or .jsonl file.

    In .csv and .tsv files, each label has a column for its score, and lists are written as JSON.
    The file is created atomically at the end.

    Args:
        out: Output path.
        answered: Rows and predictions.
        columns: Columns of all rows. Default: the columns of the first row.

    Returns:
        The number of rows.
    """
    kind, count = out.suffix, 0
    with writing(out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        if kind == ".jsonl":
            for row, answer in answered:
                record = {**row, **_rename(_plain(answer), {*columns, *row})}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                count += 1
        else:
            count = _write_table(file, kind, answered, columns)
    return count


def _write_table(
    file: IO[str], kind: str, answered: Iterable[tuple[Row, Any]], columns: Sequence[str]
) -> int:
    count, names = 0, None
    for row, answer in answered:
        columns = columns or list(row)
        added = _rename(flat(_plain(answer)), columns)
        record = {**dict.fromkeys(columns), **row, **added}
        if names is None:
            names = list(record)
            file.write(_line(names, kind))
        file.write(_line([_cell(record.get(name)) for name in names], kind))
        count += 1
    return count


def _line(cells: Sequence[str], kind: str) -> str:
    """Format a line. Raises DataError if a cell has characters that a .tsv file cannot store."""
    return csv_line(cells) if kind == ".csv" else "\t".join(map(_one_line, cells)) + "\n"


def _one_line(cell: str) -> str:
    """Return a cell of a .tsv file, or raise DataError if it has a tab or a line break."""
    if any(mark in cell for mark in "\t\n\r"):
        raise DataError(
            f"{cell[:40]!r}: .tsv does not support tabs and line breaks; use .csv or .jsonl"
        )
    return cell


def check_tabs(rows: Sequence[Row]) -> None:
    """Check that rows can be written to a .tsv file. The check is made before predicting.

    Args:
        rows: The rows.

    Raises:
        DataError: If a cell contains a tab or a line break.
    """
    for row in rows:
        for name, value in row.items():
            _one_line(name)
            _one_line(_cell(value))


def _source(task: str, file: Path, reading: Reading) -> Source:
    """Return the rows of a file, or its path if the task itself reads the format of the file."""
    kind = suffix(file)
    is_json = kind in (".jsonl", ".parquet") or (file == STDIN and _first(file).startswith("{"))
    is_table = kind in (".tsv", ".txt") or file == STDIN or reading.separator is not None
    is_rows = is_json or kind == ".csv" or (is_table and task != "tag")
    return try_rows(file, reading) if is_rows else file


def _first(file: Path) -> str:
    return numbered(file)[0][1].lstrip()


def _plain(answer: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(answer)
    return plain


def _rename(answer: Row, taken: Collection[str]) -> Row:
    """Rename the fields of a prediction whose names are already columns of the row."""
    return {unused_column_name(name, taken): value for name, value in answer.items()}


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)
