"""Model format that lets a server load a store as the pipeline `search`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertkit.checkpoint.formats import LoadSettings, ModelFormat

# At run time, this import would require torch.
if TYPE_CHECKING:
    from bertkit.pipelines.supported import SupportedPipelines


class StoreFormat(ModelFormat):
    """The format of a store directory, which contains documents but no model."""

    noun = "a store of documents"
    remedy = "use `bertkit search`"

    def load_pipelines(self, settings: LoadSettings) -> SupportedPipelines:
        from bertkit.extensions.search.pipeline import SearchPipeline
        from bertkit.pipelines.supported import SupportedPipelines

        search = SearchPipeline(str(self.path), settings.precision, settings.device)
        pipelines = {"search": search}
        return SupportedPipelines(family="store", length=0, dimension=0, pipelines={**pipelines})
