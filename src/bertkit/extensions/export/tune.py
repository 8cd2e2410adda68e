"""The command `export tune`, which finds and stores a model's fastest settings on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded, load
from bertkit.console import say
from bertkit.data.local_text import documents
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.export.exported import Runtime
from bertkit.extensions.export.graph_layers import GraphLayers
from bertkit.extensions.export.int8_layers import unavailable
from bertkit.extensions.export.int8_record import FILE as INT8
from bertkit.extensions.export.int8_record import read_int8
from bertkit.extensions.export.quantize import MIN_COSINE, read_texts
from bertkit.extensions.export.tuning_record import (
    COUNTS,
    GRAPH_DIRECTORY,
    NAMES,
    EngineName,
    Tuned,
    cell,
    processor_and_instructions,
    records,
    versions,
    weights_of,
    write_tuned,
)
from bertkit.metrics import cosines
from bertkit.nn.precision import Inference, has_bf16
from bertkit.pipelines import Embed, Work, open_engine
from bertkit.storage import new_folder
from bertkit.threads import thread_limit

TIMED_TEXTS = 512
"""Number of texts that the model embeds in each measurement."""

BUDGETS = (1024, 2048, 4096, 8192, 16384)
"""Batch sizes to time, in tokens."""

TIMED_ROUNDS = 3
"""Number of times that each choice is measured, alternating with other choices. The median is
used."""

C = TypeVar("C")


def tune(
    model: str | Path,
    texts: Sequence[Path] | None = None,
    /,
    *,
    min_cosine: float = MIN_COSINE,
    precision: Inference = "auto",
) -> dict[str, Any]:
    """Find the fastest settings of a model on this machine.

    The command times precisions, batch sizes and numbers of threads, and stores the fastest in the
    model directory. If ONNX Runtime or OpenVINO is installed and the model has layers like BERT's,
    the command also compares bertkit's engine with a graph, for few and many texts and for short
    and long texts.

    Args:
        model: Model directory, which must be writable.
        texts: .txt files with one text per line, or .jsonl files. The best settings depend on the
            length of the texts. Default: English text that is installed with Python.
        min_cosine: Minimum cosine similarity between an embedding and the fp32 embedding of the
            same text. Precisions and runtimes with a lower similarity are skipped.
        precision: Precision for which to find the fastest settings. auto tries all precisions.

    Returns:
        The fastest settings, and the speed of every setting that was timed, in texts per second.

    Raises:
        ConfigError: If the directory is not writable, or the precision is not supported.
        DataError: If the files contain no text.
    """
    loaded = _load_writable(model)
    weights = weights_of(loaded.folder)
    # Check that the file of earlier results is valid before spending time on measurements.
    records(loaded.folder)
    works = _timed_works(loaded, texts)
    tried: dict[str, dict[Any, Any]] = {}

    def fastest(setting: str, choices: Mapping[C, Callable[[], object]]) -> C:
        tried[setting] = rates = {c: len(works) / s for c, s in _seconds(choices).items()}
        for choice, rate in rates.items():
            say(f"{setting} {choice}: {rate:,.0f} texts/s")
        return max(choices, key=lambda choice: rates[choice])

    def runs(choices: Mapping[C, Embed]) -> dict[C, Callable[[], object]]:
        return {choice: partial(embed.run, works) for choice, embed in choices.items()}

    # Never use more threads than this process is allowed to use.
    torch.set_num_threads(min(torch.get_num_threads(), thread_limit()))
    precisions, exact = _precisions(loaded, works, min_cosine)
    if precision not in ("auto", *precisions):
        raise ConfigError(
            f"precision: this machine does not support {precision}, or the cosine similarity is "
            f"below --min-cosine; use {' or '.join(precisions)}, or auto"
        )
    if precision == "auto":
        precision = fastest("precision", runs(precisions))
    else:
        fastest("precision", runs({precision: precisions[precision]}))
    chosen = precisions[precision].engine
    sizes = {size: Embed(loaded, chosen.with_max_batch_tokens(size)) for size in BUDGETS}
    max_batch_tokens = fastest("max_batch_tokens", runs(sizes))
    run = partial(sizes[max_batch_tokens].run, works)
    counts = sorted({min(2**power, thread_limit()) for power in range(12)})
    threads = fastest("threads", {count: partial(_with_threads, count, run) for count in counts})
    packed = sizes[max_batch_tokens]
    choice = Tuned(
        processor=processor_and_instructions(),
        cores=thread_limit(),
        precision=precision,
        max_batch_tokens=max_batch_tokens,
        threads=threads,
        texts_per_second=tried["threads"][threads],
        pooling=packed.pooling.mode,
        versions=versions(),
        weights=weights,
    )
    # Store this result before the graph that an older result uses is deleted.
    write_tuned(loaded.folder, choice)
    engines = _time_engines(loaded, packed, choice, works, exact, min_cosine, tried)
    write_tuned(loaded.folder, msgspec.structs.replace(choice, engines=engines))
    settings = {"precision": precision, "max_batch_tokens": max_batch_tokens, "threads": threads}
    return {**settings, "engines": engines, "tried": tried}


def _load_writable(model: str | Path) -> Loaded:
    """Load a model from a directory, and check that the settings can be stored there.

    Raises:
        ConfigError: If the model is a file, or its directory is not writable.
    """
    loaded = load(model)
    if not loaded.folder.is_dir():
        raise ConfigError(
            f"{model}: expected a model directory to store the settings in, got a file"
        )
    if not os.access(loaded.folder, os.W_OK):
        raise ConfigError(f"{loaded.folder}: not writable; copy the directory and tune the copy")
    return loaded


def _timed_works(loaded: Loaded, texts: Sequence[Path] | None) -> list[Work]:
    """Read and tokenize the texts to time.

    Raises:
        DataError: If the files contain no text.
    """
    samples = (read_texts(texts) if texts else _local_texts())[:TIMED_TEXTS]
    if not samples:
        raise DataError("the files contain no text; use files with typical texts")
    works = Embed(loaded, "fp32").prepare(samples, long="truncate")
    tokens = sum(work.tokens for work in works)
    say(f"timing {len(works)} texts with {tokens:,} tokens, starting with the precisions")
    return works


def _time_engines(
    loaded: Loaded,
    packed: Embed,
    choice: Tuned,
    works: Sequence[Work],
    exact: NDArray[np.float32],
    min_cosine: float,
    tried: dict[str, dict[Any, Any]],
) -> dict[str, EngineName]:
    """Return the fastest engine for one, few and many texts, each for short and long texts.

    The graph is kept in the model directory if it is the fastest in any of these cases.
    """
    out = loaded.folder / GRAPH_DIRECTORY
    if out.exists():
        shutil.rmtree(out)
    if reason := _no_graph(loaded, choice.precision):
        say(f"engine: packed batches only, because {reason}")
        return {}
    _write_graph(loaded, packed, choice.precision, out)
    engines: dict[EngineName, Callable[[Sequence[Work]], object]] = {
        "packed": partial(_with_threads, choice.threads, packed.run)
    }
    graphs = choice.graphs(loaded.folder)
    for runtime in _runtimes(choice.precision):
        layers = GraphLayers(graphs, _always(runtime), choice.pooling, packed.engine.dtype)
        embed = Embed(loaded, packed.engine.with_faster_layers(layers))
        try:
            nearest = cosines(embed.run(works), exact).min()
        except CheckpointError as error:
            say(f"engine: {NAMES[runtime]} skipped ({error})")
            continue
        if nearest >= min_cosine:
            engines[runtime] = embed.run
        else:
            say(f"engine: {NAMES[runtime]} skipped, lowest cosine similarity {nearest:.4f}")
    if len(engines) == 1:
        shutil.rmtree(out)
        return {}
    order = sorted(works, key=lambda work: work.tokens)
    chosen: dict[str, EngineName] = {}
    for half in (order[: len(order) // 2 + 1], order[len(order) // 2 :]):
        part = half[:: max(1, len(half) // COUNTS[-1])]
        mean = sum(work.tokens for work in part) // len(part)
        for count in (count for count in COUNTS if count <= len(part)):
            name = cell([mean] * count)
            if name in chosen:
                continue
            batches = [part[n : n + count] for n in range(0, len(part) - count + 1, count)]
            seconds = _seconds({e: partial(_call_each, run, batches) for e, run in engines.items()})
            rates = {engine: len(batches) * count / s for engine, s in seconds.items()}
            tried.setdefault("engines", {})[name] = rates
            say(f"engine, {name}: " + ", ".join(f"{e} {r:,.0f} texts/s" for e, r in rates.items()))
            chosen[name] = max(rates, key=lambda engine: rates[engine])
    if set(chosen.values()) <= {"packed"}:
        shutil.rmtree(out)
    return chosen


def _always(runtime: Runtime) -> Callable[[Sequence[int]], Runtime]:
    return lambda _: runtime


def _call_each(call: Callable[[Any], object], parts: Sequence[Any]) -> None:
    for part in parts:
        call(part)


def _runtimes(precision: Inference) -> list[Runtime]:
    """Return the installed runtimes that support a precision. OpenVINO does not support int8."""
    runtimes: tuple[Runtime, ...] = get_args(Runtime)
    return [
        name
        for name in runtimes
        if importlib.util.find_spec(name) and (name, precision) != ("openvino", "int8")
    ]


def _no_graph(loaded: Loaded, precision: Inference) -> str | None:
    """Return why graphs cannot be timed for a model, or None if they can."""
    if not _runtimes(precision):
        return "ONNX Runtime and OpenVINO are not installed (pip install 'bertkit[export]')"
    if importlib.util.find_spec("onnx") is None:
        return "onnx is not installed (pip install 'bertkit[export]')"
    from bertkit.extensions.export.graph import unsupported_reason
    from bertkit.extensions.export.graph_export import too_large

    return unsupported_reason(loaded.model) or too_large(loaded.model)


def _write_graph(loaded: Loaded, packed: Embed, precision: Inference, out: Path) -> None:
    """Export a model to a directory with a graph that does not normalize embeddings."""
    from bertkit.extensions.export.graph import build, write
    from bertkit.extensions.export.graph_export import write_record

    int8 = None
    if precision == "int8":
        int8, _ = read_int8(loaded.folder, loaded.fingerprint())
    pooling = replace(packed.pooling, normalize=False)
    with new_folder(out) as partial_folder:
        write(build(loaded.model, pooling, int8=int8), partial_folder)
        loaded.tokenizer.save(partial_folder, segments=loaded.model.config.token_types > 1)
        metadata = {
            "fingerprint": packed.fingerprint(),
            "similarity": pooling.similarity,
            "normalize": packed.pooling.normalize,
        }
        write_record(partial_folder, "onnx", pooling, packed.dimension, loaded.length, metadata)


def _precisions(
    loaded: Loaded, works: Sequence[Work], min_cosine: float
) -> tuple[dict[Inference, Embed], NDArray[np.float32]]:
    """Return embedders for the precisions close enough to fp32, and the fp32 embeddings."""
    exact = Embed(loaded, open_engine(loaded, "fp32"))
    vectors = exact.run(works)
    precisions: dict[Inference, Embed] = {"fp32": exact}
    others: dict[Inference, bool] = {
        "bf16": has_bf16("cpu"),
        "int8": (loaded.folder / INT8).exists() and unavailable() is None,
    }
    for precision in (name for name, available in others.items() if available):
        embed = Embed(loaded, open_engine(loaded, precision))
        nearest = cosines(embed.run(works), vectors).min()
        if nearest >= min_cosine:
            precisions[precision] = embed
        else:
            say(f"{precision} skipped: lowest cosine similarity {nearest:.4f}, below {min_cosine}")
    return precisions, vectors


def _seconds(choices: Mapping[C, Callable[[], object]]) -> dict[C, float]:
    """Measure the median time of each choice, in seconds."""
    times: dict[C, list[float]] = {choice: [] for choice in choices}
    for round_ in range(TIMED_ROUNDS + 1):
        for choice, call in choices.items():
            start = time.perf_counter()
            call()
            # The first round is only a warm-up.
            if round_:
                times[choice].append(time.perf_counter() - start)
    return {choice: median(values) for choice, values in times.items()}


def _with_threads(count: int, run: Callable[..., object], *arguments: object) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        run(*arguments)
    finally:
        torch.set_num_threads(before)


def _local_texts() -> list[str]:
    """Return paragraphs of the Python reference, which is installed with Python."""
    paragraphs: list[str] = []
    for _, text in documents():
        paragraphs += (" ".join(part.split()) for part in text.split("\n\n") if part.strip())
        if len(paragraphs) >= TIMED_TEXTS:
            break
    return paragraphs
