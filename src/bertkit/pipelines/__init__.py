"""Pipelines, which run models on texts: `pipeline("embed", model)(texts)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import msgspec

from bertkit.checkpoint.directory import Loaded
from bertkit.errors import ConfigError
from bertkit.nn.precision import Inference
from bertkit.pipelines.answering import answering as answering
from bertkit.pipelines.base import BYTES_PER_NUMBER as BYTES_PER_NUMBER
from bertkit.pipelines.base import Pipeline as Pipeline
from bertkit.pipelines.base import inference_device as inference_device
from bertkit.pipelines.base import load_on as load_on
from bertkit.pipelines.base import open_engine as open_engine
from bertkit.pipelines.embed import Embed as Embed
from bertkit.pipelines.fill_mask import Candidate as Candidate
from bertkit.pipelines.fill_mask import FillMask as FillMask
from bertkit.pipelines.fill_mask import MaskAnswer as MaskAnswer
from bertkit.pipelines.next_sentence import NextSentence as NextSentence
from bertkit.pipelines.next_sentence import NextSentenceAnswer as NextSentenceAnswer
from bertkit.pipelines.rerank import Rerank as Rerank
from bertkit.pipelines.task import TaskPipeline as TaskPipeline
from bertkit.pipelines.token_embeddings import EmbedTokens as EmbedTokens
from bertkit.pipelines.token_embeddings import TokenEmbeddings as TokenEmbeddings
from bertkit.registry import Registry
from bertkit.synonyms import TASKS as SYNONYMS
from bertkit.synonyms import check_keywords, suggestion
from bertkit.tasks import TASKS, Task
from bertkit.tasks.inference import Work as Work

A = TypeVar("A", bound=msgspec.Struct)

PIPELINES: Mapping[str, Any] = Registry(
    "pipelines",
    {
        "embed": "bertkit.pipelines.embed:Embed",
        "next-sentence": "bertkit.pipelines.next_sentence:NextSentence",
        "rerank": "bertkit.pipelines.rerank:Rerank",
        "token-embeddings": "bertkit.pipelines.token_embeddings:EmbedTokens",
    },
)
"""Name of a pipeline -> its class. Each task in `bertkit.tasks.TASKS` also has a pipeline."""


Model = str | Path | Loaded
"""Model directory, hub id, or loaded model."""


# The overloads tell type checkers which pipeline is returned.
@overload
def pipeline(task: Literal["embed"], model: Model, **options: Any) -> Embed: ...
@overload
def pipeline(task: Literal["next-sentence"], model: Model, **options: Any) -> NextSentence: ...
@overload
def pipeline(task: Literal["rerank"], model: Model, **options: Any) -> Rerank: ...
@overload
def pipeline(task: Literal["token-embeddings"], model: Model, **options: Any) -> EmbedTokens: ...
@overload
def pipeline(task: type[Task[Any, A]], model: Model, **options: Any) -> TaskPipeline[A]: ...
@overload
def pipeline(task: str, model: Model, **options: Any) -> Any: ...
@check_keywords
def pipeline(
    task: str | type[Task[Any, Any]],
    model: Model,
    *,
    precision: Inference = "fp32",
    device: str = "auto",
    pooling: str | None = None,
    batch_invariant: bool = False,
    revision: str | None = None,
    **options: Any,
) -> Any:
    """Return a pipeline that runs a model on texts.

    Args:
        task: Name of the pipeline: embed, token-embeddings, rerank, generate, next-sentence, or a
            task that models are fine-tuned for (classify, tag, answer, ...). The pipelines words
            and fill-gap require an ELMo. Pipelines of transformers (fill-mask, question-answering,
            ner, translation_en_to_de, ...), and pipelines and tasks of installed extensions are
            also supported. A task can also be a `Task` class.
        model: Model directory, hub id, or loaded model.
        precision: fp32, bf16, int8, or auto, which selects bf16 if it is faster. int8 requires a
            generative model, or a directory that `bertkit export int8` wrote.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
        pooling: mean, cls, or max. Only embed supports it. Default: the pooling of the directory.
        batch_invariant: Whether the embedding of a text is bit-identical in every batch, which is
            slower. Only embed supports it.
        revision: Revision of a hub id.
        options: Additional arguments for a pipeline of transformers, such as aggregation_strategy.
            You can change them in each call of the pipeline.

    Raises:
        CheckpointError: If the model does not have the head that the task needs.
        ConfigError: If the task or a setting is not supported.
        DeviceError: If the device cannot be used.
    """
    if pooling is not None or batch_invariant:
        if task != "embed":
            raise ConfigError(f"pooling, batch_invariant: not supported by {task}; remove these")
        options |= {"pooling": pooling, "batch_invariant": batch_invariant}
    options |= {"precision": precision, "device": device, "revision": revision}
    if isinstance(task, str):
        if task.startswith("translation_"):
            task, options["task"] = "translation", task
        task = task if task in PIPELINES else SYNONYMS.get(task, task)
        if task in PIPELINES:
            return check_keywords(PIPELINES[task].open)(model, **options)
        if task not in TASKS and ":" not in task:
            hint = suggestion(task, [*PIPELINES, *TASKS])
            raise ConfigError(f"unknown pipeline {task!r}; {hint}")
    return check_keywords(answering)(model, task, **options)
