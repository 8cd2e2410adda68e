"""Make a model compute in 8-bit integers, on texts like those it will see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.folder import load
from bertkit.checkpoint.int8 import Quality, write_int8
from bertkit.console import say
from bertkit.data.readers import documents
from bertkit.engine.engine import Engine
from bertkit.engine.heads import without_dead_heads
from bertkit.engine.quantize import Inputs, calibrate, unavailable
from bertkit.errors import DataError, DeviceError
from bertkit.metrics import cosines
from bertkit.nn.pool import Pooling
from bertkit.recipes.changed import save_changed
from bertkit.storage import refuse_used

SMALLEST = 64
"""Texts that calibration needs at least; a quarter of them are kept to measure on."""

MOST = 1024
"""Texts that are looked at; more change nothing."""

LOWEST = 0.99
"""The lowest cosine that is accepted; until it is reached, layers are left as they are."""


def quantize(
    model: str | Path, texts: Sequence[Path], *, out: Path, lowest: float = LOWEST
) -> dict[str, Any]:
    """Write the model to `out` with what it needs to compute in integers; the quality lost.

    Each file of `texts` is .txt, a text a line, or .jsonl. The layers that bear it least stay
    as they are, as many as it takes for every vector to keep a cosine of `lowest` to its fp32 one.
    Raises: DataError for too few texts, DeviceError where the machine has no such layers.
    """
    refuse_used(out)
    reason = unavailable()
    if reason:
        raise DeviceError(f"int8: {reason}")
    loaded = load(model)
    found = read_texts(texts)
    if len(found) < SMALLEST:
        raise DataError(
            f"{len(found)} texts to calibrate with, and {SMALLEST} are needed; give more, like "
            "those the model will see"
        )
    found = found[:: -(-len(found) // MOST)]
    encodings = loaded.tokenizer.encode_batch(found, max_length=loaded.length, truncate="longest")
    held = encodings[::4]
    seen = [e for place, e in enumerate(encodings) if place % 4]
    whole = without_dead_heads(loaded.model)
    engine = Engine(whole)
    pooling = loaded.pooling or Pooling()
    exact = engine.run(held, pooling)
    inputs = calibrate(whole, [batch for _, batch in engine.batches(seen)])

    def reach(chosen: Mapping[str, Inputs]) -> NDArray[np.float32]:
        ready = Engine(whole, precision="auto", int8=chosen)
        return cosines(ready.run(held, pooling), exact)

    kept, left = dict(inputs), []
    reached = reach(kept)
    if reached.min() < lowest:
        alone = {name: float(reach({name: one}).min()) for name, one in inputs.items()}
        for name in sorted(alone, key=lambda name: alone[name]):
            left.append(name)
            del kept[name]
            reached = reach(kept)
            if reached.min() >= lowest:
                break
    if not kept:
        raise DataError(
            f"{model}: no layer bears integers at a cosine of {lowest}; ask for less (--lowest)"
        )
    quality = Quality(
        fingerprint=loaded.fingerprint(),
        texts=len(held),
        lowest_cosine=float(reached.min()),
        mean_cosine=float(reached.mean()),
        left=tuple(left),
    )
    save_changed(loaded, loaded.model, out)
    write_int8(out, kept, quality)
    say(f"{out}: {len(kept)} of {len(inputs)} layers in integers")
    return {
        "layers": len(kept),
        "left": left,
        "lowest_cosine": quality.lowest_cosine,
        "mean_cosine": quality.mean_cosine,
        "texts": len(held),
    }


def read_texts(paths: Sequence[Path]) -> list[str]:
    """The lines of .txt files and the texts of .jsonl rows."""
    found: list[str] = []
    for document in documents(paths):
        rows = document.text.splitlines() if document.file.suffix == ".txt" else [document.text]
        found += [row.strip() for row in rows if row.strip()]
    return found
