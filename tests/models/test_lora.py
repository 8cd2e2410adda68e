"""LoRA models train only their adapters and heads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tests.factories import tiny_config, tiny_model

from bertkit.batch import Batch, Packed
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.families.llama import LLAMA
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.families import ALBERT, BERT, FAMILIES, Family
from bertkit.models.lora import LoRA, adapters, add_lora, depths, freeze, merged
from bertkit.models.model import Model, build


def adapted(
    *heads: str, family: Family = BERT, lora: LoRA | None = None, frozen: int = 0, **size: Any
) -> Model:
    model = tiny_model(20, *heads, labels=("a", "b"), family=family, layers=2, dropout=0.0, **size)
    sizes = partial(family.sizes, config=model.config)
    add_lora(model, lora or LoRA(rank=2), sizes, frozen_layers=frozen)
    return model


def trainable_names(model: Model) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_adapters_and_head_are_trainable() -> None:
    model = adapted("classify")
    names = trainable_names(model)
    assert {name.split(".")[-1] for name in names if name.startswith("encoder")} == {
        "lora_a",
        "lora_b",
    }
    assert len(adapters(model)) == 8
    assert names > {name for name, _ in model.named_parameters() if name.startswith("heads.")}


@pytest.mark.parametrize("family", [GPT2, LLAMA], ids=lambda f: f.name)
def test_lm_head_is_frozen(family: Family) -> None:
    names = trainable_names(adapted("lm", family=family))
    assert names
    assert all(name.endswith(("lora_a", "lora_b")) for name in names)


def test_adapter_parts_match_family() -> None:
    sizes = {name: part.sizes for name, part in adapters(adapted("lm", family=GPT2)).items()}
    assert sizes["encoder.blocks.0.attention.qkv"] == (48,)  # c_attn is one matrix
    shared = {"heads": 4, "attention.kv_heads": 2}
    sizes = {n: part.sizes for n, part in adapters(adapted("lm", family=LLAMA, **shared)).items()}
    assert sizes["encoder.blocks.1.attention.qkv"] == (16, 8, 8)
    assert sizes["encoder.blocks.1.feedforward.up"] == (32, 32)  # gate_proj, up_proj


def test_adapters_are_added_to_selected_layers() -> None:
    model = adapted("classify", lora=LoRA(rank=1, layers=("qkv", "down")), frozen=1)
    assert set(adapters(model)) == {
        "encoder.blocks.1.attention.qkv",
        "encoder.blocks.1.feedforward.down",
    }
    with pytest.raises(ConfigError, match="no layer is left for an adapter"):
        adapted("classify", frozen=2)


def test_layers_that_share_weights_share_adapters() -> None:
    model = tiny_model(20, "mlm", family=ALBERT, layers=3, layer_sharing=(0, 0, 0), embedding=8)
    add_lora(model, LoRA(rank=1), partial(ALBERT.sizes, config=model.config), frozen_layers=0)
    assert len(adapters(model)) == 4


def test_merged_model_has_same_output() -> None:
    model = adapted("classify").eval()
    ids = torch.tensor([5, 6, 7, 8])
    batch = Batch(ids, torch.zeros_like(ids), Packed.of([4]))
    before = model(batch)["classify"]
    plain = merged(model)
    assert torch.equal(plain(batch)["classify"], before)
    with torch.no_grad():
        for layer in adapters(model).values():
            layer.lora_b.normal_()
    after = model(batch)["classify"]
    assert (after - before).abs().max() > 1e-3  # the control
    assert not adapters(merged(model))
    assert torch.allclose(merged(model)(batch)["classify"], after, atol=1e-5)
    assert torch.allclose(Engine(model).model(batch)["classify"], after, atol=1e-5)
    assert len(adapters(model)) == 8  # the original model keeps its adapters
    assert merged(plain) is plain


def test_depths_of_embedding_weights_are_zero() -> None:
    names = ["embedding.tokens.weight", "distances.table.weight", "convolution.conv.weight"]
    below = [f"encoder.{name}" for name in (*names, "relative.table.weight")]
    last = "encoder.blocks.0.attention.out.weight"
    depth_of = depths([*below, last, "encoder.norm.weight", "heads.classify.out.weight"])
    assert [depth_of[name] for name in below] == [0, 0, 0, 0]
    assert depth_of["encoder.norm.weight"] == depth_of[last] == 1
    assert depth_of["heads.classify.out.weight"] == 2


def test_depths_rejects_an_unknown_encoder_weight() -> None:
    with pytest.raises(ValueError, match=r"encoder\.other\.weight: the depth .* is unknown"):
        depths(["encoder.blocks.0.attention.out.weight", "encoder.other.weight"])


FREEZABLE = [name for name, family in FAMILIES.items() if family is not ALBERT]
"""Families whose layers do not share weights."""


def freezable_model(family: Family) -> Model:
    options: dict[str, Any] = {"layers": 2, "family": family}
    options |= {"intermediate": 64} if family is OPENAI_GPT else {}
    encoder = tiny_config(30, **options)
    if family.decoder is None:
        return build(encoder, [])
    return build(encoder, [], decoder=tiny_config(30, **{**options, "family": family.decoder}))


@pytest.mark.parametrize("name", FREEZABLE)
def test_freeze_all_layers_keeps_every_encoder_weight(name: str) -> None:
    model = freezable_model(FAMILIES[name])
    freeze(model, 2)
    assert not any(name.startswith("encoder.") for name in trainable_names(model))
    freeze(model, 1)  # the control
    assert any(name.startswith("encoder.") for name in trainable_names(model))
