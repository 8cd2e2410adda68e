"""From texts to answers in one call: `pipeline("embed", model)(texts)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import msgspec

from bertkit import tasks
from bertkit.checkpoint.folder import Loaded, load
from bertkit.errors import CheckpointError, ConfigError, did_you_mean
from bertkit.nn.precision import Inference
from bertkit.pipelines.answering import answering
from bertkit.pipelines.base import NUMBER, Pipeline, Work, inference_device, open_engine
from bertkit.pipelines.embed import Embed
from bertkit.pipelines.fill_gap import FillGap, GapAnswer
from bertkit.pipelines.fill_mask import Candidate, FillMask, MaskAnswer
from bertkit.pipelines.generate import Generate, GeneratedText
from bertkit.pipelines.next_sentence import NextSentence, NextSentenceAnswer
from bertkit.pipelines.rerank import Rerank
from bertkit.pipelines.summarize import WriteSummaries
from bertkit.pipelines.task import Answer
from bertkit.pipelines.words import Words, WordStates
from bertkit.tasks import Task
from bertkit.tasks.summarize import SummaryAnswer

A = TypeVar("A", bound=msgspec.Struct)

OTHERS: Mapping[str, type[Embed | FillMask | Generate | NextSentence | Rerank]] = {
    "embed": Embed,
    "fill-mask": FillMask,
    "generate": Generate,
    "next-sentence": NextSentence,
    "rerank": Rerank,
}
"""Pipelines that are no task's own."""

OF_ELMO: Mapping[str, type[Words | FillGap]] = {"words": Words, "fill-gap": FillGap}
"""Those of an ELMo's folder."""


@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["embed"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    pooling: str | None = ...,
    batch_invariant: bool = ...,
    revision: str | None = ...,
) -> Embed: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["fill-mask"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> FillMask: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["generate"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> Generate: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["next-sentence"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> NextSentence: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["rerank"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> Rerank: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["summarize"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> Answer[SummaryAnswer] | WriteSummaries: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["words"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> Words: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["fill-gap"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> FillGap: ...
@overload
def pipeline(
    task: str | type[Task[Any, A]],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    revision: str | None = ...,
) -> Answer[Any]: ...
def pipeline(
    task: str | type[Task[Any, Any]],
    model: str | Path | Loaded,
    *,
    precision: Inference = "fp32",
    pooling: str | None = None,
    batch_invariant: bool = False,
    revision: str | None = None,
) -> (
    Embed
    | FillGap
    | FillMask
    | Generate
    | NextSentence
    | Rerank
    | Words
    | WriteSummaries
    | Answer[Any]
):
    """A model made ready for one task; call it with texts.

    `task` is embed, rerank, fill-mask, generate or next-sentence, words or fill-gap (of an ELMo's
    folder), one that models are fine-tuned for (classify, tag, answer, ...) or a class of your own.
    `model` is a folder, a hub id or an opened folder. `precision` auto takes bf16 where it is
    faster; int8 is for models that write, and for others where `bertkit quantize` made the folder;
    `pooling` (mean, cls or max) and `batch_invariant` (the same bits whatever a text is embedded
    with, and slower) are for embed alone.
    Raises: CheckpointError when the folder lacks the task's head.
    """
    if task in OF_ELMO:
        return _of_elmo(str(task), model, precision, revision)
    if isinstance(task, str) and not (task in OTHERS or task in tasks.TASKS or ":" in task):
        known = (*OTHERS, *OF_ELMO, *tasks.TASKS)
        raise ConfigError(f"no pipeline is named {task!r}; {did_you_mean(task, known)}")
    if (pooling is not None or batch_invariant) and task != "embed":
        raise ConfigError(f"pooling, batch_invariant: {task} has none; leave them out")
    if task == "summarize":
        loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
        if loaded.model.decoder is not None:
            return WriteSummaries(loaded, precision)
        return answering(loaded, task, precision=precision)
    if task not in OTHERS:
        return answering(model, task, precision=precision, revision=revision)
    loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
    if task == "embed":
        engine = open_engine(loaded, precision, batch_invariant=batch_invariant)
        return Embed(loaded, engine, pooling)
    return OTHERS[task](loaded, precision)  # type: ignore[index]


def _of_elmo(
    task: str, model: str | Path | Loaded, precision: Inference, revision: str | None
) -> Words | FillGap:
    if isinstance(model, Loaded):
        raise CheckpointError(f"{model.folder}: no ELMo; {task} reads the folder of one")
    if precision != "fp32" or revision is not None:
        raise ConfigError(f"precision, revision: {task} has none; leave them out")
    return OF_ELMO[task](model)


__all__ = [
    "NUMBER",
    "OF_ELMO",
    "OTHERS",
    "Answer",
    "Candidate",
    "Embed",
    "FillGap",
    "FillMask",
    "GapAnswer",
    "Generate",
    "GeneratedText",
    "MaskAnswer",
    "NextSentence",
    "NextSentenceAnswer",
    "Pipeline",
    "Rerank",
    "WordStates",
    "Words",
    "Work",
    "WriteSummaries",
    "answering",
    "inference_device",
    "open_engine",
    "pipeline",
]
