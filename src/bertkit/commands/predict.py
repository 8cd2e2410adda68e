"""Command that runs a model on texts. Exported models do not require torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, get_origin

import msgspec
from cyclopts import Parameter

from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.config import decode, override
from bertkit.console import lines, say
from bertkit.data.paths import is_table
from bertkit.errors import ConfigError, DataError, did_you_mean
from bertkit.nn.precision import Inference
from bertkit.recipes.predict_file import (
    Row,
    check_out,
    check_tabs,
    predict_file,
    predict_texts,
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
    pipeline: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    header: bool = True,
    separator: str | None = None,
    long: Long | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
    **options: Annotated[list[str], Parameter(show=False)],
) -> Iterator[Any]:
    """Predict with a fine-tuned model, fill masks, or embed tokens.

    Args:
        model: Model directory or hub id, or a directory of `bertkit export --task classify`.
        text: Input texts. Default: the lines of stdin.
        pair: Second text of a pair, context of a question, or choice. Repeatable.
        file: File of examples, in the same format as for training. Labels are optional. - reads
            stdin.
        out: Output path of a .csv, .tsv or .jsonl file, to which the columns of the input and the
            predictions are written. Must not exist.
        task: Task that is not part of bertkit, as module:Class.
        pipeline: Pipeline to run instead of the task of the model: fill-mask (predicts tokens for
            each [MASK]), fill-gap (predicts words for ___ with an ELMo), next-sentence (predicts
            the probability that the pair follows the text), token-embeddings, or a pipeline of an
            extension. The options of the pipeline can be set, such as --top 3 for fill-mask and
            fill-gap, --layer 0 for token-embeddings, or --candidate-labels a,b for
            zero-shot-classification.
        text_column: With --file: column of the text.
        pair_column: With --file: column of the second text.
        header: With --file: whether the first line contains the names of the columns.
        separator: With --file: character that separates the columns, or the word tab. The word
            space splits each line after its first word. Default: a comma for .csv, and a tab for
            other files.
        long: What to do with texts that are too long: raise an error, truncate them, or split them
            into windows. Default: the setting of the task. Texts in a file are truncated instead,
            if the task supports this.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
        options: Options of the pipeline.

    Yields:
        The prediction for each text, unless `out` is set.

    Raises:
        ConfigError: If options cannot be combined, or `out` exists.
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
    for item in text or ():
        if is_table(item):
            raise ConfigError(f"{item}: expected a text, got a file; pass the file with --file")
    if pipeline is not None:
        for name, value in {"file": file, "out": out, "task": task}.items():
            if value is not None:
                raise ConfigError(f"--{name} is not supported with --pipeline; remove --{name}")
        yield from _run_pipeline(pipeline, model, text, pair, long, options, precision, device)
        return
    for name in options:
        parameters = signature(predict).parameters.values()
        known = [p.name.replace("_", "-") for p in parameters if p.kind is p.KEYWORD_ONLY]
        raise ConfigError(
            f"--{name}: no such option without --pipeline; {did_you_mean(name, known)}"
        )
    if out is not None:
        check_out(out)
    answer = open_format(model).load_predictor(LoadSettings(precision, device, task))
    if file is not None:
        # A progress bar would be mixed with predictions that are printed in the terminal.
        watched = out is not None or not sys.stdout.isatty()
        rows, answers = predict_file(answer, file, reading, long=long, watched=watched)
        if out is not None and out.suffix == ".tsv":
            check_tabs(rows)
        answered: Iterator[tuple[Row, Any]] = zip(rows, answers, strict=True)
        columns = list(dict.fromkeys(name for row in rows for name in row))
    else:
        answered = predict_texts(answer, text or lines(), pair or (), long=long)
        columns = []
    if out is None:
        yield from (prediction for _, prediction in answered)
    else:
        say(f"{out}: {write_answers(out, answered, columns):,} rows")


def _run_pipeline(
    name: str,
    model: str,
    text: list[str] | None,
    pair: list[str] | None,
    long: Long | None,
    options: dict[str, list[str]],
    precision: Inference,
    device: str,
) -> Iterator[Any]:
    """Yield the predictions of a pipeline.

    Raises:
        ConfigError: If an option is not supported, or the pipeline does not predict from texts.
        DataError: If the number of texts and pairs differs, or a text is invalid.
    """
    from bertkit.pipelines import pipeline  # This imports torch.
    from bertkit.tasks.inference import ITEMS_PER_CHUNK, batched

    run: Any = pipeline(name, model, precision=precision, device=device)
    item, kind = getattr(run, "item", None), getattr(run, "options", None)
    is_pair = get_origin(item) is tuple
    if kind is None or not (item is str or is_pair):
        raise ConfigError(f"--pipeline {name}: only for Python; remove it to run the model's task")
    if pair and not is_pair:
        raise ConfigError(f"--pair is not supported by the pipeline {name}; remove --pair")
    default = kind()
    names = {option.replace("-", "_"): values for option, values in options.items()}
    settings = [(n, _value_of(values, getattr(default, n, None))) for n, values in names.items()]
    chosen = decode(kind, override({}, settings))
    keywords = {field: getattr(chosen, field) for field in chosen.__struct_fields__}
    if long is not None:
        keywords["long"] = long
    items: Iterable[Any] = text or lines()
    if is_pair:
        first, second = list(items), pair or []
        if len(first) != len(second):
            raise DataError(f"{len(first):,} texts, but {len(second):,} --pair; use one per text")
        items = zip(first, second, strict=True)
    for part in batched(items, ITEMS_PER_CHUNK):
        yield from run.run(run.prepare(part, **keywords))


def _value_of(values: list[str], default: Any) -> str:
    """Return the value of an option as TOML. Repeated options and commas become a list."""
    if isinstance(default, tuple) and not values[0].startswith("["):
        values = [part.strip() for value in values for part in value.split(",")]
    elif len(values) == 1:
        return values[0]
    return msgspec.json.encode(values).decode()
