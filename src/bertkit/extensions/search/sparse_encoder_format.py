"""Model format of SPLADE directories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from bertkit.checkpoint.directory import Stored
from bertkit.checkpoint.formats import LoadSettings
from bertkit.extensions.search.sparse_embedding import EmbedSparse
from bertkit.extensions.search.splade_files import stored_splade
from bertkit.pipelines.embed import Embed
from bertkit.pipelines.supported import SupportedPipelines, supported_pipelines
from bertkit.pipelines.task import TaskPipeline
from bertkit.pipelines.transformer_format import TransformerFormat


class SparseEncoderFormat(TransformerFormat):
    """The format of a directory with the module `SpladePooling`."""

    noun = "a SPLADE model"
    remedy = "use bertkit.pipeline('sparse-embedding', folder)"

    def stored(self) -> Stored:
        return replace(stored_splade(self.path), format=self)

    def load_task(self, settings: LoadSettings) -> TaskPipeline[Any]:
        raise self.mismatch("a fine-tuned model")

    def load_pipelines(self, settings: LoadSettings) -> SupportedPipelines:
        # The server checks a model by its dense embeddings, but does not return them.
        supported = supported_pipelines(replace(self.load(), format=None), settings)
        embed = cast("Embed", supported.pipelines.pop("embed"))
        sparse = EmbedSparse(embed.loaded, embed.engine)
        # Other masked language models have no form, because their embeddings are not sparse.
        sparse.example = "A cat sat on the mat."
        supported.pipelines["sparse-embedding"] = sparse
        return supported
