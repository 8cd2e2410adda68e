"""A Transformer layer matches its formula for each type and position of norms."""

from __future__ import annotations

import pytest
import torch
from tests.factories import tiny_config
from torch import nn

from bertkit.batch import Packed
from bertkit.models.block import Block, norm_of
from bertkit.models.config import NormSettings
from bertkit.nn.attention import Trace
from bertkit.nn.attention_context import AttentionContext
from bertkit.nn.norm import LayerNorm, RMSNorm

LAYOUT = AttentionContext(Packed.of([2, 3]))
GPT2 = NormSettings(place="pre", embedding=False, final=True, eps=1e-5)
T5 = NormSettings(kind="rms", place="pre", embedding=False, final=True, bias=False, eps=1e-6)


def block_of(norm: NormSettings, *, first: bool = False) -> Block:
    torch.manual_seed(0)
    block = Block(tiny_config(9, norm=norm, dropout=0.0), first=first).eval()
    with torch.no_grad():
        for weight in block.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return block


@pytest.mark.parametrize("norm", [GPT2, T5], ids=["layer", "rms"])
def test_pre_norm_layer_matches_formula(norm: NormSettings) -> None:
    block, x = block_of(norm), torch.randn(5, 16)
    middle = x + block.attention(block.attention_norm(x), LAYOUT)
    expected = middle + block.feedforward(block.feedforward_norm(middle))
    torch.testing.assert_close(block(x, LAYOUT), expected)


def test_post_norm_layer_matches_formula() -> None:
    block, x = block_of(NormSettings()), torch.randn(5, 16)
    middle = block.attention_norm(x + block.attention(x, LAYOUT))
    expected = block.feedforward_norm(middle + block.feedforward(middle))
    torch.testing.assert_close(block(x, LAYOUT), expected)
    assert not torch.allclose(block_of(GPT2)(x, LAYOUT), expected)  # the control


@pytest.mark.parametrize("norm", [NormSettings(), GPT2, T5], ids=["post", "pre", "rms"])
def test_last_step_equals_layer_output(norm: NormSettings) -> None:
    block, x, trace = block_of(norm), torch.randn(5, 16), Trace()
    expected = block(x, LAYOUT, trace)
    steps = block.steps(x, trace.heads[0])
    torch.testing.assert_close(list(steps.values())[-1], expected)
    torch.testing.assert_close(steps["sum"], x + steps["attention"])
    rest = steps["sum"] if norm.place == "pre" else steps["norm"]
    torch.testing.assert_close(steps["second sum"], rest + steps["feed-forward"])


def test_first_layer_has_no_norm_if_disabled() -> None:
    modernbert = NormSettings(place="pre", first=False)
    assert isinstance(block_of(modernbert, first=True).attention_norm, nn.Identity)
    for block in (block_of(modernbert), block_of(GPT2, first=True)):
        assert isinstance(block.attention_norm, LayerNorm)


def test_norm_type_follows_setting() -> None:
    assert isinstance(norm_of(T5, 4), RMSNorm)
    assert not [name for name, _ in norm_of(T5, 4).named_parameters() if "bias" in name]
    x = torch.randn(3, 4)
    expected = torch.nn.functional.rms_norm(x, (4,), eps=1e-6)
    torch.testing.assert_close(norm_of(T5, 4)(x), expected)
    assert not torch.allclose(norm_of(GPT2, 4)(x), expected)
