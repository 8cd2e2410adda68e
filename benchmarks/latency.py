"""One query at a time on the CPU: bertkit against sentence-transformers, ONNX Runtime and OpenVINO.

What people type is short: 200 sentences of at most 32 tokens, each embedded by itself by
all-MiniLM-L6-v2, tokenizing included. Each side has a process of its own, one after the other,
since threads of one runtime that wait for work would take time from another's.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import harness, text
from benchmarks.embed import (
    CALIBRATION,
    LOWEST_COSINE,
    MARGIN,
    PEERS,
    PRECISIONS,
    Numbers,
    minilm,
    prepare,
    side,
)
from bertkit.text.tokenizer import Tokenizer

TOKENS, COUNT, WARM = 32, 200, 40
CLOSE = 0.95
"""Within 5 % of a peer counts as being as fast."""


def main(*, quick: bool = False) -> None:
    tokenizer = Tokenizer.load(minilm())
    queries = [s for s in text.sentences(1024) if len(tokenizer.encode(s)) <= TOKENS]
    queries = queries[: 20 if quick else COUNT]
    with TemporaryDirectory() as place:
        seen = text.sentences(1024 + CALIBRATION)[1024:]
        prepare(minilm(), Path(place), seen, LOWEST_COSINE["int8"] + MARGIN)
        mine = {p: harness.apart(times, "bertkit", p, queries, place) for p in PRECISIONS}
        rows = [
            harness.row(
                f"one query, {precision}, p{share}",
                float(np.percentile(mine[precision], share)),
                float(np.percentile(found, share)),
                peer_name=name,
                unit="ms",
                target=CLOSE,
                better="lower",
            )
            for name, precision in PEERS
            for found in [harness.apart(times, name, precision, queries, place)]
            for share in (50, 99)
        ]
    if quick:
        harness.show("latency, quick", rows)
    else:
        harness.write("latency", rows)


def times(name: str, precision: Numbers, queries: list[str], place: str) -> list[float]:
    """Milliseconds of each query, after some that do not count."""
    embed = side(name, precision, minilm(), Path(place))
    return harness.milliseconds(lambda query: embed([query]), queries, warm=WARM)
