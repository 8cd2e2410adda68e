"""Packed linear layers match plain layers or report why they are unavailable."""

import pytest
import torch
from tests.factories import tiny_model
from torch import nn

from bertkit.engine import packed_linear as linear
from bertkit.engine.packed_linear import NAMES, PackedLinear, packed, unavailable
from bertkit.errors import DeviceError
from bertkit.nn.feedforward import ACTIVATIONS

SHAPE = {"hidden": 32, "layers": 2, "intermediate": 64}


@pytest.mark.parametrize("activation", [None, *NAMES])
def test_packed_linear_matches_plain_layer(activation: str | None) -> None:
    reason = unavailable(torch.float32)
    if reason:
        pytest.skip(reason)
    plain, x = nn.Linear(48, 80), torch.randn(33, 48)
    expected = plain(x) if activation is None else ACTIVATIONS[activation](plain(x))
    with torch.no_grad():
        torch.testing.assert_close(
            PackedLinear(plain, activation)(x), expected, atol=1e-5, rtol=1e-5
        )


def test_packing_does_not_change_model() -> None:
    model = tiny_model(50, "pooler", **SHAPE)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    packed(model, torch.bfloat16)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "relu2", "silu"])
def test_packed_model_matches_for_each_activation(activation: str) -> None:
    from bertkit.batch import Batch, Packed

    model = tiny_model(50, spread=0.2, **SHAPE, **{"feedforward.activation": activation}).eval()
    with torch.no_grad():
        layout = Packed.of([3, 9])
        batch = Batch(torch.randint(0, 50, (12,)), torch.zeros(12, dtype=torch.long), layout)
        actual = packed(model, torch.float32).encoder(batch)
        torch.testing.assert_close(actual, model.encoder(batch), atol=1e-5, rtol=1e-4)


def test_packing_keeps_plain_layers_without_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "unavailable", lambda dtype: "not in this build")
    model = packed(tiny_model(50, **SHAPE), torch.float32)
    assert not any(isinstance(part, PackedLinear) for part in model.modules())
    assert isinstance(model.encoder.blocks[0].attention.qkv, nn.Linear)
    with pytest.raises(DeviceError, match="int8: not in this build; choose another precision="):
        packed(tiny_model(50, **SHAPE), torch.float32, int8=lambda *_: None)


def test_packing_uses_no_random_numbers() -> None:
    """Random numbers after packing do not depend on whether the process packed before."""
    for dtype in (torch.float32, torch.bfloat16):
        unavailable.cache_clear()
        before = torch.get_rng_state()
        packed(tiny_model(50, **SHAPE), dtype)
        assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), before)  # the control
