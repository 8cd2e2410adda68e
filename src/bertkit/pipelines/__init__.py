"""From texts to answers in one call: `pipeline("embed", model)(texts)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import msgspec

from bertkit import tasks
from bertkit.checkpoint.folder import Loaded, load
from bertkit.errors import CheckpointError, ConfigError, did_you_mean
from bertkit.nn.precision import Inference, check_cpu
from bertkit.pipelines.answering import answering
from bertkit.pipelines.base import (
    NUMBER,
    Pipeline,
    Work,
    inference_device,
    load_on,
    open_engine,
)
from bertkit.pipelines.embed import Embed
from bertkit.pipelines.fill_gap import FillGap, GapAnswer
from bertkit.pipelines.fill_mask import Candidate, FillMask, MaskAnswer
from bertkit.pipelines.generate import Generate, GeneratedText
from bertkit.pipelines.next_sentence import NextSentence, NextSentenceAnswer
from bertkit.pipelines.rerank import Rerank
from bertkit.pipelines.summarize import WriteSummaries
from bertkit.pipelines.task import TaskPipeline
from bertkit.pipelines.token_embeddings import EmbedTokens, TokenEmbeddings
from bertkit.pipelines.words import Words, WordStates
from bertkit.synonyms import TASKS, check_keywords
from bertkit.tasks import Task
from bertkit.tasks.summarize import SummaryAnswer

A = TypeVar("A", bound=msgspec.Struct)

OTHERS: Mapping[str, type[Embed | EmbedTokens | FillMask | Generate | NextSentence | Rerank]] = {
    "embed": Embed,
    "fill-mask": FillMask,
    "generate": Generate,
    "next-sentence": NextSentence,
    "rerank": Rerank,
    "token-embeddings": EmbedTokens,
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
    device: str = ...,
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
    device: str = ...,
    revision: str | None = ...,
) -> FillMask: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["generate"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    device: str = ...,
    revision: str | None = ...,
) -> Generate: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["next-sentence"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    device: str = ...,
    revision: str | None = ...,
) -> NextSentence: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["rerank"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    device: str = ...,
    revision: str | None = ...,
) -> Rerank: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["token-embeddings"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    device: str = ...,
    revision: str | None = ...,
) -> EmbedTokens: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["summarize"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    device: str = ...,
    revision: str | None = ...,
) -> TaskPipeline[SummaryAnswer] | WriteSummaries: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["words"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    device: str = ...,
    revision: str | None = ...,
) -> Words: ...
@overload
def pipeline(  # type: ignore[overload-overlap]
    task: Literal["fill-gap"],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    device: str = ...,
    revision: str | None = ...,
) -> FillGap: ...
@overload
def pipeline(
    task: str | type[Task[Any, A]],
    model: str | Path | Loaded,
    *,
    precision: Inference = ...,
    device: str = ...,
    revision: str | None = ...,
) -> TaskPipeline[Any]: ...
@check_keywords
def pipeline(
    task: str | type[Task[Any, Any]],
    model: str | Path | Loaded,
    *,
    precision: Inference = "fp32",
    device: str = "auto",
    pooling: str | None = None,
    batch_invariant: bool = False,
    revision: str | None = None,
) -> (
    Embed
    | EmbedTokens
    | FillGap
    | FillMask
    | Generate
    | NextSentence
    | Rerank
    | Words
    | WriteSummaries
    | TaskPipeline[Any]
):
    """Return a pipeline that runs a model on texts.

    Args:
        task: embed, token-embeddings, rerank, fill-mask, generate, next-sentence, words or fill-gap
            (of an ELMo), a task that models are fine-tuned for (classify, tag, answer, ...), a
            `Task` class, or the name of one of these in transformers (text-classification, ner,
            feature-extraction, ...).
        model: Model directory, hub id, or loaded model.
        precision: fp32, bf16, int8, or auto, which is bf16 if it is faster. int8 requires a
            generative model or a directory of `bertkit quantize`.
        device: auto, cpu, or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
        pooling: mean, cls or max, for embed only. Default: the pooling of the directory.
        batch_invariant: Whether a text has the same embedding, bit for bit, in every batch, for
            embed only. It is slower.
        revision: Revision of a hub id.

    Raises:
        CheckpointError: If the model does not have the head that the task needs.
        ConfigError: If the task or a setting is not supported.
        DeviceError: If the device cannot be used.
    """
    if isinstance(task, str):
        task = TASKS.get(task, task)
    if task in OF_ELMO:
        check_cpu(device, "an ELMo")
        return _of_elmo(str(task), model, precision, revision)
    if isinstance(task, str) and not (task in OTHERS or task in tasks.TASKS or ":" in task):
        known = (*OTHERS, *OF_ELMO, *tasks.TASKS)
        raise ConfigError(f"no pipeline is named {task!r}; {did_you_mean(task, known)}")
    if (pooling is not None or batch_invariant) and task != "embed":
        raise ConfigError(f"pooling, batch_invariant: {task} has none; leave them out")
    if task != "summarize" and task not in OTHERS:
        return answering(model, task, precision=precision, revision=revision, device=device)
    device = inference_device(device, precision, model)
    loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
    if task == "summarize" and loaded.model.decoder is None:
        return answering(loaded, task, precision=precision, device=device)
    engine = open_engine(loaded, precision, batch_invariant=batch_invariant, device=device)
    if task == "summarize":
        return WriteSummaries(loaded, engine)
    if task == "embed":
        return Embed(loaded, engine, pooling)
    return OTHERS[task](loaded, engine)  # type: ignore[index]


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
    "Candidate",
    "Embed",
    "EmbedTokens",
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
    "TaskPipeline",
    "TokenEmbeddings",
    "WordStates",
    "Words",
    "Work",
    "WriteSummaries",
    "answering",
    "inference_device",
    "load_on",
    "open_engine",
    "pipeline",
]
