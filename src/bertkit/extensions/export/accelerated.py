"""Engines for int8 models, and for models that `bertkit export tune` has tuned."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bertkit.checkpoint.directory import Loaded
from bertkit.console import say
from bertkit.engine.engine import MAX_BATCH_TOKENS, Engine
from bertkit.engine.packed_linear import Replace
from bertkit.extensions.export.exported import Graph, Runtime
from bertkit.extensions.export.graph_layers import GraphLayers
from bertkit.extensions.export.int8_layers import calibrated, faster, replace_by_rows
from bertkit.extensions.export.int8_record import read_int8
from bertkit.extensions.export.tuning_record import read_tuned
from bertkit.nn.precision import Inference, resolve
from bertkit.threads import own_cores


def accelerated_engine(
    loaded: Loaded,
    precision: Inference,
    *,
    batch_invariant: bool = False,
    device: str | None = None,
    graphs: Callable[[Runtime], Graph] | None = None,
) -> Engine | None:
    """Create an engine for an int8 model, or for a model that was tuned on this machine.

    Returns None if `precision` is auto and the model was not tuned on this machine.

    Args:
        loaded: The model.
        precision: int8, or auto to use the settings that tuning stored, including the number of
            threads.
        batch_invariant: Whether the result for a text must be bit-identical in every batch.
        device: Device of the computation. Default: the device of the model.
        graphs: Function that returns the graph for a runtime, if graphs are already loaded. If it
            is given, the stored settings are not logged.
    """
    int8: Replace | None = None
    max_batch_tokens = MAX_BATCH_TOKENS
    tuned = read_tuned(loaded.folder) if precision == "auto" else None
    if tuned is not None:
        precision, max_batch_tokens = tuned.precision, tuned.max_batch_tokens
        threads = min(tuned.threads, own_cores())
        torch.set_num_threads(threads)
        if graphs is None:
            say(
                f"precision: {precision}, {max_batch_tokens:,} tokens per batch, {threads} "
                f"threads, {tuned.engine_description}, as tuned on this machine"
            )
    elif precision == "auto":
        return None
    if precision == "int8" and "lm" in loaded.model.heads:
        # In generative models, the states of a few tokens are a thousand times as large as the
        # states of other tokens, so one scale per layer is not enough.
        int8, precision = replace_by_rows, "fp32"
    elif precision == "int8":
        stored, _ = read_int8(loaded.folder, loaded.fingerprint())
        int8, precision = calibrated(faster(stored, resolve("auto", "cpu"))), "auto"
    engine = Engine(
        loaded.model,
        precision=precision,
        max_batch_tokens=max_batch_tokens,
        batch_invariant=batch_invariant,
        int8=int8,
        device=device,
    )
    if tuned is None or not tuned.runtimes or batch_invariant:
        return engine
    graphs = graphs or tuned.graphs(loaded.folder)
    for runtime in tuned.runtimes:
        # Load the graphs now, because the directory may change later.
        graphs(runtime).ready()
    return engine.with_faster_layers(
        GraphLayers(graphs, tuned.runtime, tuned.pooling, engine.dtype)
    )
