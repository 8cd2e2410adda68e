"""The command that asks a fine-tuned model; an exported one needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.console import lines, say
from bertkit.data.paths import is_table
from bertkit.errors import ConfigError
from bertkit.nn.precision import Inference
from bertkit.recipes.predict_file import (
    Row,
    answered_file,
    answered_texts,
    check_out,
    refuse_tabs,
    write_answers,
)
from bertkit.tasks.task import Reading
from bertkit.text.long_texts import Long


def predict(
    model: str,
    text: list[str] | None = None,
    /,
    *,
    pair: list[str] | None = None,
    file: Path | None = None,
    out: Path | None = None,
    task: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    header: bool = True,
    separator: str | None = None,
    long: Long | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
) -> Iterator[Any]:
    """Answers to texts, from any fine-tuned model.

    Args:
        model: A fine-tuned model folder or hub id, or a folder of `bertkit export --task classify`.
        text: Input texts; by default the lines of stdin.
        pair: What goes with the text: the second of a pair, a question's context, each choice.
        file: Examples as for training, labels are optional; - is stdin.
        out: A .csv, .tsv or .jsonl file, to be made, with the columns of the input and the answers.
        task: module:Class, for a task from outside the package.
        text_column: With --file: column of the text.
        pair_column: With --file: column of the second text.
        header: With --file: whether the first line contains the names of the columns.
        separator: With --file: character that separates columns, tab, or space to split a line
            after its first word. Default: a comma in .csv, otherwise a tab.
        long: What to do with texts longer than the model; by default what the task does, and those
            of a file are cut.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    if file is not None and (text or pair):
        raise ConfigError("--file: its rows are answered; leave out other texts, or the file")
    reading = Reading(
        text_column=text_column, pair_column=pair_column, header=header, separator=separator
    )
    if file is None and reading != Reading():
        raise ConfigError("--text-column, --pair-column, --no-header, --separator: go with --file")
    for one in text or ():
        if is_table(one):
            raise ConfigError(f"{one}: a file, and not a text; its rows are answered with --file")
    if out is not None:
        check_out(out)
    answer = open_format(model).load_predictor(LoadSettings(precision, device, task))
    if file is not None:
        watched = out is not None or not sys.stdout.isatty()  # lines would break the bar
        rows, answers = answered_file(answer, file, reading, long=long, watched=watched)
        if out is not None and out.suffix == ".tsv":
            refuse_tabs(rows)
        answered: Iterator[tuple[Row, Any]] = zip(rows, answers, strict=True)
        columns = list(dict.fromkeys(name for row in rows for name in row))
    else:
        answered = answered_texts(answer, text or lines(), pair or (), long=long)
        columns = []
    if out is None:
        yield from (one for _, one in answered)
    else:
        say(f"{out}: {write_answers(out, answered, columns):,} rows")
