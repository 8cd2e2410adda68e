"""The command `export int8`, which quantizes a model."""

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
from bertkit.extensions.export.int8_layers import (
    Inputs,
    calibrate,
    calibrated,
    unavailable,
    unsupported_reason,
)
from bertkit.extensions.export.int8_record import Quality, write_int8
from bertkit.metrics import cosines
from bertkit.nn.pooling import Pooling
from bertkit.storage import check_unused
from bertkit.text.encoding import Encoding

MIN_TEXTS = 64
"""Minimum number of texts. Half of the texts are used for calibration, a quarter to select layers,
and a quarter for the evaluation."""

MAX_TEXTS = 1024
"""Maximum number of texts that are used. More texts do not improve the result."""

MIN_COSINE = 0.99
"""Default of the minimum cosine similarity that int8 embeddings must have to fp32 embeddings."""

Layers = Mapping[str, Inputs]
"""Quantization of the inputs of int8 layers, by layer name."""


def quantize(
    model: str | Path, texts: Sequence[Path], /, *, out: Path, min_cosine: float = MIN_COSINE
) -> dict[str, Any]:
    """Quantize a model to int8, and measure how much its embeddings change.

    The texts should resemble those that the model will process. Half of them are used to calibrate
    the layers, and a quarter to decide which layers stay in floating point. The result is measured
    on the last quarter.

    Args:
        model: Model directory or hub id.
        texts: .txt files with one text per line, or .jsonl files.
        out: Directory to write the quantized model to, which runs with --precision int8. It must
            not exist.
        min_cosine: Minimum cosine similarity between the int8 and fp32 embeddings of a text. Layers
            are kept in floating point until every text reaches this value.

    Returns:
        The number of int8 layers, the names of the other layers, the lowest and mean cosine
        similarity, and the number of texts on which they were measured.

    Raises:
        ConfigError: If the model is generative or an LSTM.
        DataError: If there are too few texts.
        DeviceError: If int8 layers cannot run on this machine.
    """
    check_unused(out)
    reason = unavailable()
    if reason:
        raise DeviceError(f"int8: {reason}")
    loaded = load(model)
    if reason := unsupported_reason(loaded.model):
        raise ConfigError(f"{model}: int8 is {reason}")
    if "lm" in loaded.model.heads:
        raise ConfigError(
            f"{model}: generative models need no calibration; use --precision int8 with this "
            "model directly"
        )
    held_out, selection, calibration = _split_texts(loaded, read_texts(texts))
    pruned = without_pruned_heads(loaded.model)
    engine, pooling = Engine(pruned), loaded.pooling or Pooling()
    inputs = calibrate(pruned, [batch for _, batch in engine.batches(calibration)])

    def cosines_of(encodings: Sequence[Encoding]) -> Callable[[Layers], NDArray[np.float32]]:
        """Return a function that compares the embeddings of int8 layers with fp32 embeddings."""
        exact = engine.rows(encodings, pooling)
        run = partial(Engine, pruned, precision="auto")
        return lambda layers: cosines(run(int8=calibrated(layers)).rows(encodings, pooling), exact)

    chosen, left = _select_layers(inputs, cosines_of(selection), min_cosine)
    if not chosen:
        raise DataError(
            f"{model}: with even one layer in int8, the cosine similarity is below {min_cosine}; "
            "reduce --min-cosine"
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
    say(f"{out}: {len(chosen)} of {len(inputs)} layers are in int8")
    if quality.lowest_cosine < min_cosine:
        say(
            "warning: the lowest cosine similarity on held-out texts is "
            f"{quality.lowest_cosine:.4f}, which is below --min-cosine {min_cosine}; use more "
            "texts, or increase --min-cosine to quantize fewer layers"
        )
    return {
        "layers": len(chosen),
        "left": left,
        "lowest_cosine": quality.lowest_cosine,
        "mean_cosine": quality.mean_cosine,
        "texts": len(held_out),
    }


def _split_texts(loaded: Loaded, texts: Sequence[str]) -> tuple[list[Encoding], ...]:
    """Encode texts, and split them for evaluation (1/4), selection (1/4) and calibration (1/2)."""
    if len(texts) < MIN_TEXTS:
        raise DataError(
            f"quantization requires at least {MIN_TEXTS} texts, got {len(texts)}; add texts that "
            "resemble the input of the model"
        )
    texts = texts[:: -(-len(texts) // MAX_TEXTS)]
    encodings = loaded.tokenizer.encode_batch(texts, max_length=loaded.length, truncate="longest")
    return encodings[::4], encodings[2::4], encodings[1::2]


def _select_layers(
    inputs: Layers, cosines_with: Callable[[Layers], NDArray[np.float32]], min_cosine: float
) -> tuple[dict[str, Inputs], list[str]]:
    """Return the layers to quantize, and the names of the other layers, with the worst first."""

    def lowest_cosine(layers: Layers) -> float:
        return float(cosines_with(layers).min())

    chosen, left = dict(inputs), list[str]()
    if lowest_cosine(chosen) < min_cosine:
        separate = {name: lowest_cosine({name: item}) for name, item in inputs.items()}
        for name in sorted(separate, key=lambda name: separate[name]):
            left.append(name)
            del chosen[name]
            if lowest_cosine(chosen) >= min_cosine:
                break
    return chosen, left


def read_texts(paths: Sequence[Path]) -> list[str]:
    """Read texts from the lines of .txt files and the rows of .jsonl files.

    Args:
        paths: Files to read.
    """
    texts: list[str] = []
    for document in documents(paths):
        rows = document.text.splitlines() if document.file.suffix == ".txt" else [document.text]
        texts += [row.strip() for row in rows if row.strip()]
    return texts
