"""The arithmetic of a training step by a formula, and how much of it a device can do.

MFU, model FLOPs utilization, is the share of a device's peak that the model itself needs:

    MFU = (6 Σ weights · rows + 12 L H K Σ T²) / (seconds · peak)

Weights are those of matrices, and rows what goes through them: all tokens through the layers, only
chosen places through a head of masked words, one a sequence through one of sentences. T is each
sequence's own length; a token with a window of w on each side sees 2w + 1 at most. 6 is 2, for a
product and its sum, times 3: forward, and backward by inputs and by weights.
Source: Chowdhery et al. 2022, appendix B, where weights are N and K is Q. As there, a causal
model's tokens count as if they saw all others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from bertkit.batch import Batch, Packed
from bertkit.models.config import DisentangledPositions, TransformerConfig
from bertkit.models.heads import CausalClassifier, Classifier, LanguageModelHead, Pooler, Tagger
from bertkit.models.model import Model
from bertkit.models.transformer import Transformer, min_window
from bertkit.nn.attention import CrossAttention
from bertkit.nn.pooling import Pool

PEAKS = {
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100 HBM3": 989e12,
    "A100": 312e12,
    "A40": 150e12,
    "A30": 165e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX A6000": 155e12,
    "RTX 5090": 210e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "MI300X": 1307e12,
}
"""FLOP/s of a GPU in bf16 without sparsity and summed in fp32, by words of its name.

Source: the makers' data sheets, where a number "with sparsity" is halved; of GeForce cards the
white papers of GA102 (2020), AD102 (2022) and Blackwell (2025).
"""

SLOWER = {"MIG", "Laptop", "Max", "D"}
"""Words of a name that say that it is a part of a GPU, or another one."""


def known_peak(name: str) -> float | None:
    """FLOP/s of the GPU of this name in bf16; None for one that is not in the table."""
    words = set(name.replace("-", " ").split())
    if words & SLOWER:
        return None
    return next((peak for known, peak in PEAKS.items() if set(known.split()) <= words), None)


def peak_of(device: str, dtype: torch.dtype) -> float | None:
    """FLOP/s of a device at most; None where no honest number is known: of CPUs, and in fp32."""
    if not device.startswith("cuda") or dtype != torch.bfloat16:
        return None
    return known_peak(torch.cuda.get_device_name(device))


class Flops:
    """FLOPs of a forward and a backward pass over a batch.

    Raises:
        TypeError: If the model is not a Transformer, which the formula requires.
    """

    def __init__(self, model: Model) -> None:
        self.top: TransformerConfig | None = None
        top = model.decoder or model.encoder
        if not (isinstance(model.encoder, Transformer) and isinstance(top, Transformer)):
            raise TypeError("the formula is about Transformers")
        self.encoder, self.config = _by_token(model.encoder), model.encoder.config
        self.decoder, self.source = 0, 0
        if model.decoder is not None:
            self.top = top.config
            for place in top.config.depths:
                cross = top.blocks[place].cross
                assert isinstance(cross, CrossAttention)
                self.source += _matrices(cross.kv)
            self.decoder = _by_token(top) - self.source
        self.heads = dict.fromkeys(("token", "place", "sequence"), 0)
        for head in model.heads.values():
            self.heads[_row(head)] += _matrices(head)
            if isinstance(head, LanguageModelHead):
                tied = all(head.weight is not own for own in head.parameters())
                self.heads["place"] += head.weight.numel() if tied else 0

    def __call__(self, batch: Batch) -> int:
        layout, heads = batch.layout, self.heads
        places = layout.total if batch.token_indices is None else len(batch.token_indices)
        products = heads["token"] * layout.total + heads["place"] * places
        products += heads["sequence"] * layout.sequences
        if self.top is None:
            products += self.encoder * layout.total
            return 6 * products + 12 * _pairs(self.config, layout, batch.window)
        assert batch.source is not None
        source, order = batch.source.layout, batch.source_order
        lengths: Sequence[int] = source.lengths
        if order is not None:
            lengths = [source.lengths[place] for place in order.tolist()]
        products += self.encoder * source.total + self.decoder * layout.total
        products += self.source * sum(lengths)
        across = sum(a * b for a, b in zip(layout.lengths, lengths, strict=True))
        width: int = self.top.layers * self.top.heads * self.top.head_width
        pairs = _pairs(self.config, source) + _pairs(self.top, layout) + width * across
        return 6 * products + 12 * pairs


def _matrices(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters() if weight.dim() > 1)


def _by_token(stack: Transformer) -> int:
    """Weights that each token goes through; shared ones count in each layer."""
    widen = stack.embedding.widen
    blocks = sum(_matrices(stack.blocks[place]) for place in stack.config.depths)
    return blocks + (0 if widen is None else _matrices(widen))


def _row(head: nn.Module) -> str:
    match head:
        case LanguageModelHead() | Tagger():
            return "place"
        case Classifier() | CausalClassifier() | Pooler() | Pool():
            return "sequence"
    return "token"


def _pairs(config: TransformerConfig, layout: Packed, window: int | None = None) -> int:
    """H · K for each pair of tokens of which one sees the other, over all layers."""
    windows = [min_window(own, window) for own in config.windows]
    reaches = [layout.longest if w is None else 2 * w + 1 for w in windows]
    pairs = sum(length * min(length, reach) for reach in reaches for length in layout.lengths)
    width: int = config.heads * config.head_width
    if isinstance(config.positions, DisentangledPositions):  # two products more for each score
        width *= 2
    return width * pairs
