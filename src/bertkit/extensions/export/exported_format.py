"""Model format of the directories that `bertkit export` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertkit.checkpoint.formats import LoadSettings, ModelFormat
from bertkit.errors import ConfigError
from bertkit.extensions.export.exported import Exported, GraphPrecision
from bertkit.nn.precision import check_cpu

if TYPE_CHECKING:
    from bertkit.tasks.inference import Answering


class ExportedFormat(ModelFormat):
    """The format of a directory that `bertkit export` wrote, with a graph and a tokenizer."""

    noun = "an exported model"
    remedy = (
        "use it with `bertkit embed`, `predict` or `search`, or pass the model that it was "
        "exported from"
    )

    def load_embedder(self, settings: LoadSettings) -> Exported:
        if settings.pooling is not None or settings.batch_invariant:
            raise ConfigError(
                "exported graphs do not support pooling and invariant; remove these options"
            )
        exported = Exported(self.path, self._precision(settings))
        if settings.normalize is not None:
            exported.normalize = settings.normalize
        return exported

    def load_predictor(self, settings: LoadSettings) -> Answering[Any]:
        from bertkit.extensions.export.exported_task import ExportedAnswer

        return ExportedAnswer(self.path, settings.task, self._precision(settings))

    def _precision(self, settings: LoadSettings) -> GraphPrecision:
        if settings.precision == "int8":
            raise ConfigError("exported graphs do not support precision = int8; remove this option")
        check_cpu(settings.device, "an exported graph")
        return settings.precision
