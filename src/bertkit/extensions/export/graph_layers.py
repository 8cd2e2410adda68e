"""Graphs that replace the layers of a model for batches with which they are faster."""

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
    """A replacement of the layers of a model by a graph, if the graph is faster for a batch.

    The graph computes hidden states for all heads, or embeddings with one pooling.

    Args:
        graphs: Function that returns the graph of a runtime.
        runtime: Function that returns the fastest runtime for texts with these numbers of tokens,
            or None for the layers of the model.
        pooling: Pooling of the embeddings.
        dtype: Dtype of the hidden states.
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
        """Compute the embeddings of texts, or return None if the model is faster.

        Args:
            encodings: Encodings of the texts.

        Shapes:
            Returns (S, D).
        """
        runtime = self.runtime([len(encoding) for encoding in encodings])
        return None if runtime is None else self.graphs(runtime).rows(encodings)

    def __call__(self, batch: Batch) -> Tensor | None:
        """Compute the hidden states of a batch, or return None if the model is faster.

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
