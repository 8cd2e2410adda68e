"""One way to run a model over encoded texts: sort by length, pack, compute, restore the order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch, by_length
from bertkit.engine.heads import without_dead_heads
from bertkit.engine.linear import packed
from bertkit.engine.quantize import Inputs
from bertkit.models.model import Model
from bertkit.nn.precision import Precision, resolve
from bertkit.text.tokenizer import Encoding

BUDGET_TOKENS = 4096
"""Tokens of a batch; on two cores more gain nothing (docs/log.md)."""

Read = Callable[[Tensor, Batch], Tensor]
"""What to keep of a batch: states (N, D) -> (S, anything), a row for each sequence."""


class Engine:
    """A model ready for inference; it never changes the model it was given.

    With `batch_invariant` a text's states are the same to the last bit whatever it is run with (on
    one machine, with as many threads), for each goes through the model by itself: slower. `int8`
    says which linear layers compute in integers.
    """

    def __init__(
        self,
        model: Model,
        *,
        precision: Precision = "fp32",
        budget_tokens: int = BUDGET_TOKENS,
        batch_invariant: bool = False,
        int8: Mapping[str, Inputs] | None = None,
    ) -> None:
        self.device = next(model.parameters()).device
        self.dtype = resolve(precision, self.device.type)
        self.model = packed(without_dead_heads(model), self.dtype, int8)
        # matrix products round by their shape, which is a text's own only when it is alone
        self.budget_tokens = 1 if batch_invariant else budget_tokens

    @torch.inference_mode()
    def run(self, encodings: Sequence[Encoding], read: Read) -> NDArray[np.float32]:
        """`read` of every text, in the order given. Shapes: S encodings -> (S, …)."""
        found: NDArray[np.float32] | None = None
        for places, batch in self.batches(encodings):
            rows = read(self.model.encoder(batch), batch).float().cpu().numpy()
            if found is None:
                found = np.empty((len(encodings), *rows.shape[1:]), dtype=np.float32)
            found[places] = rows
        return np.empty((0, 0), dtype=np.float32) if found is None else found

    def batches(self, encodings: Sequence[Encoding]) -> Iterator[tuple[list[int], Batch]]:
        """Packed batches, shortest texts first, each with the places of its texts."""
        lengths = [len(encoding) for encoding in encodings]
        for places in by_length(lengths, self.budget_tokens):
            batch = Batch.of([encodings[place] for place in places])
            yield places, batch.to(self.device) if self.device.type != "cpu" else batch
