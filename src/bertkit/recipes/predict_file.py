"""Answers to the rows of a file, beside what stands in them."""

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
from bertkit.storage import csv_line, refuse_used, writing
from bertkit.tasks.examples import read_examples
from bertkit.tasks.inference import STREAM_ITEMS, TEXTS_AT_ONCE, Answering, batched, free
from bertkit.tasks.task import Reading, policy_of_files
from bertkit.tasks.trained_columns import try_rows
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
    source = _source(answer.task.name, file, reading)
    examples = read_examples(
        type(answer.task), source, reading, labelled=False, learned=answer.columns
    )
    given = dict(source.records()) if isinstance(source, Rows) else {}
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
    long = long or policy_of_files(answer.task)
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


def _source(task: str, file: Path, reading: Reading) -> Source:
    """Return the rows of a file, or its path if the task reads another format."""
    kind = suffix(file)
    is_json = kind in (".jsonl", ".parquet") or (file == STDIN and _first(file).startswith("{"))
    is_table = kind in (".csv", ".tsv", ".txt") or file == STDIN or reading.separator is not None
    return try_rows(file, reading) if is_json or (is_table and task != "tag") else file


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
