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
"""Texts that are needed at least: half to calibrate, a quarter to choose layers by, and a quarter
to measure on."""

MOST = 1024
"""Texts that are looked at; more change nothing."""

LOWEST = 0.99
"""The lowest cosine that is accepted; until it is reached, layers are left as they are."""


def quantize(
    model: str | Path, texts: Sequence[Path], *, out: Path, lowest: float = LOWEST
) -> dict[str, Any]:
    """Write the model to `out` with what it needs to compute in integers; the quality lost.

    Each file of `texts` is .txt, a text a line, or .jsonl. The layers that bear it least stay
    as they are, as many as it takes for every vector of a quarter of the texts to keep a cosine of
    `lowest` to its fp32 one; what is returned was measured on another quarter.
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
    held, choosing, seen = encodings[::4], encodings[2::4], encodings[1::2]
    whole = without_dead_heads(loaded.model)
    engine = Engine(whole)
    pooling = loaded.pooling or Pooling()
    exact = [engine.rows(part, pooling) for part in (choosing, held)]
    inputs = calibrate(whole, [batch for _, batch in engine.batches(seen)])

    def reach(chosen: Mapping[str, Inputs]) -> float:
        ready = Engine(whole, precision="auto", int8=chosen)
        return float(cosines(ready.rows(choosing, pooling), exact[0]).min())

    kept, left = dict(inputs), []
    if reach(kept) < lowest:
        alone = {name: reach({name: one}) for name, one in inputs.items()}
        for name in sorted(alone, key=lambda name: alone[name]):
            left.append(name)
            del kept[name]
            if reach(kept) >= lowest:
                break
    if not kept:
        raise DataError(
            f"{model}: no layer bears integers at a cosine of {lowest}; ask for less (--lowest)"
        )
    vectors = Engine(whole, precision="auto", int8=kept).rows(held, pooling)
    reached: NDArray[np.float32] = cosines(vectors, exact[1])
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
    if quality.lowest_cosine < lowest:
        say(
            f"lowest cosine {quality.lowest_cosine:.4f} on texts that chose nothing, below the "
            f"{lowest} asked for; give more texts, or ask for more (--lowest)"
        )
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
