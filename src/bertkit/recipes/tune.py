"""Find out what a model is fastest with on this machine, and remember it in its folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from bertkit.checkpoint.folder import Loaded, load
from bertkit.checkpoint.int8 import FILE as INT8
from bertkit.checkpoint.tuned import Tuned, processor, write_tuned
from bertkit.console import say
from bertkit.data.local_text import documents
from bertkit.engine.quantize import unavailable
from bertkit.errors import ConfigError, DataError
from bertkit.memory import cores
from bertkit.metrics import cosines
from bertkit.nn.precision import Inference, has_bf16
from bertkit.pipelines import Embed, Work, open_engine
from bertkit.recipes.quantize import LOWEST, read_texts

TEXTS = 512
"""As many are embedded, over and over."""

BUDGETS = (1024, 2048, 4096, 8192, 16384)
"""Tokens of a batch that are tried."""

ROUNDS = 3
"""Each choice is timed so often, in turn with the others; the median counts."""

C = TypeVar("C")


def tune(
    model: str | Path, texts: Sequence[Path] | None = None, /, *, lowest: float = LOWEST
) -> dict[str, Any]:
    """What a model is fastest with on this machine, for --precision auto.

    Precisions are timed, then tokens of a batch, then threads. `precision="auto"` takes it from
    then on, on this machine. `texts` are files of texts like those to come, for the answer depends
    on their length; by default English that is there already. A precision is left out if a vector
    has a cosine below `lowest` to its fp32 one. Returns: the choice, and the texts per second of
    all that was tried.
    Raises: ConfigError for a folder that cannot be written to, DataError for files without a text.

    Args:
        model: A model folder, which remembers it.
        texts: .txt files, a text a line, or .jsonl: texts like those to come. By default English.
        lowest: A precision is left out if a vector has a lower cosine to its fp32 one.
    """
    loaded = load(model)
    if not os.access(loaded.folder, os.W_OK):
        raise ConfigError(f"{loaded.folder}: cannot be written to; copy the folder and tune that")
    samples = (read_texts(texts) if texts else _local_texts())[:TEXTS]
    if not samples:
        raise DataError("texts: there is none in these files; give some like those to come")
    works = Embed(loaded, "fp32").prepare(samples, long="truncate")
    tried: dict[str, dict[Any, float]] = {}

    def fastest(setting: str, choices: Mapping[C, Callable[[], object]]) -> C:
        tried[setting] = rates = {c: len(works) / s for c, s in _seconds(choices).items()}
        for choice, rate in rates.items():
            say(f"{setting} {choice}: {rate:,.0f} texts/s")
        return max(choices, key=lambda choice: rates[choice])

    def runs(choices: Mapping[C, Embed]) -> dict[C, Callable[[], object]]:
        return {choice: partial(embed.run, works) for choice, embed in choices.items()}

    precisions = _precisions(loaded, works, lowest)
    precision = fastest("precision", runs(precisions))
    chosen = precisions[precision].engine
    sizes = {size: Embed(loaded, chosen.with_max_batch_tokens(size)) for size in BUDGETS}
    max_batch_tokens = fastest("max_batch_tokens", runs(sizes))
    run = partial(sizes[max_batch_tokens].run, works)
    counts = sorted({min(2**power, cores()) for power in range(12)})
    threads = fastest("threads", {count: partial(_with_threads, count, run) for count in counts})
    choice = Tuned(
        processor=processor(),
        cores=cores(),
        precision=precision,
        max_batch_tokens=max_batch_tokens,
        threads=threads,
        texts_per_second=tried["threads"][threads],
    )
    write_tuned(loaded.folder, choice)
    return {
        "precision": precision,
        "max_batch_tokens": max_batch_tokens,
        "threads": threads,
        "tried": tried,
    }


def _precisions(loaded: Loaded, works: Sequence[Work], lowest: float) -> dict[Inference, Embed]:
    """The precisions of this machine whose vectors are near enough to those of fp32."""
    exact = Embed(loaded, open_engine(loaded, "fp32"))
    vectors = exact.run(works)
    known: dict[Inference, Embed] = {"fp32": exact}
    others: dict[Inference, bool] = {
        "bf16": has_bf16("cpu"),
        "int8": (loaded.folder / INT8).exists() and unavailable() is None,
    }
    for precision in (name for name, there in others.items() if there):
        embed = Embed(loaded, open_engine(loaded, precision))
        nearest = cosines(embed.run(works), vectors).min()
        if nearest >= lowest:
            known[precision] = embed
        else:
            say(f"{precision}: left out; its lowest cosine is {nearest:.4f}, below {lowest}")
    return known


def _seconds(choices: Mapping[C, Callable[[], object]]) -> dict[C, float]:
    """The median time of each."""
    times: dict[C, list[float]] = {choice: [] for choice in choices}
    for round_ in range(ROUNDS + 1):
        for choice, call in choices.items():
            start = time.perf_counter()
            call()
            if round_:  # the first only warms up
                times[choice].append(time.perf_counter() - start)
    return {choice: median(each) for choice, each in times.items()}


def _with_threads(count: int, run: Callable[[], object]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        run()
    finally:
        torch.set_num_threads(before)


def _local_texts() -> list[str]:
    """Paragraphs of the Python reference, short and long."""
    paragraphs: list[str] = []
    for _, text in documents():
        paragraphs += (" ".join(part.split()) for part in text.split("\n\n") if part.strip())
        if len(paragraphs) >= TEXTS:
            break
    return paragraphs
