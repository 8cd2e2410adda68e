"""Answers to the rows of a file, beside what stands in them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from bertkit.config import flat
from bertkit.console import say
from bertkit.data.given import json_value
from bertkit.data.paths import suffix
from bertkit.data.readers import STDIN, json_object, numbered, parquet_rows
from bertkit.data.tables import rows
from bertkit.errors import ConfigError, DataError
from bertkit.progress import progress
from bertkit.storage import csv_line, refuse_used, writing
from bertkit.tasks.examples import read_examples
from bertkit.tasks.inference import STREAM_ITEMS, TEXTS_AT_ONCE, Answering, batched, free
from bertkit.tasks.task import Reading
from bertkit.tasks.trained_columns import as_learned
from bertkit.text.long_texts import Long

KINDS = (".csv", ".tsv", ".jsonl")

Row = Mapping[str, Any]


def check_out(out: Path) -> None:
    """Raises: ConfigError for a file that is there already, or of a kind that is not written."""
    if out.suffix not in KINDS:
        raise ConfigError(f"{out}: answers are written as .csv, .tsv or .jsonl; name such a file")
    refuse_used(out)


def answered_file(
    answer: Answering[Any],
    file: Path,
    reading: Reading,
    *,
    long: Long | None = None,
    watched: bool = True,
) -> tuple[Sequence[Row], Iterator[Any]]:
    """The rows of a file, and an answer for each as it comes.

    Texts longer than the model are cut unless `long` says otherwise; how many is said. A bar shows
    how far it is, where it is `watched`.
    Raises: DataError naming file and line, ConfigError for a policy that the task has not.
    """
    reading = as_learned(reading, answer.columns, file, labelled=False)
    examples = read_examples(
        type(answer.task), file, reading, labelled=False, learned=answer.columns
    )
    given = _input(answer.task.name, file, reading)
    held = [given.get(example.where, {"where": example.where}) for example in examples]
    return held, answered(answer, examples, long=long, watched=watched)


def answered(
    answer: Answering[Any],
    examples: Sequence[Any],
    *,
    long: Long | None = None,
    watched: bool = True,
) -> Iterator[Any]:
    """An answer for each example as it comes; long ones are cut, and counted, as those of files."""
    long = long or answer.task.long_of_files()
    # texts that are compared with each other are answered together
    size = TEXTS_AT_ONCE if answer.task.batching == "step" else STREAM_ITEMS
    cut = 0
    with progress(watched=watched) as bar:
        task = bar.add_task("answering", total=len(examples), note="")
        for part in batched(examples, size):
            for one in answer.answers(part, long=long):
                cut += getattr(one, "truncated", False)
                yield one
            bar.advance(task, len(part))
    if cut:
        say(f"{cut:,} of {len(examples):,} texts are longer than the model reads and were cut")


def answered_texts(
    answer: Answering[Any], texts: Iterable[str], pair: Sequence[str], *, long: Long | None = None
) -> Iterator[tuple[Row, Any]]:
    """Each text as a row, with its answer."""
    beside = {"pair": pair[0] if len(pair) == 1 else list(pair)} if pair else {}
    for part in batched(texts, STREAM_ITEMS):
        answers = answer([(text, pair) if pair else text for text in part], long=long)
        for text, one in zip(part, answers, strict=True):
            yield {"text": text, **beside}, one


def write_answers(
    out: Path, answered: Iterable[tuple[Row, Any]], columns: Sequence[str] = ()
) -> int:
    """Write rows with their answers as .csv, .tsv or .jsonl; how many there are.

    In tables a score of each label is a column, and lists are JSON. `columns` are those of all
    rows; by default those of the first. The file appears when all are written.
    """
    kind, count = out.suffix, 0
    with writing(out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        if kind == ".jsonl":
            for row, answer in answered:
                joined = {**row, **_named(_plain(answer), {*columns, *row})}
                file.write(json.dumps(joined, ensure_ascii=False) + "\n")
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
        told = _named(flat(_plain(answer)), columns)
        joined = {**dict.fromkeys(columns), **row, **told}
        if names is None:
            names = list(joined)
            file.write(_line(names, kind))
        file.write(_line([_cell(joined.get(name)) for name in names], kind))
        count += 1
    return count


def _line(cells: Sequence[str], kind: str) -> str:
    """Raises: DataError for what a .tsv file cannot hold."""
    return csv_line(cells) if kind == ".csv" else "\t".join(map(_one_line, cells)) + "\n"


def _one_line(cell: str) -> str:
    """Raises: DataError for what a .tsv file cannot hold."""
    if any(mark in cell for mark in "\t\n\r"):
        raise DataError(
            f"{cell[:40]!r}: a tab or a line break, which .tsv cannot hold; write .csv or .jsonl"
        )
    return cell


def refuse_tabs(held: Sequence[Row]) -> None:
    """Raises: DataError for rows that a .tsv file cannot hold, before there are answers."""
    for row in held:
        for name, value in row.items():
            _one_line(name)
            _one_line(_cell(value))


def _input(task: str, file: Path, reading: Reading) -> dict[str, Row]:
    """The rows of a file by where they stand; none of one that has no rows."""
    if suffix(file) == ".jsonl" or (file == STDIN and _first(file).startswith("{")):
        lines = ((f"{file}:{number}", line.encode()) for number, line in numbered(file))
        return {where: json_object(line, where) for where, line in lines}
    if suffix(file) == ".parquet":
        return {
            f"{file}[{number}]": {name: json_value(value) for name, value in row.items()}
            for number, row in enumerate(parquet_rows(file))
        }
    is_table = suffix(file) in (".csv", ".tsv", ".txt") or reading.separator is not None
    if task == "tag" or not (is_table or file == STDIN):
        return {}
    named = [name for name in (reading.text, reading.pair) if name is not None]
    try:
        table = rows(
            file,
            header=reading.header,
            separator=reading.separator,
            named=named if reading.text is not None else (),
        )
    except DataError:  # of a form that the task knows
        return {}
    places = zip(table.lines, table.rows, strict=True)
    return {f"{file}:{line}": row for line, row in places}


def _first(file: Path) -> str:
    return numbered(file)[0][1].lstrip()


def _plain(answer: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(answer)
    return plain


def _named(answer: Row, taken: Collection[str]) -> Row:
    return {free(name, taken): value for name, value in answer.items()}


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)
