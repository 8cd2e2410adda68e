"""Embeddings with a model that was tuned on this machine.

torch is imported only if it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertkit.console import say
from bertkit.extensions.export.exported import Exported
from bertkit.extensions.export.tuning_record import GRAPH_DIRECTORY, Tuned, read_tuned
from bertkit.text.encoding import Encoding

if TYPE_CHECKING:
    from bertkit.pipelines.embed import Embed


def tuned_embedder(folder: Path) -> TunedEmbed | None:
    """Load a tuned model, or return None if tuning found no texts for which a graph is fastest.

    Args:
        folder: The model directory.
    """
    tuned = read_tuned(folder)
    return TunedEmbed(folder, tuned) if tuned is not None and tuned.runtimes else None


class TunedEmbed(Exported):
    """A tuned embedding model with a graph, which is the fastest way to embed some texts.

    torch is imported only when other texts are embedded.

    Args:
        folder: The model directory.
        tuned: Stored settings of this machine.
    """

    # Windows are possible, because these graphs do not normalize embeddings.
    windows = True

    def __init__(self, folder: Path, tuned: Tuned) -> None:
        self.folder, self.tuned = folder, tuned
        self.graphs = tuned.graphs(folder)
        default = tuned.runtime([1]) or tuned.runtimes[0]
        super().__init__(folder / GRAPH_DIRECTORY, graph=self.graphs(default))
        say(f"precision: {tuned.precision}, {tuned.engine_description}, as tuned on this machine")

    @cached_property
    def packed(self) -> Embed:
        from bertkit.checkpoint.directory import load
        from bertkit.extensions.export.accelerated import accelerated_engine
        from bertkit.pipelines.embed import Embed

        loaded = load(self.folder)
        packed = Embed(loaded, accelerated_engine(loaded, "auto", graphs=self.graphs) or "auto")
        packed.prompt.usual = self.prompt.usual
        return packed

    def vectors(
        self, encodings: Sequence[Encoding], owner: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        runtime = self.tuned.runtime([len(encoding) for encoding in encodings])
        if runtime is None:
            return self.packed.vectors(encodings, owner)
        self.graph = self.graphs(runtime)
        return super().vectors(encodings, owner)
