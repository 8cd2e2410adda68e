"""A graph beside a model's layers: it computes the states of batches with which it is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch
from bertkit.extensions.export.exported import Graph, Runtime, by_width
from bertkit.text.encoding import Encoding


class GraphLayers:
    """Where a graph is faster than a model's layers, it is what computes: states, which any head
    reads, or vectors of one `pooling`.

    `runtime` says of the tokens of texts which is the fastest for them, None for the model itself;
    `graphs` opens it.
    """

    def __init__(
        self,
        graphs: Callable[[Runtime], Graph],
        runtime: Callable[[Sequence[int]], Runtime | None],
        pooling: str,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.graphs, self.runtime, self.pooling, self.dtype = graphs, runtime, pooling, dtype

    def vectors(self, encodings: Sequence[Encoding]) -> NDArray[np.float32] | None:
        """A vector for each text, or None. Shapes: (S, D)."""
        runtime = self.runtime([len(encoding) for encoding in encodings])
        return None if runtime is None else self.graphs(runtime).rows(encodings)

    def __call__(self, batch: Batch) -> Tensor | None:
        """The states of a batch, or None. Shapes: (N, D)."""
        lengths = batch.layout.lengths
        runtime = self.runtime(lengths)
        if runtime is None:
            return None
        ends = np.cumsum(lengths)[:-1]
        ids, types = (np.split(part.numpy(), ends) for part in (batch.ids, batch.types))
        graph, states = self.graphs(runtime), []
        for part in by_width(lengths, graph.tile):
            inputs = graph.inputs(ids[part], types[part])
            states.append(graph.states(inputs)[inputs["attention_mask"].astype(bool)])
        return torch.from_numpy(np.concatenate(states)).to(self.dtype)
