"""Format of model directories that contain a Transformer, or adapters for one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.checkpoint.directory import Loaded, Stored, load, read_stored
from bertkit.checkpoint.formats import LoadSettings, ModelFormat
from bertkit.errors import ConfigError
from bertkit.pipelines.answering import task_pipeline
from bertkit.pipelines.base import inference_device, open_engine
from bertkit.pipelines.embed import Embed
from bertkit.pipelines.frozen_words import FrozenEncoder
from bertkit.pipelines.model_info import info
from bertkit.pipelines.supported import SupportedPipelines, supported_pipelines
from bertkit.pipelines.task import TaskPipeline


class TransformerFormat(ModelFormat):
    """Directory of a Transformer, or of adapters for one: config.json, weights, and tokenizer."""

    noun = "a Transformer"

    def __init__(self, path: Path, loaded: Loaded | None = None) -> None:
        super().__init__(path)
        self._loaded = loaded

    def stored(self) -> Stored:
        return read_stored(self.path)

    def load(self, **options: Any) -> Loaded:
        """Load the model, unless it is already loaded. For the options, see `bertkit.load`."""
        return self._loaded or load(self.path, **options)

    def device(self, settings: LoadSettings) -> str:
        """Return the device on which the model runs."""
        return inference_device(settings.device, settings.precision, self._loaded)

    def load_embedder(self, settings: LoadSettings) -> Embed:
        device, loaded, invariant = self.device(settings), self.load(), settings.batch_invariant
        engine = open_engine(loaded, settings.precision, batch_invariant=invariant, device=device)
        return Embed(loaded, engine, settings.pooling, normalize=settings.normalize)

    def load_task(self, settings: LoadSettings) -> TaskPipeline[Any]:
        device = self.device(settings)
        return task_pipeline(self.load(), replace(settings, device=device))

    def load_frozen(self, settings: LoadSettings) -> FrozenEncoder:
        if settings.precision == "int8":
            raise ConfigError("precision: frozen models do not support int8; use fp32 or bf16")
        device = self.device(settings)
        return FrozenEncoder(self.load(heads=()), settings.precision, device)

    def load_pipelines(self, settings: LoadSettings) -> SupportedPipelines:
        return supported_pipelines(self.load(), settings)

    def info(self) -> dict[str, Any]:
        return info(self.load())
