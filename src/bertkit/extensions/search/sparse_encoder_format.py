"""Model format of SPLADE directories."""

from __future__ import annotations

from typing import cast

from bertkit.checkpoint.directory import Stored
from bertkit.checkpoint.formats import LoadSettings
from bertkit.extensions.search.sparse_embedding import EmbedSparse
from bertkit.extensions.search.splade_files import stored_splade
from bertkit.pipelines.embed import Embed
from bertkit.pipelines.supported import SupportedPipelines
from bertkit.pipelines.transformer_format import TransformerFormat


class SparseEncoderFormat(TransformerFormat):
    """The format of a directory with the module `SpladePooling`."""

    noun = "a SPLADE model"
    remedy = "use bertkit.pipeline('sparse-embedding', folder)"

    def stored(self) -> Stored:
        return stored_splade(self.path)

    def load_embedder(self, settings: LoadSettings) -> Embed:
        raise self.mismatch("a model of dense embeddings")

    def load_pipelines(self, settings: LoadSettings) -> SupportedPipelines:
        supported = super().load_pipelines(settings)
        embed = cast("Embed", supported.pipelines.pop("embed"))
        sparse = EmbedSparse(embed.loaded, embed.engine)
        # Other masked language models have no form, because their embeddings are not sparse.
        sparse.example = "A cat sat on the mat."
        supported.pipelines["sparse-embedding"] = sparse
        return supported
