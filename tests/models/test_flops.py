"""The FLOP formula of a training step matches the operations that torch counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.factories import tiny_config
from torch.utils.flop_counter import FlopCounterMode

from bertkit.batch import Batch, Packed
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.families import FAMILIES
from bertkit.models.flops import Flops, known_peak, peak_of
from bertkit.models.model import Model, build
from bertkit.objectives.loss import totals
from bertkit.objectives.pretrain import pretrain

SIZE: dict[str, Any] = {"hidden": 64, "layers": 3, "heads": 4, "intermediate": 128, "length": 128}


def batch_of(lengths: list[int], num_masked: int | None, *, sequences: bool = False) -> Batch:
    layout = Packed.of(lengths)
    chosen = None if num_masked is None else torch.arange(num_masked)
    name, count = ("lm", layout.total) if num_masked is None else ("mlm", num_masked)
    targets = {name: torch.zeros(count, dtype=torch.long)}
    if sequences:
        targets["nsp"] = torch.zeros(len(lengths), dtype=torch.long)
    ids = torch.randint(5, 500, (layout.total,))
    return Batch(ids, torch.zeros_like(ids), layout, token_indices=chosen, targets=targets)


def counted(model: Model, batch: Batch) -> int:
    """Return the FLOPs that torch counts in the forward and backward pass."""
    with FlopCounterMode(display=False) as counter:
        pretrain(model, batch, totals([batch])).total.backward()
    return counter.get_total_flops()


def test_mlm_and_nsp_flops_match_torch() -> None:
    model = build(tiny_config(500, **SIZE, dropout=0.0), ("mlm", "nsp"))
    batch = batch_of([64] * 8, 77, sequences=True)
    assert Flops(model)(batch) == pytest.approx(counted(model, batch), rel=0.03)


def test_flops_depend_on_sequence_lengths() -> None:
    """One long sequence costs more than many short sequences, because of attention."""
    flops = Flops(build(tiny_config(500, **SIZE), ("mlm",)))
    long, short = batch_of([128], 10), batch_of([8] * 16, 10)
    assert flops(long) - flops(short) == 12 * 3 * 64 * (128**2 - 16 * 8**2)


def test_mlm_head_flops_depend_on_masked_tokens() -> None:
    flops = Flops(build(tiny_config(500, **SIZE), ("mlm",)))
    more = flops(batch_of([64] * 2, 20)) - flops(batch_of([64] * 2, 10))
    assert more == 6 * 10 * (64 * 64 + 500 * 64)


def test_causal_lm_flops_match_torch() -> None:
    model = build(tiny_config(500, family=FAMILIES["gpt2"], **SIZE, dropout=0.0), ("lm",))
    batch = batch_of([64] * 8, None)
    assert Flops(model)(batch) == pytest.approx(counted(model, batch), rel=0.03)


def test_encoder_decoder_flops_match_torch() -> None:
    family = FAMILIES["bart"]
    assert family.decoder is not None
    sizes = {**SIZE, "dropout": 0.0}
    encoder, decoder = (tiny_config(500, family=side, **sizes) for side in (family, family.decoder))
    model = build(encoder, ("lm",), decoder=decoder)
    source = batch_of([32] * 4 + [64] * 4, None)
    batch = replace(batch_of([48] * 8, None), source=source, source_order=torch.arange(8).flip(0))
    assert Flops(model)(batch) == pytest.approx(counted(model, batch), rel=0.03)


def test_windows_reduce_flops_and_shared_layers_do_not() -> None:
    batch = batch_of([128], 10)
    whole = Flops(build(tiny_config(500, **SIZE), ("mlm",)))(batch)
    window = {"attention.window": {"tokens": 4, "global_every": 3}}
    local = Flops(build(tiny_config(500, **SIZE, **window), ("mlm",)))(batch)
    assert whole - local == 12 * 2 * 64 * 128 * (128 - 9)
    everywhere = 12 * 3 * 64 * 128 * (128 - 9)
    model = Flops(build(tiny_config(500, **SIZE, **window), ("mlm",)))
    assert whole - model(replace(batch, window=4)) == everywhere
    assert local == model(replace(batch, window=200))  # at most the window of the model
    shared = Flops(build(tiny_config(500, **SIZE, layer_sharing=[0, 0, 0]), ("mlm",)))(batch)
    assert shared == whole


def test_disentangled_positions_add_two_matmuls_per_score() -> None:
    plain = Flops(build(tiny_config(500, **SIZE), ("mlm",)))
    positions = {"kind": "disentangled", "side_buckets": 8}
    far = Flops(build(tiny_config(500, **SIZE, positions=positions), ("mlm",)))
    batch = batch_of([40, 60], 5)
    assert far(batch) - plain(batch) == 12 * 3 * 64 * (40**2 + 60**2)


def test_flops_rejects_lstm() -> None:
    config = tiny_config(500, **SIZE, family=LSTM_LM)
    with pytest.raises(TypeError, match="supported only for Transformers"):
        Flops(build(config, ()))


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA H100 NVL", 835e12),
     ("NVIDIA H200", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA A10", 125e12),
     ("NVIDIA L4", 121e12), ("NVIDIA L40S", 362e12), ("NVIDIA GeForce RTX 4090", 165e12),
     ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA GeForce RTX 4090 D", None),
     ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None), ("NVIDIA A10G", None), ("Tesla T4", None)],
)  # fmt: skip
def test_known_peak_matches_complete_device_name(name: str, peak: float | None) -> None:
    assert known_peak(name) == peak


def test_peak_of_cpu_is_unknown() -> None:
    assert peak_of("cpu", torch.bfloat16) is None
    assert peak_of("cuda", torch.float32) is None
