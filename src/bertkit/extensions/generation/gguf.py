"""Models in one GGUF file, as llama.cpp has them: read as data, their weights as fp32.

Source of the layout: the GGUF specification, version 3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors
from torch import Tensor

from bertkit import memory
from bertkit.checkpoint.directory import Stored
from bertkit.errors import CheckpointError, ConfigError
from bertkit.pipelines.transformer_format import TransformerFormat
from bertkit.published_keys import KeyTable
from bertkit.storage import check_file
from bertkit.text.file_limits import check_tokens
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_files import usable

CONTROL, OWN = 3, 4
"""Kinds of pieces: special tokens, and those that a text is searched for whole."""

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Their names of tensors -> those of transformers."""

KEYS = KeyTable(
    neutral={
        "llama.attention.clamp_kqv": (0.0,),
        "llama.expert_count": (0,),
        "llama.expert_used_count": (0,),
        "llama.logit_scale": (1.0,),
        "llama.rope.scale_linear": (1.0,),
        "llama.use_parallel_residual": (False,),
    }
)
"""Metadata that changes the architecture."""

SPLITS = {
    "gpt-2": (),
    "default": (),
    "smollm": (pre_tokenizers.Digits(individual_digits=True),),
}
"""How a text is split before GPT-2's own split, by the name that a file gives it."""


class GgufFormat(TransformerFormat):
    """GGUF file of a Transformer."""

    noun = "a GGUF file"

    def stored(self) -> Stored:
        return read_gguf(self.path)


def read_gguf(path: Path) -> Stored:
    """Raises: CheckpointError for a file that is damaged, or of a model that is not Llama's."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError(
            f"{path}: reading it needs the package gguf; pip install 'bertkit[generation]'"
        ) from None

    class Reader(GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            values = super()._get(offset, dtype, count, override_order)
            if len(values) < int(count):  # else a made-up count would be counted to its end
                raise ValueError("it ends too early")
            return values

    check_file(path, CheckpointError, most=memory.installed())
    try:
        reader = Reader(path)
        said = {name: field.contents() for name, field in reader.fields.items()}
        stored = {tensor.name: tensor for tensor in reader.tensors}
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: damaged, or quantized in a way that the library gguf does not know "
            f"({error}); fetch it again, or take another file of the same model"
        ) from None
    try:
        settings = _settings(said, stored)
        tensors = {_name(name): _tensor(one, name, settings) for name, one in stored.items()}
        tokenizer = _tokenizer(said, path)
    except KeyError as error:
        raise CheckpointError(f"{path}: has no {error}; fetch it again") from None
    except (ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {error}; its parts do not belong together") from None
    settings["eos_token_id"] = said.get("tokenizer.ggml.eos_token_id")
    return Stored(path, settings, lambda: tensors, lambda: tokenizer)


def _settings(said: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata as settings of transformers' Llama."""
    kind = said["general.architecture"]
    if kind != "llama":
        raise ValueError(f"general.architecture = {kind!r}: of GGUF files llama is read only")
    heads, hidden = _size(said, "attention.head_count"), _size(said, "embedding_length")
    shared = _size(said, "attention.head_count_kv", heads)
    width = _size(said, "attention.key_length", hidden // heads)
    if heads % shared or hidden % heads:
        raise ValueError(f"{heads} heads, {shared} of keys and values, and {hidden} hidden units")
    if said.get("llama.rope.dimension_count", width) != width or width % 2:
        raise ValueError("llama.rope.dimension_count: angles turn the whole of a head here")
    if said.get("llama.attention.value_length", width) != width:
        raise ValueError(f"llama.attention.value_length: must be the length of keys, {width}")
    KEYS.check(said)
    if said.get("llama.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in stored:
        raise ValueError("llama.rope.scaling: angles that are stretched are not read")
    eps = _positive(said, "attention.layer_norm_rms_epsilon")
    embedding = stored["token_embd.weight"].shape
    if len(embedding) != 2:
        raise ValueError(f"token_embd.weight has {len(embedding)} axes, and a matrix has 2")
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": int(embedding[1]),
        "hidden_size": hidden,
        "num_hidden_layers": _size(said, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "head_dim": width,
        "intermediate_size": _size(said, "feed_forward_length"),
        "max_position_embeddings": _size(said, "context_length"),
        "rms_norm_eps": float(f"{eps:.6g}"),
        "rope_theta": _positive(said, "rope.freq_base", 10_000.0),
        "tie_word_embeddings": "output.weight" not in stored,
    }


def _size(said: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a size or count of the model. Raises: ValueError, or KeyError if it is missing."""
    key = f"llama.{name}"
    value = said[key] if default is None else said.get(key, default)
    if type(value) is not int or not 0 < value < 2**31:
        raise ValueError(f"{key} must be a whole number from 1 to {2**31 - 1:,}, got {value!r}")
    return value


def _positive(said: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Return a positive number. Raises: ValueError, or KeyError if it is missing."""
    key = f"llama.{name}"
    value = said[key] if default is None else said.get(key, default)
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{key} must be a positive number, got {value!r}")
    return float(value)


def _shapes(settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each kind of tensor."""
    hidden, inner = settings["hidden_size"], settings["intermediate_size"]
    table = settings["vocab_size"], hidden
    queries, keys = (
        settings[f"num_{kind}_heads"] * settings["head_dim"] for kind in ("attention", "key_value")
    )
    return {
        **dict.fromkeys(("token_embd", "output"), table),
        **dict.fromkeys(("output_norm", "attn_norm", "ffn_norm"), (hidden,)),
        **dict.fromkeys(("attn_k", "attn_v"), (keys, hidden)),
        **dict.fromkeys(("ffn_gate", "ffn_up"), (inner, hidden)),
        "attn_q": (queries, hidden),
        "attn_output": (hidden, queries),
        "ffn_down": (hidden, inner),
    }


def _name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    match = re.fullmatch(r"blk\.(\d{1,4})\.(\w+)\.weight", name)
    if match is None or match[2] not in IN_LAYER:
        raise ValueError(f"{name}: no weight of a Llama model")
    return f"model.layers.{match[1]}.{IN_LAYER[match[2]]}.weight"


def _tensor(stored: Any, name: str, settings: Mapping[str, Any]) -> Tensor:
    """As fp32, rows in transformers' order."""
    from gguf.quants import dequantize

    expected = _shapes(settings)[name.split(".")[-2]]
    if tuple(stored.shape[::-1]) != expected:
        shape = list(map(int, stored.shape[::-1]))
        raise ValueError(f"{name} must have the shape {list(expected)}, got {shape}")
    try:
        values = dequantize(stored.data, stored.tensor_type)
    except (NotImplementedError, KeyError):
        raise ValueError(
            f"{name} is quantized as {stored.tensor_type.name}, which is not read; take a file "
            "with Q8_0, Q4_K or F16"
        ) from None
    weight = torch.from_numpy(np.array(values, dtype=np.float32))
    kind = name.split(".")[2:3]
    if kind in (["attn_q"], ["attn_k"]):
        # there the two numbers that an angle turns are neighbors, in transformers half a head apart
        heads = settings["num_attention_heads" if kind == ["attn_q"] else "num_key_value_heads"]
        weight = weight.view(heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)
    return weight


def _add_ends(core: tokenizers.Tokenizer, said: Mapping[str, Any]) -> None:
    """Add the BOS and EOS tokens that the file asks for to each text."""
    pieces = said["tokenizer.ggml.tokens"]
    bos, eos = (
        pieces[said[f"tokenizer.ggml.{role}_token_id"]]
        if said.get(f"tokenizer.ggml.add_{role}_token", False)
        else ""
        for role in ("bos", "eos")
    )
    names = [name for name in (bos, eos) if name]
    if names:
        single = " ".join(part for part in (bos, "$A", eos) if part)
        core.post_processor = processors.TemplateProcessing(
            single=single,
            pair=f"{single} {single.replace('$A', '$B:1')}",
            special_tokens=[(name, core.token_to_id(name)) for name in dict.fromkeys(names)],
        )


def _list(said: Mapping[str, Any], name: str, of: type) -> list[Any]:
    """Return a list of the tokenizer. Raises: ValueError, or KeyError if it is missing."""
    values = said[f"tokenizer.ggml.{name}"]
    if not isinstance(values, list) or not all(type(value) is of for value in values):
        raise ValueError(f"tokenizer.ggml.{name} must be a list of {of.__name__} values")
    return values


def _tokenizer(said: Mapping[str, Any], path: Path) -> Tokenizer:
    """Raises: ValueError for one that is no byte-level BPE."""
    kind, split = said["tokenizer.ggml.model"], said.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or split not in SPLITS:
        raise ValueError(
            f"its tokenizer, {kind} with {split}, is not read; take the model's folder from the hub"
        )
    pieces, kinds = (_list(said, name, of) for name, of in (("tokens", str), ("token_type", int)))
    merges = [tuple(merge.split(" ", 1)) for merge in _list(said, "merges", str)]
    ids = {name: value for name, value in said.items() if name.endswith("_token_id")}
    for name, value in ids.items():
        if type(value) is not int or not 0 <= value < len(pieces):
            raise ValueError(f"{name} must be from 0 to {len(pieces) - 1:,}, got {value!r}")
    with usable(str(path)):
        check_tokens(pieces, str(path))
        core = tokenizers.Tokenizer(
            models.BPE({piece: place for place, piece in enumerate(pieces)}, merges)
        )
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([*SPLITS[split], level])
        core.decoder = decoders.ByteLevel()
        for number, added in ((CONTROL, True), (OWN, False)):
            core.add_tokens(
                [
                    tokenizers.AddedToken(piece, special=added, normalized=False)
                    for piece, one in zip(pieces, kinds, strict=True)
                    if one == number
                ]
            )
        _add_ends(core, said)
        roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        ids = {role: said.get(f"tokenizer.ggml.{name}_token_id") for role, name in roles.items()}
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": said.get("tokenizer.chat_template"),
            **{f"{role}_token": pieces[i] for role, i in ids.items() if i is not None},
        }
        return Tokenizer(core, settings, str(path))
