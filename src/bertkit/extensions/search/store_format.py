"""Format of stores, which a server offers as the pipeline `search`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertkit.checkpoint.formats import LoadSettings, ModelFormat

if TYPE_CHECKING:  # Messages about stores need no torch.
    from bertkit.pipelines.supported import SupportedPipelines


class StoreFormat(ModelFormat):
    """Directory of a store, which contains documents and no model."""

    noun = "a store of documents"
    remedy = "use `bertkit search`"

    def load_pipelines(self, settings: LoadSettings) -> SupportedPipelines:
        from bertkit.extensions.search.pipeline import SearchPipeline
        from bertkit.pipelines.supported import SupportedPipelines

        search = SearchPipeline(str(self.path), settings.precision, settings.device)
        pipelines = {"search": search}
        return SupportedPipelines(family="store", length=0, dimension=0, pipelines={**pipelines})
