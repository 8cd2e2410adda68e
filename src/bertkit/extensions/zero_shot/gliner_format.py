"""The model format of GLiNER directories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertkit.checkpoint.directory import Stored
from bertkit.checkpoint.formats import LoadSettings, ModelFormat
from bertkit.extensions.zero_shot.entities import ZeroShotEntities
from bertkit.extensions.zero_shot.gliner_files import load_gliner, stored_gliner
from bertkit.pipelines.model_info import info
from bertkit.pipelines.supported import SupportedPipelines


class GlinerFormat(ModelFormat):
    """The format of a directory that contains `gliner_config.json`."""

    noun = "a GLiNER model"
    remedy = (
        "use bertkit.pipeline('zero-shot-entities', folder), or "
        "`bertkit predict --pipeline zero-shot-entities`"
    )

    def stored(self) -> Stored:
        return replace(stored_gliner(self.path), format=self)

    def load_pipelines(self, settings: LoadSettings) -> SupportedPipelines:
        pipeline = ZeroShotEntities.open(
            self.path, precision=settings.precision, device=settings.device
        )
        return SupportedPipelines(
            family="gliner",
            length=pipeline.head.config.max_len,
            dimension=pipeline.head.config.hidden_size,
            precision=str(pipeline.engine.dtype).removeprefix("torch."),
            pipelines={"zero-shot-entities": pipeline},
            networks=[pipeline.engine.model],
        )

    def info(self) -> dict[str, Any]:
        return info(load_gliner(self.path))
