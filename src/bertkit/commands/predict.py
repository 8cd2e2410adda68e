"""The command that predicts with a model; an exported model needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.config import Count
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

PipelineName = Literal["fill-mask", "fill-gap", "next-sentence", "token-embeddings"]

OPTIONS: dict[str | None, tuple[str, ...]] = {
    "fill-mask": ("top",),
    "fill-gap": ("top",),
    "next-sentence": ("pair", "long"),
    "token-embeddings": ("layer", "long"),
    None: ("file", "out", "task", "pair", "long"),
}
"""Options that each pipeline supports, and the task of a model."""


def predict(
    model: str,
    text: list[str] | None = None,
    /,
    *,
    pair: list[str] | None = None,
    file: Path | None = None,
    out: Path | None = None,
    task: str | None = None,
    pipeline: PipelineName | None = None,
    top: Count | None = None,
    layer: int | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    header: bool = True,
    separator: str | None = None,
    long: Long | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
) -> Iterator[Any]:
    """Predict with a fine-tuned model, fill masks, or embed tokens.

    Args:
        model: Model directory or hub id, or a directory of `bertkit export --task classify`.
        text: Input texts. Default: the lines of stdin.
        pair: Second text of a pair, context of a question, or choice. Repeatable.
        file: Examples as for training, labels are optional; - is stdin.
        out: Output path of a .csv, .tsv or .jsonl file with the columns of the input and the
            predictions. Must not exist.
        task: module:Class, for a task from outside the package.
        pipeline: Pipeline to run instead of the task of the model: fill-mask (tokens for each
            [MASK]), fill-gap (words for ___, with an ELMo), next-sentence (probability that the
            pair follows the text), or token-embeddings.
        top: Number of candidates of fill-mask and fill-gap. Default: 10.
        layer: Layer of token-embeddings. 0 is the embedding layer. Default: the last layer.
        text_column: With --file: column of the text.
        pair_column: With --file: column of the second text.
        header: With --file: whether the first line contains the names of the columns.
        separator: With --file: character that separates columns, tab, or space to split a line
            after its first word. Default: a comma in .csv, otherwise a tab.
        long: What to do with texts longer than the model. Default: the behavior of the task; texts
            of a file are truncated.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    if file is not None and (text or pair):
        raise ConfigError("--file cannot be combined with texts or --pair; remove one of them")
    reading = Reading(
        text_column=text_column, pair_column=pair_column, header=header, separator=separator
    )
    if file is None and reading != Reading():
        raise ConfigError(
            "--text-column, --pair-column, --no-header and --separator require --file"
        )
    for one in text or ():
        if is_table(one):
            raise ConfigError(f"{one}: a file, not a text; pass it with --file")
    given = {"file": file, "out": out, "task": task, "pair": pair}
    options = {"top": top, "layer": layer, "long": long}
    _check_options(pipeline, given | options)
    if pipeline is not None:
        options = {name: value for name, value in options.items() if value is not None}
        yield from _run_pipeline(pipeline, model, text, pair, options, precision, device)
        return
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


def _check_options(pipeline: PipelineName | None, given: dict[str, Any]) -> None:
    """Raise ConfigError for an option that the pipeline does not support."""
    for name, value in given.items():
        if value is not None and name not in OPTIONS[pipeline]:
            supporting = ", ".join(key for key in OPTIONS if key and name in OPTIONS[key])
            remedy = f"use it with --pipeline {supporting}" if supporting else "remove it"
            what = pipeline or "the task of a model"
            raise ConfigError(f"--{name}: not supported by {what}; {remedy}")


def _run_pipeline(
    name: PipelineName,
    model: str,
    text: list[str] | None,
    pair: list[str] | None,
    options: dict[str, Any],
    precision: Inference,
    device: str,
) -> Iterator[Any]:
    """Yield the predictions of a pipeline."""
    from bertkit.pipelines import pipeline  # imports torch
    from bertkit.pipelines.base import batched
    from bertkit.tasks.inference import STREAM_ITEMS

    run: Any = pipeline(name, model, precision=precision, device=device)
    if name == "next-sentence":
        yield from run(text or list(lines()), pair or [], **options)
    elif name == "token-embeddings":
        for part in batched(text or lines(), STREAM_ITEMS):
            for answer in run(part, **options):
                yield {
                    "tokens": answer.tokens,
                    "offsets": answer.offsets.tolist(),
                    "embeddings": answer.embeddings.tolist(),
                }
    else:
        yield from run(text or list(lines()), **options)
