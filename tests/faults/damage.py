"""Changes to one file of a directory, as an attacker or a broken disk makes them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Raw(str):
    """Text that is written to a JSON file unchanged."""


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
    """Return JSON that may contain raw texts and lone surrogates."""
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
    """Return a copy of the data with one value changed."""
    data = json.loads(json.dumps(data))
    node, steps = data, chance.randint(1, 6)
    while True:
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return chance.choice(VALUES)
        key = chance.choice(keys)
        inner = node[key]
        steps -= 1
        if steps and isinstance(inner, dict | list) and inner:
            node = inner
            continue
        match chance.choice(["value", "value", "value", "number", "drop", "rename", "copy"]):
            case "number" if isinstance(inner, int | float):
                node[key] = chance.choice([inner * 10**6, -inner, inner + 1, inner / 3, inner - 1])
            case "drop":
                del node[key]
            case "rename" if isinstance(node, dict):
                node[chance.choice(["", "\0", "x", str(key).upper(), "0"])] = node.pop(key)
            case "copy":
                node[key] = [inner, inner] if isinstance(node, dict) else node[chance.choice(keys)]
            case _:
                node[key] = chance.choice(VALUES)
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


def read_header(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def change_header(path: Path, chance: random.Random) -> None:
    header, rest = read_header(path)
    names = [name for name in header if name != "__metadata__"]
    change = chance.choice(["edit", "edit", "shape", "metadata", "sparse", "length", "dtype"])
    name = chance.choice(names)
    match change:
        case "edit":
            header = _edited(header, chance)
        case "shape":
            header[name]["shape"] = chance.choice(
                [[10**12], [2**62, 2], [0], [], [1] * 70, [0, 2**63 - 1],
                 [1, *header[name]["shape"]]],
            )  # fmt: skip
        case "dtype":
            header[name]["dtype"] = chance.choice(["I64", "F16", "F64", "BOOL", "F8_E4M3", "U8"])
        case "metadata":
            header["__metadata__"] = chance.choice(
                [{}, {"bertkit": "[" * 100_000}, {"bertkit": "{}"}]
            )
        case "sparse":  # a large tensor that takes no space on the disk
            end = max(header[n]["data_offsets"][1] for n in names)
            # A checkpoint is hashed before it is read: 4 GB would take seconds.
            more = 1 << (40 if "checkpoints" in path.parts else chance.choice([32, 40]))
            name = chance.choice(["heads.huge.weight", "bert.more.weight"])
            header[name] = {"dtype": "F32", "shape": [more // 4], "data_offsets": [end, end + more]}
    text = _dump(header)
    size = len(text) if change != "length" else chance.choice([2**63, 10**9, 0, len(text) - 1])
    path.write_bytes(struct.pack("<Q", size) + text + rest)
    if change == "sparse":
        os.truncate(path, 8 + len(text) + end + more)


def change_lines(path: Path, chance: random.Random) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    index = chance.randrange(len(lines))
    match chance.choice(["drop", "twice", "null", "long", "many", "spaces", "empty"]):
        case "drop":
            del lines[index]
        case "twice":
            lines.insert(index, lines[index - 1])
        case "null":
            lines[index] = "a\0b"
        case "long":
            lines[index] = "x" * 10**6
        case "many":
            lines += [f"more{i}" for i in range(300_000)]
        case "spaces":
            lines[index] = "a b c d"
        case "empty":
            lines = []
    path.write_text("\n".join(lines), encoding="utf-8")


def change_row(path: Path, chance: random.Random) -> None:
    """Change a value in one row of a .jsonl file."""
    rows = path.read_text(encoding="utf-8").splitlines()
    index = chance.randrange(len(rows))
    rows[index] = _dump(_edited(json.loads(rows[index]), chance)).decode()
    path.write_text("\n".join(rows), encoding="utf-8")


def change_setting(path: Path, chance: random.Random) -> None:
    """Change a value of a .toml file."""
    lines = path.read_text(encoding="utf-8").split("\n")
    index = chance.choice([i for i, line in enumerate(lines) if "=" in line])
    lines[index] = f"{lines[index].partition('=')[0]}= {_dump(chance.choice(VALUES)).decode()}"
    path.write_text("\n".join(lines), encoding="utf-8")


def flip_bytes(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    end = chance.choice([4096, len(content)])
    for _ in range(chance.choice([1, 1, 3, 30])):
        if content:
            content[chance.randrange(min(len(content), end))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def change_number(path: Path, chance: random.Random) -> None:
    """Write an extreme number over some bytes."""
    content = bytearray(path.read_bytes())
    size = chance.choice([1, 2, 4, 8])
    number = chance.choice([0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 2 ** (4 * size)])
    start = chance.randrange(max(1, min(len(content), chance.choice([64, 4096, 10**9]))))
    content[start : start + size] = number.to_bytes(size, chance.choice(["little", "big"]))
    path.write_bytes(content)


def swap(path: Path, chance: random.Random) -> None:
    """Replace a file by another file of the directory."""
    others = sorted(p for p in path.parent.iterdir() if p.is_file())
    path.write_bytes(chance.choice(others).read_bytes())


def cut(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.choice([0, 1, 9, len(content) // 2, len(content) - 1])])


def replace_whole(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.choice(WHOLE))


def no_file(path: Path, chance: random.Random) -> None:
    """Replace a file by a special file, a directory, or nothing."""
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


BINARY = (".gguf", ".npz", ".hdf5", ".spm", ".lance", ".parquet", ".docx", ".pdf", ".gz")


def damage(good: Path, to: Path, seed: int) -> str:
    """Copy a directory, change one file, and return which file and how."""
    chance = random.Random(seed)
    shutil.copytree(good, to)
    path = chance.choice(sorted(p for p in to.rglob("*") if p.is_file()))
    changes: list[Callable[[Path, random.Random], None]] = [
        *(flip_bytes, cut, replace_whole, no_file, change_number, swap)
    ]
    match path.suffix:
        case ".json":
            changes += [change_json] * 12
        case ".jsonl":
            changes += [change_row] * 12
        case ".toml":
            changes += [change_setting] * 12
        case ".safetensors":
            changes += [change_header] * 8
        case suffix if suffix in BINARY:
            changes += [flip_bytes, change_number] * 4
    if path.suffix in (".txt", ".tsv", ".csv", ".jsonl", ".conll", ".toml", ".md", ".html", ".rst"):
        changes += [change_lines] * 4
    change = chance.choice(changes)
    change(path, chance)
    if path.is_file() and not path.is_symlink() and path.stat().st_size < 10**9:
        _record_hash(path)
    return f"{good.name}/{path.relative_to(to)}, {change.__name__}, seed {seed}"


def _record_hash(path: Path) -> None:
    """Update the recorded hash of a file, so that readers get as far as its content."""
    for record in path.parent.glob("*.json"):
        with contextlib.suppress(ValueError, OSError, RecursionError):
            data = json.loads(record.read_bytes()) if record != path else None
            if isinstance(data, dict) and path.name in data.get("sha256", {}):
                data["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
                record.write_text(json.dumps(data), encoding="utf-8")
