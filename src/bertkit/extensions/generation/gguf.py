"""Reader of Llama models in GGUF files, the format of llama.cpp.

Weights are converted to fp32. The layout follows version 3 of the GGUF specification.
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

CONTROL, USER_DEFINED = 3, 4
"""Token types of GGUF: special tokens, and added tokens that are matched before BPE is applied."""

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
"""Names of layer weights in GGUF files, and the corresponding names in transformers."""

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
"""Metadata keys that change the architecture, and the values with which bertkit supports them."""

SPLITS = {"gpt-2": (), "default": (), "smollm": (pre_tokenizers.Digits(individual_digits=True),)}
"""Supported values of tokenizer.ggml.pre, and the pre-tokenizers that each value adds before the
byte-level pre-tokenizer of GPT-2."""


class GgufFormat(TransformerFormat):
    """Format of a GGUF file that contains a Transformer."""

    noun = "a GGUF file"

    def stored(self) -> Stored:
        return read_gguf(self.path)


def read_gguf(path: Path) -> Stored:
    """Read the settings, weights and tokenizer from a GGUF file.

    Raises:
        CheckpointError: If the file is corrupted, or bertkit does not support the model.
        ConfigError: If the package gguf is not installed.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError(
            f"{path}: requires the package gguf; run pip install 'bertkit[generation]'"
        ) from None

    class Reader(GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            values = super()._get(offset, dtype, count, override_order)
            # Without this check, the library would loop over an invalid count.
            if len(values) < int(count):
                raise ValueError("the file ends too early")
            return values

    check_file(path, CheckpointError, most=memory.installed())
    try:
        reader = Reader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        stored = {tensor.name: tensor for tensor in reader.tensors}
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: the file is corrupted, or its quantization is not supported by the package "
            f"gguf ({error}); download it again, or use another GGUF file of the same model"
        ) from None
    try:
        settings = _settings(metadata, stored)
        tensors = {_name(name): _tensor(data, name, settings) for name, data in stored.items()}
        tokenizer = _tokenizer(metadata, path)
    except KeyError as error:
        raise CheckpointError(f"{path}: has no {error}; download the file again") from None
    except (ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {error}; use another GGUF file") from None
    settings["eos_token_id"] = metadata.get("tokenizer.ggml.eos_token_id")
    return Stored(path, settings, lambda: tensors, lambda: tokenizer)


def _settings(metadata: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the metadata of a GGUF file to the settings of a Llama model in transformers."""
    kind = metadata["general.architecture"]
    if kind != "llama":
        raise ValueError(f"general.architecture must be 'llama', got {kind!r}")
    heads, hidden = _size(metadata, "attention.head_count"), _size(metadata, "embedding_length")
    shared = _size(metadata, "attention.head_count_kv", heads)
    width = _size(metadata, "attention.key_length", hidden // heads)
    if heads % shared or hidden % heads:
        raise ValueError(
            f"the number of heads, {heads}, must divide the hidden size, {hidden}, and be a "
            f"multiple of the number of key/value heads, {shared}"
        )
    if metadata.get("llama.rope.dimension_count", width) != width or width % 2:
        raise ValueError(f"llama.rope.dimension_count must be even and the head size, {width}")
    if metadata.get("llama.attention.value_length", width) != width:
        raise ValueError(f"llama.attention.value_length must equal the key length, {width}")
    KEYS.check(metadata)
    if metadata.get("llama.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in stored:
        raise ValueError("llama.rope.scaling: scaled rotary embeddings are not supported")
    eps = _positive(metadata, "attention.layer_norm_rms_epsilon")
    embedding = stored["token_embd.weight"].shape
    if len(embedding) != 2:
        raise ValueError(f"token_embd.weight must have 2 dimensions, got {len(embedding)}")
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": int(embedding[1]),
        "hidden_size": hidden,
        "num_hidden_layers": _size(metadata, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "head_dim": width,
        "intermediate_size": _size(metadata, "feed_forward_length"),
        "max_position_embeddings": _size(metadata, "context_length"),
        "rms_norm_eps": float(f"{eps:.6g}"),
        "rope_theta": _positive(metadata, "rope.freq_base", 10_000.0),
        "tie_word_embeddings": "output.weight" not in stored,
    }


def _size(metadata: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a size or count from the metadata.

    Raises:
        KeyError: If the value is missing and there is no default.
        ValueError: If the value is not an integer from 1 to 2,147,483,647.
    """
    key = f"llama.{name}"
    value = metadata[key] if default is None else metadata.get(key, default)
    if type(value) is not int or not 0 < value < 2**31:
        raise ValueError(f"{key} must be a whole number from 1 to {2**31 - 1:,}, got {value!r}")
    return value


def _positive(metadata: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Return a positive number from the metadata.

    Raises:
        KeyError: If the value is missing and there is no default.
        ValueError: If the value is not a positive, finite number.
    """
    key = f"llama.{name}"
    value = metadata[key] if default is None else metadata.get(key, default)
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{key} must be a positive number, got {value!r}")
    return float(value)


def _shapes(settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the expected shape of each type of tensor."""
    hidden, inner = settings["hidden_size"], settings["intermediate_size"]
    embedding = settings["vocab_size"], hidden
    queries, keys = (
        settings[f"num_{kind}_heads"] * settings["head_dim"] for kind in ("attention", "key_value")
    )
    return {
        **dict.fromkeys(("token_embd", "output"), embedding),
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
        raise ValueError(f"{name} is not a weight of a Llama model")
    return f"model.layers.{match[1]}.{IN_LAYER[match[2]]}.weight"


def _tensor(stored: Any, name: str, settings: Mapping[str, Any]) -> Tensor:
    """Convert a tensor to fp32, with its rows in the order of transformers."""
    from gguf.quants import dequantize

    expected = _shapes(settings)[name.split(".")[-2]]
    if tuple(stored.shape[::-1]) != expected:
        shape = list(map(int, stored.shape[::-1]))
        raise ValueError(f"{name} must have the shape {list(expected)}, got {shape}")
    try:
        values = dequantize(stored.data, stored.tensor_type)
    except (NotImplementedError, KeyError):
        raise ValueError(
            f"{name}: quantization {stored.tensor_type.name} is not supported; use a file with "
            "Q8_0, Q4_K or F16"
        ) from None
    weight = torch.from_numpy(np.array(values, dtype=np.float32))
    kind = name.split(".")[2:3]
    if kind in (["attn_q"], ["attn_k"]):
        # In GGUF files, the two values that are rotated together are adjacent. In transformers,
        # they are half a head apart.
        heads = settings["num_attention_heads" if kind == ["attn_q"] else "num_key_value_heads"]
        weight = weight.view(heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)
    return weight


def _add_ends(core: tokenizers.Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Make the tokenizer add BOS and EOS tokens to each text if the file specifies this."""
    tokens = metadata["tokenizer.ggml.tokens"]
    bos, eos = (
        tokens[metadata[f"tokenizer.ggml.{role}_token_id"]]
        if metadata.get(f"tokenizer.ggml.add_{role}_token", False)
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


def _list(metadata: Mapping[str, Any], name: str, item: type) -> list[Any]:
    """Return a list from the tokenizer metadata.

    Raises:
        KeyError: If the list is missing.
        ValueError: If the value is not a list, or an item does not have the given type.
    """
    values = metadata[f"tokenizer.ggml.{name}"]
    if not isinstance(values, list) or not all(type(value) is item for value in values):
        raise ValueError(f"tokenizer.ggml.{name} must be a list of {item.__name__} values")
    return values


def _tokenizer(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    """Build the byte-level BPE tokenizer that the metadata describe.

    Raises:
        KeyError: If a value is missing.
        ValueError: If the tokenizer is not a supported byte-level BPE, or a value is invalid.
    """
    kind, split = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or split not in SPLITS:
        raise ValueError(
            f"tokenizer {kind!r} with pre-tokenizer {split!r} is not supported; use the model's "
            "hub id"
        )
    tokens, types = (_list(metadata, *of) for of in (("tokens", str), ("token_type", int)))
    merges = [tuple(merge.split(" ", 1)) for merge in _list(metadata, "merges", str)]
    ids = {name: value for name, value in metadata.items() if name.endswith("_token_id")}
    for name, value in ids.items():
        if type(value) is not int or not 0 <= value < len(tokens):
            raise ValueError(f"{name} must be from 0 to {len(tokens) - 1:,}, got {value!r}")
    with usable(str(path)):
        check_tokens(tokens, str(path))
        core = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([*SPLITS[split], level])
        core.decoder = decoders.ByteLevel()
        for added, is_special in ((CONTROL, True), (USER_DEFINED, False)):
            core.add_tokens(
                [
                    tokenizers.AddedToken(token, special=is_special, normalized=False)
                    for token, kind in zip(tokens, types, strict=True)
                    if kind == added
                ]
            )
        _add_ends(core, metadata)
        roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        ids = {role: metadata.get(f"tokenizer.ggml.{x}_token_id") for role, x in roles.items()}
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": metadata.get("tokenizer.chat_template"),
            **{f"{role}_token": tokens[i] for role, i in ids.items() if i is not None},
        }
        return Tokenizer(core, settings, str(path))
