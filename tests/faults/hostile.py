"""Good folders of every kind, and what may be done to one of their files."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.factories import tiny_config

from bertkit.checkpoint.folder import load, save
from bertkit.checkpoint.int8 import Quality, write_int8
from bertkit.checkpoint.pooling import write_pooling
from bertkit.checkpoint.tuned import Tuned, processor_and_instructions, write_tuned
from bertkit.engine.engine import Engine
from bertkit.engine.exported import RECORD
from bertkit.engine.quantize import calibrate, unavailable
from bertkit.families import FAMILIES
from bertkit.models.model import build
from bertkit.nn.pool import Dense, Pooling
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.train import train
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
"""Name -> family, kind of vocabulary, heads, labels."""


def good_folders(root: Path, english: list[str]) -> list[Path]:
    """A tiny one of each kind that a person may be given."""
    tokenizers = {
        kind: train(english[:2], kind=kind, size=330, max_length=32)  # type: ignore[arg-type]
        for kind in ("wordpiece", "bpe", "unigram")
    }
    torch.manual_seed(0)
    for name, (family, kind, heads, labels) in KINDS.items():
        told, tokenizer, folder = FAMILIES[family], tokenizers[kind], root / name
        shared = {"layer_sharing": (0, 0)} if family == "albert" else {}
        config = tiny_config(tokenizer, family=told, layers=2, **shared)
        task = {"crf": {"name": "tag", "options": {"crf": True}}}.get("".join(heads))
        settings = {"bertkit": {"task": task}} if task else {}
        model = build(config, heads, labels=labels)
        save(folder, model, tokenizer, told, labels=labels, settings=settings)
    _as_older_ones(root)
    _with_all_beside(root / "distilbert")
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


def _as_older_ones(root: Path) -> None:
    """Without tokenizer.json; its content in several files."""
    bert = root / "bert-old"
    (bert / "tokenizer.json").unlink()
    pieces = (bert / "vocab.txt").read_text(encoding="utf-8").splitlines()
    (bert / "vocab.txt").write_text("\n".join(pieces[:-2]) + "\n", encoding="utf-8")
    added = {piece: len(pieces) - 2 + i for i, piece in enumerate(["new1", "new2"])}
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


def _with_all_beside(folder: Path) -> None:
    """Vectors through a dense layer, and layers in integers."""
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
    names = _header(folder / "model-1-of-1.safetensors")[0]
    places = dict.fromkeys((n for n in names if n != "__metadata__"), "model-1-of-1.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _exported(root: Path, tokenizer: Tokenizer) -> list[Path]:
    """Graphs of one table of vectors; none where the packages are lacking."""
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
    apart = {"save_as_external_data": True, "location": "model.onnx.data", "size_threshold": 0}
    onnx.save(model, str(onnx_folder / "model.onnx"), **apart)
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


# ---- what is done to a file


class Raw(str):
    """Text that stands in a JSON file as it is."""


# fmt: off
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 64, 10**5, 10**6, 10**9, 2**31, 2**32 - 1, 2**63, 10**30,
    10**400, -(10**20), 0.0, -0.5, 1e-300, 1e308, 0.9999999, "", "a", "\0", "a\0b", "../..",
    "[PAD]", "/dev/zero", "x" * 100_000, "\ud800", [], {}, [[]], [{}], {"a": []}, [1], ["a"],
    [None], {"0": "a"}, {"": {}}, list(range(50_000)), {str(i): str(i) for i in range(50_000)},
    Raw("NaN"), Raw("Infinity"), Raw("1e999"), Raw("9" * 5000),
    *(Raw(o * d + "0" + c * d) for d in (60, 900, 10**5) for o, c in (("[", "]"), ('{"a":', "}"))),
)
WHOLE = (
    b"null", b"[]", b"{}", b'"a"', b"\xff\xfe\x00", b"\0" * 64, b"NaN", b"1" * 5000, b"[1" * 10,
    b"{" + b'"a":0,' * 200_000 + b'"b":1}', b"[" + b"[]," * 2_000_000 + b"[]]", b'["\\ud800"]',
    *(o * d + b"1" + c * d for d in (200, 950, 10**5) for o, c in ((b"[", b"]"), (b'{"a":', b"}"))),
)
# fmt: on


def _dump(data: Any) -> bytes:
    """JSON, with raw texts in it and half surrogates as they come."""
    raws: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raws.append(value)
            return f"@raw{len(raws) - 1}@"
        if isinstance(value, dict):
            return {k: marked(v) for k, v in value.items()}
        return [marked(v) for v in value] if isinstance(value, list) else value

    text = json.dumps(marked(data))
    for i, raw in enumerate(raws):
        text = text.replace(f'"@raw{i}@"', raw)
    return text.encode()


def _edited(data: Any, chance: random.Random) -> Any:
    """The same data with one place of it changed."""
    data = json.loads(json.dumps(data))
    place, steps = data, chance.randint(1, 6)
    while True:
        keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return chance.choice(VALUES)
        key = chance.choice(keys)
        inner = place[key]
        steps -= 1
        if steps and isinstance(inner, dict | list) and inner:
            place = inner
            continue
        match chance.choice(["value", "value", "value", "number", "drop", "rename", "copy"]):
            case "number" if isinstance(inner, int | float):
                place[key] = chance.choice([inner * 10**6, -inner, inner + 1, inner / 3, inner - 1])
            case "drop":
                del place[key]
            case "rename" if isinstance(place, dict):
                place[chance.choice(["", "\0", "x", str(key).upper(), "0"])] = place.pop(key)
            case "copy":
                place[key] = (
                    [inner, inner] if isinstance(place, dict) else place[chance.choice(keys)]
                )
            case _:
                place[key] = chance.choice(VALUES)
        return data


def change_json(path: Path, chance: random.Random) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(chance.choice([1, 1, 1, 2])):
        if not isinstance(data, dict | list) or not data:
            break
        try:
            data = _edited(data, chance)
        except RecursionError:
            break
        if b"@raw" in (whole := _dump(data)) or whole != json.dumps(data).encode():
            break
    path.write_bytes(_dump(data))


def _header(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def change_header(path: Path, chance: random.Random) -> None:
    header, rest = _header(path)
    names = [name for name in header if name != "__metadata__"]
    how = chance.choice(["edit", "edit", "shape", "metadata", "sparse", "length", "dtype"])
    name = chance.choice(names)
    match how:
        case "edit":
            header = _edited(header, chance)
        case "shape":
            header[name]["shape"] = chance.choice(
                [
                    [10**12],
                    [2**62, 2],
                    [0],
                    [],
                    [1] * 70,
                    [0, 2**63 - 1],
                    [1, *header[name]["shape"]],
                ]
            )
        case "dtype":
            header[name]["dtype"] = chance.choice(["I64", "F16", "F64", "BOOL", "F8_E4M3", "U8"])
        case "metadata":
            header["__metadata__"] = chance.choice(
                [{}, {"bertkit": "[" * 100_000}, {"bertkit": "{}"}]
            )
        case "sparse":  # a tensor as large as it says, without a block on the disk
            end = max(header[n]["data_offsets"][1] for n in names)
            more = 1 << chance.choice([32, 40])
            place = chance.choice(["heads.huge.weight", "bert.more.weight"])
            header[place] = {
                "dtype": "F32",
                "shape": [more // 4],
                "data_offsets": [end, end + more],
            }
    text = _dump(header)
    size = len(text) if how != "length" else chance.choice([2**63, 10**9, 0, len(text) - 1])
    path.write_bytes(struct.pack("<Q", size) + text + rest)
    if how == "sparse":
        os.truncate(path, 8 + len(text) + end + more)


def change_lines(path: Path, chance: random.Random) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    place = chance.randrange(len(lines))
    match chance.choice(["drop", "twice", "null", "long", "many", "spaces", "empty"]):
        case "drop":
            del lines[place]
        case "twice":
            lines.insert(place, lines[place - 1])
        case "null":
            lines[place] = "a\0b"
        case "long":
            lines[place] = "x" * 10**6
        case "many":
            lines += [f"more{i}" for i in range(300_000)]
        case "spaces":
            lines[place] = "a b c d"
        case "empty":
            lines = []
    path.write_text("\n".join(lines), encoding="utf-8")


def flip_bytes(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 1, 3, 30])):
        if content:
            content[chance.randrange(min(len(content), 4096))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.choice([0, 1, 9, len(content) // 2, len(content) - 1])])


def replace_whole(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.choice(WHOLE))


def no_file(path: Path, chance: random.Random) -> None:
    """Something else under its name."""
    path.unlink()
    match chance.choice(["folder", "pipe", "zero", "loop", "sparse", "none"]):
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "zero":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path.name)
        case "sparse":
            path.touch()
            os.truncate(path, 1 << 40)


def damage(good: Path, to: Path, seed: int) -> str:
    """Copy a folder with one of its files changed, and say which and how."""
    chance = random.Random(seed)
    shutil.copytree(good, to)
    files = sorted(p for p in to.rglob("*") if p.is_file())
    path = chance.choice(files)
    changes: list[Callable[[Path, random.Random], None]] = [flip_bytes, cut, replace_whole, no_file]
    if path.suffix == ".json":
        changes += [change_json] * 12
    elif path.suffix == ".safetensors":
        changes += [change_header] * 8
    elif path.suffix == ".txt":
        changes += [change_lines] * 4
    change = chance.choice(changes)
    change(path, chance)
    record = to / RECORD
    if (
        path.suffix in (".onnx", ".data", ".xml", ".bin")
        and path.is_file()
        and path.stat().st_size < 10**9
    ):
        held = json.loads(record.read_text(encoding="utf-8"))
        held["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        record.write_text(json.dumps(held), encoding="utf-8")
    return f"{good.name}/{path.relative_to(to)}, {change.__name__}, seed {seed}"
