"""Quantize a model to int8, calibrated on texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded, load, resave
from bertkit.console import say
from bertkit.data.document_readers import documents
from bertkit.engine.engine import Engine
from bertkit.engine.pruned_heads import without_pruned_heads
from bertkit.errors import ConfigError, DataError, DeviceError
from bertkit.extensions.export.int8_layers import Inputs, calibrate, calibrated, unavailable, unfit
from bertkit.extensions.export.int8_record import Quality, write_int8
from bertkit.metrics import cosines
from bertkit.nn.pooling import Pooling
from bertkit.storage import refuse_used
from bertkit.text.encoding import Encoding

MIN_TEXTS = 64
"""Texts that are needed at least: half to calibrate, a quarter to choose layers by, and a quarter
to measure on."""

MAX_TEXTS = 1024
"""Texts that are looked at; more change nothing."""

MIN_COSINE = 0.99
"""The lowest cosine that is accepted; until it is reached, layers are left as they are."""

Layers = Mapping[str, Inputs]
"""How the inputs of layers that compute in integers are rounded, by the layers' names."""


def quantize(
    model: str | Path, texts: Sequence[Path], /, *, out: Path, lowest: float = MIN_COSINE
) -> dict[str, Any]:
    """Quantize a model to int8, and measure the loss of accuracy.

    The texts should resemble the input of the model: half of them calibrate the layers, a quarter
    selects the layers that stay in floating point, and the result is measured on the last quarter.

    Args:
        model: Model directory or hub id.
        texts: .txt files with one text per line, or .jsonl files.
        out: Output directory of the model with int8 layers, for --precision int8. Must not exist.
        lowest: Minimum cosine similarity of an int8 embedding and its fp32 embedding. Layers stay
            in floating point until each text reaches it.

    Returns:
        Number of int8 layers, the other layers, cosine similarities and number of texts.

    Raises:
        ConfigError: If the model is generative or an LSTM.
        DataError: If there are too few texts.
        DeviceError: If the processor has no int8 layers.
    """
    refuse_used(out)
    reason = unavailable()
    if reason:
        raise DeviceError(f"int8: {reason}")
    loaded = load(model)
    if reason := unfit(loaded.model):
        raise ConfigError(f"{model}: int8 is {reason}")
    if "lm" in loaded.model.heads:
        raise ConfigError(
            f"{model}: a model that writes is rounded as it is opened, row by row (--precision "
            "int8); there is nothing to prepare"
        )
    held_out, choosing, calibrating = _parts(loaded, read_texts(texts))
    pruned = without_pruned_heads(loaded.model)
    engine, pooling = Engine(pruned), loaded.pooling or Pooling()
    inputs = calibrate(pruned, [batch for _, batch in engine.batches(calibrating)])

    def cosines_of(encodings: Sequence[Encoding]) -> Callable[[Layers], NDArray[np.float32]]:
        """For some layers in integers the cosine of each text's vector to its fp32 one."""
        exact = engine.rows(encodings, pooling)
        run = partial(Engine, pruned, precision="auto")
        return lambda layers: cosines(run(int8=calibrated(layers)).rows(encodings, pooling), exact)

    chosen, left = _choose(inputs, cosines_of(choosing), lowest)
    if not chosen:
        raise DataError(
            f"{model}: no layer bears integers at a cosine of {lowest}; ask for less (--lowest)"
        )
    reached = cosines_of(held_out)(chosen)
    quality = Quality(
        fingerprint=loaded.fingerprint(),
        texts=len(held_out),
        lowest_cosine=float(reached.min()),
        mean_cosine=float(reached.mean()),
        left=tuple(left),
    )
    resave(loaded, loaded.model, out)
    write_int8(out, chosen, quality)
    say(f"{out}: {len(chosen)} of {len(inputs)} layers in integers")
    if quality.lowest_cosine < lowest:
        say(
            f"lowest cosine {quality.lowest_cosine:.4f} on texts that chose nothing, below the "
            f"{lowest} asked for; give more texts, or ask for more (--lowest)"
        )
    return {
        "layers": len(chosen),
        "left": left,
        "lowest_cosine": quality.lowest_cosine,
        "mean_cosine": quality.mean_cosine,
        "texts": len(held_out),
    }


def _parts(loaded: Loaded, texts: Sequence[str]) -> tuple[list[Encoding], ...]:
    """A quarter of the texts to measure on, one to choose layers by, and half to calibrate."""
    if len(texts) < MIN_TEXTS:
        raise DataError(
            f"{len(texts)} texts to calibrate with, and {MIN_TEXTS} are needed; give more, like "
            "those the model will see"
        )
    texts = texts[:: -(-len(texts) // MAX_TEXTS)]
    encodings = loaded.tokenizer.encode_batch(texts, max_length=loaded.length, truncate="longest")
    return encodings[::4], encodings[2::4], encodings[1::2]


def _choose(
    inputs: Layers, cosines_with: Callable[[Layers], NDArray[np.float32]], lowest: float
) -> tuple[dict[str, Inputs], list[str]]:
    """The layers to compute in integers, and those left out, the worst by itself first."""

    def reach(layers: Layers) -> float:
        return float(cosines_with(layers).min())

    chosen, left = dict(inputs), list[str]()
    if reach(chosen) < lowest:
        alone = {name: reach({name: one}) for name, one in inputs.items()}
        for name in sorted(alone, key=lambda name: alone[name]):
            left.append(name)
            del chosen[name]
            if reach(chosen) >= lowest:
                break
    return chosen, left


def read_texts(paths: Sequence[Path]) -> list[str]:
    """The lines of .txt files and the texts of .jsonl rows."""
    texts: list[str] = []
    for document in documents(paths):
        rows = document.text.splitlines() if document.file.suffix == ".txt" else [document.text]
        texts += [row.strip() for row in rows if row.strip()]
    return texts
