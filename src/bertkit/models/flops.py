"""FLOPs of a training step, and the peak FLOP/s of GPUs.

MFU (model FLOPs utilization) is the fraction of a device's peak FLOP/s that the computations of the
model need:

    MFU = (6 Σ weights · rows + 12 L H K Σ T²) / (seconds · peak)

The first sum is over all matrices. `weights` is the number of elements of a matrix. `rows` is the
number of vectors that are multiplied by it: all tokens in a layer, the masked tokens in an MLM
head, and one vector per sequence in a sequence head. The second sum is over all sequences, of
length T. If local attention has a window of w tokens on each side, a token attends to at most
2w + 1 tokens instead of T. The factor 6 is 2 (a multiplication and an addition) times 3 (the
forward pass, the gradient of the inputs, and the gradient of the weights).

Source: Chowdhery et al. 2022, appendix B, in which N stands for the weights, and Q for K. As in
this source, each token of a causal model is counted as if it attended to all tokens.
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
"""Words in the name of a GPU -> its peak FLOP/s in bf16 with fp32 accumulation, without sparsity.

Source: the manufacturers' data sheets. Values that are given "with sparsity" are halved. The source
for GeForce cards is the white papers on GA102 (2020), AD102 (2022), and Blackwell (2025).
"""

OTHER_VARIANTS = {"MIG", "Laptop", "Max", "D"}
"""Words that mark the name of a partition of a GPU, or of a variant with a different peak."""


def known_peak(name: str) -> float | None:
    """Return the peak FLOP/s of a GPU in bf16, or None if the GPU is not in the table."""
    words = set(name.replace("-", " ").split())
    if words & OTHER_VARIANTS:
        return None
    return next((peak for known, peak in PEAKS.items() if set(known.split()) <= words), None)


def peak_of(device: str, dtype: torch.dtype) -> float | None:
    """Return the peak FLOP/s of a device, or None if unknown, as for CPUs and for fp32."""
    if not device.startswith("cuda") or dtype != torch.bfloat16:
        return None
    return known_peak(torch.cuda.get_device_name(device))


class Flops:
    """Counter of the FLOPs that a forward and a backward pass over a batch need.

    Args:
        model: The model.

    Raises:
        TypeError: If the model is not a Transformer.
    """

    def __init__(self, model: Model) -> None:
        self.top: TransformerConfig | None = None
        top = model.decoder or model.encoder
        if not (isinstance(model.encoder, Transformer) and isinstance(top, Transformer)):
            raise TypeError("FLOPs are supported only for Transformers")
        self.encoder, self.config = _weights_per_token(model.encoder), model.encoder.config
        self.decoder, self.source = 0, 0
        if model.decoder is not None:
            self.top = top.config
            for index in top.config.depths:
                cross = top.blocks[index].cross
                assert isinstance(cross, CrossAttention)
                self.source += _matrix_size(cross.kv)
            self.decoder = _weights_per_token(top) - self.source
        self.heads = dict.fromkeys(("token", "position", "sequence"), 0)
        for head in model.heads.values():
            self.heads[_row_type(head)] += _matrix_size(head)
            if isinstance(head, LanguageModelHead):
                tied = all(head.weight is not parameter for parameter in head.parameters())
                self.heads["position"] += head.weight.numel() if tied else 0

    def __call__(self, batch: Batch) -> int:
        layout, heads = batch.layout, self.heads
        positions = layout.total if batch.token_indices is None else len(batch.token_indices)
        macs = heads["token"] * layout.total + heads["position"] * positions
        macs += heads["sequence"] * layout.sequences
        if self.top is None:
            macs += self.encoder * layout.total
            return 6 * macs + 12 * _attention(self.config, layout, batch.window)
        assert batch.source is not None
        source, order = batch.source.layout, batch.source_order
        lengths: Sequence[int] = source.lengths
        if order is not None:
            lengths = [source.lengths[i] for i in order.tolist()]
        macs += self.encoder * source.total + self.decoder * layout.total
        macs += self.source * sum(lengths)
        across = sum(a * b for a, b in zip(layout.lengths, lengths, strict=True))
        width: int = self.top.layers * self.top.heads * self.top.head_width
        pairs = _attention(self.config, source) + _attention(self.top, layout) + width * across
        return 6 * macs + 12 * pairs


def _matrix_size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters() if weight.dim() > 1)


def _weights_per_token(stack: Transformer) -> int:
    """Return the number of weights that each token is multiplied by.

    Weights that several layers share are counted once for each layer.
    """
    widen = stack.embedding.widen
    blocks = sum(_matrix_size(stack.blocks[index]) for index in stack.config.depths)
    return blocks + (0 if widen is None else _matrix_size(widen))


def _row_type(head: nn.Module) -> str:
    match head:
        case LanguageModelHead() | Tagger():
            return "position"
        case Classifier() | CausalClassifier() | Pooler() | Pool():
            return "sequence"
    return "token"


def _attention(config: TransformerConfig, layout: Packed, window: int | None = None) -> int:
    """Return H · K times the number of pairs of a query and a key, summed over all layers."""
    windows = [min_window(layer_window, window) for layer_window in config.windows]
    limits = [layout.longest if w is None else 2 * w + 1 for w in windows]
    pairs = sum(length * min(length, limit) for limit in limits for length in layout.lengths)
    width: int = config.heads * config.head_width
    # Disentangled attention computes two more dot products for each score.
    if isinstance(config.positions, DisentangledPositions):
        width *= 2
    return width * pairs
