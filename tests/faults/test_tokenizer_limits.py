"""bertkit rejects tokenizer files that would crash `tokenizers` or use all memory."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertkit.errors import TokenizerError
from bertkit.text.file_limits import MAX_TOKEN
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

CODE = """import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from bertkit.errors import TokenizerError
from bertkit.text.tokenizer import Tokenizer
for folder in sys.argv[1:]:
    try:
        Tokenizer.load(folder).encode("a b " * 100, max_length=10**6)
        print("loaded", flush=True)
    except TokenizerError as error:
        print("rejected:", str(error)[:300], flush=True)
"""
Spec = dict[str, Any]
Change = Callable[[Spec], object]


def token(size: int) -> Change:
    """Make the last token of the vocabulary long."""

    def change(spec: Spec) -> None:
        vocab = spec["model"]["vocab"]
        if isinstance(vocab, list):
            vocab[-1][0] = "x" * size
        else:
            vocab["x" * size] = len(vocab)

    return change


def step(part: str, **settings: Any) -> Change:
    """Set the normalizer or the decoder."""
    return lambda spec: spec.update({part: settings})


def replace(part: str, size: int, depth: int = 1, pattern: str = "String") -> Change:
    """Replace a letter by many letters, several times."""
    steps = [
        {"type": "Replace", "pattern": {pattern: letter}, "content": replacement * size}
        for letter, replacement in zip("abcdef"[:depth], "bcdefg", strict=False)
    ]
    name = {"normalizer": "normalizers", "decoder": "decoders"}[part]
    return step(part, type="Sequence", **{name: steps})


def charsmap(size: int) -> Change:
    content = (1024).to_bytes(4, "little") + bytes(1024) + b"x" * size + b"\0"
    table = base64.b64encode(content).decode()
    return step("normalizer", type="Precompiled", precompiled_charsmap=table)


def added(size: int, count: int = 1) -> Change:
    return lambda spec: spec["added_tokens"].extend(
        {
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False),
            "content": f"{i:06}" + "y" * size,
            "id": 10**6 + i,
        }
        for i in range(count)
    )


def template(count: int) -> Change:
    def change(spec: Spec) -> None:
        name = spec["model"].get("unk_token", "<unk>")
        special = {"id": name, "ids": [0] * count, "tokens": [name] * count}
        token_rule = {"SpecialToken": {"id": name, "type_id": 0}}
        text = {"Sequence": {"id": "A", "type_id": 0}}
        spec["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [token_rule] * count + [text],
            "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {name: special},
        }

    return change


CHANGES: dict[str, tuple[str, Change]] = {
    **{f"{kind} token {n}": (kind, token(n)) for kind in ("unigram", "wordpiece", "bpe") for n in
       (MAX_TOKEN + 1, 150_000, 1_000_000)},
    "added token": ("wordpiece", added(100_000)),
    "added tokens": ("wordpiece", added(900, 3_000)),
    "normalizer": ("unigram", replace("normalizer", 5_000)),
    "nested normalizer": ("unigram", replace("normalizer", 90, depth=6)),
    "regular expressions": ("bpe", replace("normalizer", 90, depth=6, pattern="Regex")),
    "prefix": ("wordpiece", step("normalizer", type="Prepend", prepend="a" * 15_000)),
    "decoder": ("bpe", replace("decoder", 90, depth=6)),
    "charsmap": ("unigram", charsmap(10_000)),
    "template": ("wordpiece", template(4_000)),
    "expression": ("bpe", step("normalizer", type="Replace", pattern={"Regex": "a|" * 50_000 + "b"},
                               content="")),
    "word": ("wordpiece", lambda spec: spec["model"].update(max_input_chars_per_word=10**9)),
}  # fmt: skip
HARMLESS: dict[str, tuple[str, Change]] = {
    **{f"{kind} token": (kind, token(MAX_TOKEN)) for kind in ("unigram", "wordpiece", "bpe")},
    "normalizer": ("unigram", replace("normalizer", 9, depth=3)),
    "replacements": ("bpe", step("normalizer", type="Sequence", normalizers=[
        {"type": "Replace", "pattern": {"String": letter}, "content": "ab"} for letter in "mnopqrst"
    ])),
    "expressions": ("bpe", step("normalizer", type="Sequence", normalizers=[
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "} for _ in range(40)
    ])),
    "charsmap": ("unigram", charsmap(100)),
    "padding": ("wordpiece", lambda spec: spec.update(padding={
        "strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"})),
    "truncation": ("wordpiece", lambda spec: spec.update(truncation={
        "direction": "Right", "max_length": 10**12, "strategy": "LongestFirst", "stride": 0})),
}  # fmt: skip


@pytest.fixture(scope="module")
def specs(english: list[str]) -> dict[str, str]:
    kinds: tuple[Any, ...] = ("unigram", "wordpiece", "bpe")
    return {kind: train(english[:10], kind=kind, size=400).core.to_str() for kind in kinds}


def outcomes(
    changes: dict[str, tuple[str, Change]], specs: dict[str, str], root: Path
) -> dict[str, str]:
    """Load each changed tokenizer in one process of limited memory."""
    folders = []
    for name, (kind, change) in changes.items():
        spec = json.loads(specs[kind])
        change(spec)
        folders.append(root / name)
        folders[-1].mkdir()
        (folders[-1] / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, folders)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(changes, done.stdout.splitlines(), strict=True))


def test_tokenizer_json_beyond_limits_is_rejected(specs: dict[str, str], tmp_path: Path) -> None:
    results = outcomes(CHANGES, specs, tmp_path)
    assert {
        name for name, outcome in results.items() if ", but the limit is " not in outcome
    } == set()


def test_tokenizer_json_within_limits_is_loaded(specs: dict[str, str], tmp_path: Path) -> None:
    results = outcomes(HARMLESS, specs, tmp_path)
    assert {name: outcome for name, outcome in results.items() if outcome != "loaded"} == {}


@pytest.mark.parametrize("size", [MAX_TOKEN + 1, 200_000])
@pytest.mark.parametrize(
    "name", ["vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json"]
)
def test_older_files_with_long_tokens_are_rejected(name: str, size: int, tmp_path: Path) -> None:
    long = "x" * size
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    if name in ("vocab.json", "merges.txt"):
        vocab = {token: i for i, token in enumerate([*tokens, long] if "json" in name else tokens)}
        (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
        merge = f"a {long}\n" if name == "merges.txt" else ""
        (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merge}", encoding="utf-8")
    else:
        lines = [*tokens, long] if name == "vocab.txt" else tokens
        (tmp_path / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if name == "added_tokens.json":
        (tmp_path / name).write_text(json.dumps({long: 6}), encoding="utf-8")
    if name == "tokenizer_config.json":
        settings = {"additional_special_tokens": [long]}
        (tmp_path / name).write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(TokenizerError, match=rf"{size:,}, but the limit is 1,000"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("part", ["piece", "charsmap", "vocabulary"])
def test_sentencepiece_files_beyond_limits_are_rejected(part: str, tmp_path: Path) -> None:
    protos = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    model = protos.ModelProto()
    for text, score, kind in (("<unk>", 0, 2), ("</s>", 0, 3), ("a", -1, 1)):
        model.pieces.add(piece=text, score=score, type=kind)
    model.trainer_spec.model_type = 1
    long = "x" * 200_000
    names = ["</s>", "<unk>", "a", "<pad>"]
    if part == "piece":
        model.pieces.add(piece=long, score=-2, type=1)
    elif part == "charsmap":
        model.normalizer_spec.precompiled_charsmap = (
            (4).to_bytes(4, "little") + bytes(4) + (long.encode())
        )
    else:
        names.append(long)
    for side in ("source", "target"):
        (tmp_path / f"{side}.spm").write_bytes(model.SerializeToString())
    vocab = {name: i for i, name in enumerate(names)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    with pytest.raises(TokenizerError, match="200,000, but the limit is 1,000"):
        Tokenizer.load(tmp_path)
