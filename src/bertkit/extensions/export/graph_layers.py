"""Use of a graph instead of a model's layers, for those batches that the graph computes faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import Batch
from bertkit.extensions.export.exported import Graph, Runtime, split_by_width
from bertkit.text.encoding import Encoding


class GraphLayers:
    """A function that computes a model's layers with a graph, if the graph is faster for a batch.

    The graph computes either hidden states, which every head can use, or embeddings with one kind
    of pooling.

    Args:
        graphs: Function that returns the graph for a runtime.
        runtime: Function that takes the number of tokens of each text. It returns the runtime that
            computes the texts fastest, or None if the model's layers are faster.
        pooling: Pooling of the embeddings.
        dtype: Dtype of the hidden states to return.
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
        """Compute the embeddings of texts, or return None if the model's layers are faster.

        Args:
            encodings: Encodings of the texts.

        Shapes:
            Returns (S, D).
        """
        runtime = self.runtime([len(encoding) for encoding in encodings])
        return None if runtime is None else self.graphs(runtime).rows(encodings)

    def __call__(self, batch: Batch) -> Tensor | None:
        """Compute the hidden states of a batch, or return None if the model's layers are faster.

        Args:
            batch: The batch.

        Shapes:
            Returns (N, D).
        """
        lengths = batch.layout.lengths
        runtime = self.runtime(lengths)
        if runtime is None:
            return None
        ends = np.cumsum(lengths)[:-1]
        ids, types = (np.split(part.numpy(), ends) for part in (batch.ids, batch.types))
        graph, states = self.graphs(runtime), []
        for part in split_by_width(lengths, graph.tile):
            inputs = graph.inputs(ids[part], types[part])
            states.append(graph.states(inputs)[inputs["attention_mask"].astype(bool)])
        return torch.from_numpy(np.concatenate(states)).to(self.dtype)
