"""Tiny model directories of several families and forms."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from tests.factories import tiny_config
from tests.faults.damage import read_header

from bertkit.checkpoint.directory import load, save
from bertkit.checkpoint.pooling_files import write_pooling
from bertkit.engine.engine import Engine
from bertkit.extensions.export.exported import RECORD
from bertkit.extensions.export.int8_layers import calibrate, unavailable
from bertkit.extensions.export.int8_record import Quality, write_int8
from bertkit.extensions.export.tuning_record import Tuned, processor_and_instructions, write_tuned
from bertkit.families import FAMILIES
from bertkit.models.model import build
from bertkit.nn.pooling import Dense, Pooling
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train
from bertkit.threads import thread_limit

KINDS: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "bert": ("bert", "wordpiece", ("classify",), ("no", "yes")),
    "bert-old": ("bert", "wordpiece", ("mlm", "nsp"), ()),
    "roberta-old": ("roberta", "bpe", ("crf",), ("O", "B-X", "I-X")),
    "modernbert": ("modernbert", "bpe", ("mlm",), ()),
    "albert": ("albert", "unigram", ("mlm", "sop"), ()),
    "distilbert": ("distilbert", "wordpiece", (), ()),
    "electra": ("electra", "wordpiece", ("answer",), ()),
    "camembert": ("camembert", "unigram", ("choose",), ()),
    "shards": ("bert", "wordpiece", ("tag",), ("O", "B-X", "I-X")),
}
"""Family, type of vocabulary, heads, and labels by name."""


def good_folders(root: Path, english: list[str]) -> list[Path]:
    """Save a tiny model directory of each format and return the directories."""
    tokenizers = {
        kind: train(english[:2], kind=kind, size=330, max_length=32)  # type: ignore[arg-type]
        for kind in ("wordpiece", "bpe", "unigram")
    }
    torch.manual_seed(0)
    for name, (family, kind, heads, labels) in KINDS.items():
        family_spec, tokenizer, folder = FAMILIES[family], tokenizers[kind], root / name
        shared = {"layer_sharing": (0, 0)} if family == "albert" else {}
        config = tiny_config(tokenizer, family=family_spec, layers=2, **shared)
        task = {"crf": {"name": "tag", "options": {"crf": True}}}.get("".join(heads))
        settings = {"bertkit": {"task": task}} if task else {}
        model = build(config, heads, labels=labels)
        save(folder, model, tokenizer, family_spec, labels=labels, settings=settings)
    _use_older_tokenizer_files(root)
    _add_pooling_and_int8(root / "distilbert")
    write_tuned(
        root / "bert", Tuned(**TUNED, processor=processor_and_instructions(), cores=thread_limit())
    )
    _in_shards(root / "shards")
    return [root / name for name in KINDS] + _exported(root, tokenizers["wordpiece"])


TUNED: dict[str, Any] = {
    "precision": "fp32",
    "max_batch_tokens": 512,
    "threads": 1,
    "texts_per_second": 1.0,
}


def _use_older_tokenizer_files(root: Path) -> None:
    """Replace tokenizer.json by the older files of BERT and RoBERTa."""
    bert = root / "bert-old"
    (bert / "tokenizer.json").unlink()
    tokens = (bert / "vocab.txt").read_text(encoding="utf-8").splitlines()
    (bert / "vocab.txt").write_text("\n".join(tokens[:-2]) + "\n", encoding="utf-8")
    added = {token: len(tokens) - 2 + i for i, token in enumerate(["new1", "new2"])}
    (bert / "added_tokens.json").write_text(json.dumps(added), encoding="utf-8")
    names = {"unk_token": "[UNK]", "cls_token": {"content": "[CLS]", "lstrip": False}}
    (bert / "special_tokens_map.json").write_text(json.dumps(names), encoding="utf-8")
    roberta = root / "roberta-old"
    model = json.loads((roberta / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (roberta / "tokenizer.json").unlink()
    config = json.loads((roberta / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["tokenizer_class"] = "RobertaTokenizer"
    (roberta / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (roberta / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    (roberta / "merges.txt").write_text(
        "#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8"
    )


def _add_pooling_and_int8(folder: Path) -> None:
    """Add a dense pooling layer and int8 layers."""
    pooling = Pooling(dense=Dense(16, 8, "tanh"), normalize=True)
    write_pooling(folder, pooling, hidden=16, length=32)
    if unavailable():
        return
    loaded = load(folder)
    engine = Engine(loaded.model)
    encodings = loaded.tokenizer.encode_batch(["a b", "the"])
    inputs = calibrate(loaded.model, [batch for _, batch in engine.batches(encodings)])
    quality = Quality(fingerprint=loaded.fingerprint(), texts=2, lowest_cosine=1.0, mean_cosine=1.0)
    write_int8(folder, inputs, quality)


def _in_shards(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1-of-1.safetensors")
    names = read_header(folder / "model-1-of-1.safetensors")[0]
    files_by_tensor = dict.fromkeys(
        (n for n in names if n != "__metadata__"), "model-1-of-1.safetensors"
    )
    index = {"metadata": {"total_size": 1}, "weight_map": files_by_tensor}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _exported(root: Path, tokenizer: Tokenizer) -> list[Path]:
    """Export embedding matrices to graphs, if the packages are installed."""
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError:
        return []
    onnx_folder = root / "onnx"
    tokenizer.save(onnx_folder)
    table = torch.rand(tokenizer.vocab_size, 4).numpy()
    put, got = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
            onnx.helper.make_node(
                "ReduceMean", ["rows"], ["sentence_embedding"], axes=[1], keepdims=0
            ),
        ],
        "table",
        [onnx.helper.make_tensor_value_info("input_ids", put, ["batch", "length"])],
        [onnx.helper.make_tensor_value_info("sentence_embedding", got, ["batch", 4])],
        [onnx.numpy_helper.from_array(table, "table")],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    external_data = {
        "save_as_external_data": True,
        "location": "model.onnx.data",
        "size_threshold": 0,
    }
    onnx.save(model, str(onnx_folder / "model.onnx"), **external_data)
    _record(onnx_folder, "onnx", ["model.onnx", "model.onnx.data"])
    try:
        import openvino
    except ImportError:
        return [onnx_folder]
    folder = root / "openvino"
    tokenizer.save(folder)
    converted = openvino.convert_model(str(onnx_folder / "model.onnx"))
    openvino.save_model(converted, str(folder / "model.xml"), compress_to_fp16=False)
    _record(folder, "openvino", ["model.xml", "model.bin"])
    return [onnx_folder, folder]


def _record(folder: Path, kind: str, files: list[str]) -> None:
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    record = {"kind": kind, "sha256": hashes, "dimension": 4, "length": 16}
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")
