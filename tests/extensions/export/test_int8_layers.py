"""Accuracy of int8 layers, agreement with `quantize_input`, and support for every family."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from tests.extensions.export.test_graph_export import encodings, model_of
from torch import nn

from bertkit.batch import Batch
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError
from bertkit.extensions.export.int8_layers import (
    Inputs,
    Int8Linear,
    Int8RowsLinear,
    calibrate,
    calibrated,
    largest_weight,
    layers_of,
    quantize_input,
    record_inputs,
    unavailable,
)
from bertkit.families import FAMILIES
from bertkit.metrics import cosines
from bertkit.nn.pooling import mean


@pytest.fixture(autouse=True)
def _available() -> None:
    if unavailable():
        pytest.skip(str(unavailable()))


def inputs_of(x: torch.Tensor) -> Inputs:
    step = float(x.max() - x.min()) / 255
    return Inputs(torch.full((x.shape[1],), 1 / step), step, round(-float(x.min()) / step))


@torch.inference_mode()
def test_int8_linear_matches_rounded_inputs_and_weights() -> None:
    linear, x = nn.Linear(64, 48), torch.randn(33, 64)
    inputs = inputs_of(x)
    layer = Int8Linear(linear, inputs)
    integers = quantize_input(x, inputs.factor, torch.tensor(inputs.zero - 128.0))
    quantized = (integers.float() - inputs.zero) * inputs.scale
    step = linear.weight.abs().amax(1, keepdim=True) / largest_weight()
    weights = (linear.weight / step).round() * step
    torch.testing.assert_close(layer(x), quantized @ weights.T + linear.bias, atol=1e-4, rtol=1e-4)
    assert float((layer(x) - linear(x)).abs().max()) > 1e-4  # Control: the layer rounds.


@given(zero=integers(0, 255), dtype=sampled_from([torch.float32, torch.bfloat16]))
def test_quantize_input_rounds_to_nearest_integer(zero: int, dtype: torch.dtype) -> None:
    torch.manual_seed(zero)
    x, factor = torch.randn(64, 32).to(dtype), (20 * torch.rand(32) + 20).to(dtype)
    exact = x.double() * factor.double() + zero
    quantized = quantize_input(x, factor, torch.tensor(zero - 128.0, dtype=dtype))
    assert quantized.dtype == torch.uint8
    rounding_error = (quantized.double() - exact.clamp(0, 255)).abs()
    # bf16 has 8 significant bits, so its values between 64 and 128 are 0.5 apart.
    assert float(rounding_error.max()) <= (0.5 + 1e-4 if dtype == torch.float32 else 0.75)


LARGEST = """
import torch
from torch import nn
from bertkit.extensions.export import int8_layers as quantize
linear = nn.Linear(64, 16, bias=False)
nn.init.ones_(linear.weight)
inputs = quantize.Inputs(torch.full((64,), 255.0), 1 / 255, 0)
with torch.inference_mode():
    exact = quantize.Int8Linear(linear, inputs)(torch.ones(1, 64))
    largest, quantize.largest_weight = quantize.largest_weight(), lambda: 127
    cut = quantize.Int8Linear(linear, inputs)(torch.ones(1, 64))
print(largest, exact[0, 0].item(), cut[0, 0].item())
"""


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="other processors accumulate in 32 bits"
)
def test_int8_sums_do_not_saturate() -> None:
    command, environment = [sys.executable, "-c", LARGEST], {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    environment = {**os.environ, **environment}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    largest, exact, saturated = process.stdout.split()
    assert int(largest) == 63
    assert float(exact) == pytest.approx(64, rel=1e-5)
    # Control: with a largest weight of 127, the largest sums saturate.
    assert float(saturated) < 40


@torch.inference_mode()
def test_smoothing_reduces_error_of_outlier_dimension() -> None:
    linear, x = nn.Linear(64, 48), torch.randn(256, 64)
    x[:, 7] *= 200
    exact = linear(x)

    def error(smoothing: torch.Tensor) -> float:
        smoothed = x / smoothing
        step = float(smoothed.max() - smoothed.min()) / 255
        inputs = Inputs(1 / (smoothing * step), step, round(-float(smoothed.min()) / step))
        return float((Int8Linear(linear, inputs)(x) - exact).abs().mean())

    balanced = (x.abs().amax(0) / linear.weight.abs().amax(0)).sqrt()
    assert error(balanced) < 0.5 * error(torch.ones(64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_int8_rows_linear_scales_each_row(dtype: torch.dtype, bias: bool) -> None:
    linear = nn.Linear(64, 48, bias)
    x = (torch.randn(33, 64) * torch.logspace(-3, 3, 33)[:, None]).to(dtype)
    x[5] = 0
    layer = Int8RowsLinear(linear, dtype)
    step = x.float().abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
    scales = linear.weight.abs().amax(1, keepdim=True) / largest_weight()
    weights = (linear.weight / scales).round() * scales
    expected = nn.functional.linear((x / step).round() * step, weights, linear.bias)
    out = layer(x)
    assert out.dtype == dtype
    rtol, atol = (1e-4, 1e-4) if dtype == torch.float32 else (8e-3, 4e-3)
    torch.testing.assert_close(out.float(), expected, rtol=rtol, atol=atol)
    assert float((out.float() - linear(x.float())).abs().max()) > 1e-2  # Control: the layer rounds.
    row_by_row = torch.cat([layer(x[index : index + 1]) for index in range(len(x))])
    assert torch.equal(row_by_row, out)  # The result is bit-identical in every batch.
    fp32_row_by_row = torch.cat([linear(x[index : index + 1].float()) for index in range(len(x))])
    # Control: fp32 rounding depends on the shape.
    assert not torch.equal(fp32_row_by_row, linear(x.float()))


LSTM_FAMILIES = {"lstm", "lstm-lm"}


@pytest.mark.parametrize("family", sorted(LSTM_FAMILIES))
def test_calibrate_rejects_lstm(family: str) -> None:
    with pytest.raises(ConfigError, match="RecurrentEncoder is not a Transformer"):
        calibrate(model_of(family), [])


@pytest.mark.parametrize("family", sorted({*FAMILIES} - LSTM_FAMILIES))
def test_int8_engine_approximates_fp32(family: str) -> None:
    model = model_of(family)
    quantized = encodings(np.random.default_rng(0), [40, 30, 20, 10, 5] * 4)
    engine = Engine(model)
    inputs = calibrate(model, [batch for _, batch in engine.batches(quantized)])
    assert set(inputs) == set(layers_of(model))
    new = encodings(np.random.default_rng(1), [33, 3, 17])
    exact = engine.rows(new, mean)
    int8_rows = Engine(model, int8=calibrated(inputs)).rows(new, mean)
    assert cosines(int8_rows, exact).min() > 0.98
    assert np.abs(int8_rows - exact).max() > 1e-4
    half_inputs = {name: i for name, i in inputs.items() if name.endswith((".up", ".out"))}
    half_rows = Engine(model, int8=calibrated(half_inputs)).rows(new, mean)
    assert np.abs(half_rows - exact).mean() < np.abs(int8_rows - exact).mean()


def test_calibration_leaves_model_unchanged() -> None:
    model = model_of("bert")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    read = encodings(np.random.default_rng(0), [9, 5])
    batch = Batch.of(sorted(read, key=len))
    calibrate(model, [batch])
    Engine(model, int8=calibrated(calibrate(model, [batch])))
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(RuntimeError), record_inputs(layers_of(model), lambda *_: None):
        raise RuntimeError
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_unavailable_keeps_rng_state() -> None:
    unavailable.cache_clear()
    before = torch.get_rng_state()
    unavailable()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert not torch.equal(torch.get_rng_state(), before)  # Control.
