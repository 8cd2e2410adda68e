"""One query at a time on the CPU: bertkit against sentence-transformers, ONNX Runtime and OpenVINO.

The titles and claims that people type are short: 200 sentences of at most 32 tokens, each embedded
by itself by all-MiniLM-L6-v2, tokenizing included, ours and each peer's in turn, query by query.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks import harness, text
from benchmarks.embed import Embedder, minilm, sides
from bertkit.text.tokenizer import Tokenizer

TOKENS, COUNT, WARM = 32, 200, 20
CLOSE = 0.95
"""Within 5 % of a peer counts as being as fast."""


def main(*, quick: bool = False) -> None:
    tokenizer = Tokenizer.load(minilm())
    queries = [s for s in text.sentences(1024) if len(tokenizer.encode(s)) <= TOKENS]
    queries = queries[: 20 if quick else COUNT]
    rows: list[harness.Row] = []
    with sides(minilm()) as (ours, peers):
        for (name, precision), peer in sorted(peers.items(), key=lambda item: item[0][::-1]):
            rows += measure(f"{name}, {precision}", ours[precision], peer, queries, precision)
    if quick:
        harness.show("latency, quick", rows)
    else:
        harness.write("latency", rows)


def measure(
    name: str, ours: Embedder, peer: Embedder, queries: list[str], precision: str
) -> list[harness.Row]:
    """Half and 99 of a hundred queries take no longer than this."""
    times: tuple[list[float], list[float]] = ([], [])
    for place, query in enumerate([*queries[:WARM], *queries]):
        for side, kept in zip((ours, peer), times, strict=True):
            start = time.perf_counter()
            side([query])
            if place >= WARM:
                kept.append((time.perf_counter() - start) * 1000)
    return [
        harness.row(
            f"one query, {precision}, p{share}",
            float(np.percentile(times[0], share)),
            float(np.percentile(times[1], share)),
            peer_name=name,
            unit="ms",
            target=CLOSE,
            better="lower",
        )
        for share in (50, 99)
    ]
