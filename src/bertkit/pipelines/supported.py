"""All pipelines that a model supports, for code that works with models of any format."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.formats import LoadSettings
from bertkit.console import say
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError
from bertkit.models.transformer import Transformer
from bertkit.pipelines import PIPELINES, Embed, Pipeline, Rerank, Work, answering, open_engine
from bertkit.pipelines.base import ModelPipeline
from bertkit.pipelines.frozen_words import FrozenEncoder, FrozenWords
from bertkit.tasks import TASKS, find, outside_error, task_name_of

TRANSLATION_FAMILIES = ("marian", "lstm")
"""Families of encoder-decoder models that translate. Other encoder-decoder models summarize."""

PROBE = "A known sentence gives a known vector."
"""Text whose embedding servers compute repeatedly, to check that a loaded model still works."""


@dataclass(frozen=True, kw_only=True)
class SupportedPipelines:
    """Pipelines of a loaded model, by name, and properties of the model."""

    family: str
    length: int
    """Maximum number of tokens or words of a text."""
    dimension: int
    name: str = ""
    """Name of the model in messages."""
    precision: str = "fp32"
    labels: Sequence[str] = ()
    prompts: Sequence[str] = ()
    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    networks: Sequence[nn.Module] = ()
    frozen: FrozenWords | None = None
    """Object that computes hidden states of words, if the model supports this."""
    embed: Embed | None = None
    """Pipeline for embeddings without normalization, or None if the model is not a Transformer."""
    probe: tuple[Pipeline, Sequence[Work]] | None = None
    """Pipeline and encoded text whose embedding must not change while the model is loaded."""


def supported_pipelines(loaded: Loaded, settings: LoadSettings) -> SupportedPipelines:
    """Create all pipelines that a Transformer supports. They share one engine.

    Generative models run on the CPU.

    Args:
        loaded: The model.
        settings: Device, precision, and trusted third-party tasks.

    Raises:
        ConfigError: If the model was fine-tuned for a third-party task that is not trusted.
    """
    trusted, device = settings.trusted, settings.device
    task = task_name_of(loaded.settings, loaded.model.heads)
    if task is not None and task not in TASKS and task not in trusted:
        raise outside_error(loaded.folder, task)
    kind = None if task is None else trusted.get(task) or find(task)
    writes, decoder = "lm" in loaded.model.heads, loaded.model.decoder
    if writes and device != "cpu":
        say(f"{loaded.folder}: using the CPU, because generative models require it here")
        device = "cpu"
    pipelines: dict[str, Pipeline] = {}
    if kind is not None and (route := kind.serving.route):
        answer = answering(loaded, kind, precision=settings.precision, device=device)
        pipelines[route.strip("/")], engine = answer, answer.engine
    else:
        engine = open_engine(loaded, settings.precision, device=device)
    embed = Embed(loaded, engine, normalize=False)
    if loaded.pooling is not None or (task is None and not writes):
        pipelines["embed"] = embed
    if writes:
        writer = PIPELINES["generate"](loaded, engine)
        pipelines["translate" if writer.reads else "write"] = writer
        if writer.reads and loaded.family.name not in TRANSLATION_FAMILIES:
            pipelines["summarize"] = PIPELINES["summarize"](loaded, engine)
    optional: dict[str, Callable[[Loaded, Engine], Pipeline]] = {
        name: kind
        for name, kind in PIPELINES.items()
        if getattr(kind, "example", None) is not None and issubclass(kind, ModelPipeline)
    }
    if task in ("respond", "choose", "classify"):
        optional["rerank"] = Rerank
    for name, constructor in optional.items():
        with contextlib.suppress(CheckpointError):  # The model does not have the head.
            pipelines[name] = constructor(loaded, engine)
    has_states = isinstance(loaded.model.encoder, Transformer) and not (writes and decoder)
    return SupportedPipelines(
        family=loaded.family.name,
        length=loaded.length,
        dimension=embed.dimension,
        precision="int8" if engine.is_int8 else str(engine.dtype).removeprefix("torch."),
        labels=loaded.labels,
        prompts=list(embed.prompt.prompts.named),
        pipelines=pipelines,
        networks=[loaded.model],
        frozen=FrozenEncoder(loaded, engine) if has_states else None,
        embed=embed,
        probe=(embed, embed.prepare([PROBE], long="truncate")),
    )
