"""Documents to the summaries that a model writes of them."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bertkit.batch import by_length
from bertkit.checkpoint.directory import Loaded, load
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.generation.beam import finish
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.pipeline import Generate, merge_decoding
from bertkit.nn.precision import Inference
from bertkit.pipelines.answering import answering
from bertkit.pipelines.base import CACHE_TOKENS, Work, inference_device, open_engine
from bertkit.pipelines.task import TaskPipeline
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import TEXTS_AT_ONCE
from bertkit.tasks.summarize import Summarize, SummaryAnswer
from bertkit.tasks.task import Feature, NoOptions
from bertkit.text.long_texts import Long, encode


class WriteSummaries:
    """Documents -> summaries, in words that need not be theirs, of a model with an encoder and a
    decoder (T5, BART).

    Of a document longer than the model it reads the beginning, and the answer says so.
    """

    policies: tuple[Long, ...] = ("truncate", "error")
    item, prediction, example = str, SummaryAnswer, Summarize.serving.example
    options = NoOptions

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        """Raises: CheckpointError for a model that reads no other text than it writes."""
        self.loaded, self.writer = loaded, Generate(loaded, engine)
        if not self.writer.reads:
            raise CheckpointError(
                f"{loaded.folder}: reads no other text than it writes; take T5 or BART, or one of "
                "`bertkit finetune summarize`"
            )
        self.engine = self.writer.engine
        self.prompt = self.writer.prompt or _published(loaded)

    @classmethod
    def open(
        cls,
        model: str | Path | Loaded,
        *,
        precision: Inference = "fp32",
        device: str = "auto",
        revision: str | None = None,
    ) -> Self | TaskPipeline[SummaryAnswer]:
        """Open a model that summarizes: this pipeline, or without a decoder that of the task.

        For the arguments and errors see `pipeline`.
        """
        device = inference_device(device, precision, model)
        loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
        if loaded.model.decoder is None:
            return answering(loaded, Summarize, precision=precision, device=device)
        return cls(loaded, open_engine(loaded, precision, device=device))

    @check_keywords
    def __call__(
        self,
        documents: Sequence[str],
        decoding: Decoding | Mapping[str, Any] | None = None,
        *,
        long: Long = "truncate",
    ) -> list[SummaryAnswer]:
        """A summary of each. Raises: DataError for an empty document, or as `long` says."""
        answers: list[SummaryAnswer] = []
        for start in range(0, len(documents), TEXTS_AT_ONCE):
            part = documents[start : start + TEXTS_AT_ONCE]
            works = self.prepare(part, long=long, decoding=decoding)
            made: dict[int, SummaryAnswer] = {}
            for places in by_length([work.tokens for work in works], CACHE_TOKENS):
                some = self.run([works[place] for place in places])
                made.update(zip(places, some, strict=True))
            answers += [made[place] for place in range(len(works))]
        return answers

    def prepare(
        self,
        documents: Sequence[str],
        *,
        long: Long,
        decoding: Decoding | Mapping[str, Any] | None = None,
    ) -> list[Work]:
        """Raises: DataError as a call does."""
        decoding = merge_decoding(self.loaded.generation.decoding, decoding)
        for document in documents:
            Summarize.reader.example(document, ())
        encodings, _ = encode(
            self.loaded.tokenizer,
            documents,
            length=self.loaded.length,
            long=long,
            prompts=[self.prompt] * len(documents),
        )
        works = []
        for document, encoding in zip(documents, encodings, strict=True):
            request = self.writer.request(encoding)
            cost = decoding.beams * self.writer.cost(request, decoding)
            features = [Feature(encoding, 0)]
            works.append(Work(features, (document, request, decoding), cost - len(encoding)))
        return works

    def run(self, works: Sequence[Work]) -> list[SummaryAnswer]:
        """The best summary of each, all written together."""
        return finish(self.steps(works))

    def steps(self, works: Sequence[Work]) -> Generator[int, None, list[SummaryAnswer]]:
        """Run like `run`. Yields: the number of sequences after each step."""
        texts = yield from self.writer.steps(works)
        return [
            SummaryAnswer(text.text.strip(), [], work.truncated)
            for text, work in zip(texts, works, strict=True)
        ]


def summaries(
    pipeline: TaskPipeline[SummaryAnswer] | WriteSummaries,
    documents: Sequence[str],
    decoding: Decoding | Mapping[str, Any] | None = None,
) -> list[SummaryAnswer]:
    """A summary of each, written or made of its sentences.

    Raises: ConfigError for settings of writing where sentences are chosen.
    """
    if isinstance(pipeline, WriteSummaries):
        return pipeline(documents, decoding)
    if decoding is not None:
        raise ConfigError(
            f"{pipeline.loaded.folder}: chooses sentences and writes none; leave out what says "
            "how to write (--beams, --max-tokens, …)"
        )
    return pipeline(list(documents))


def _published(loaded: Loaded) -> str:
    """What a published T5 wants to find before a document. Raffel et al. 2020, 2.4."""
    said = loaded.settings.get("task_specific_params")
    said = said.get("summarization") if isinstance(said, dict) else None
    prefix = said.get("prefix") if isinstance(said, dict) else None
    return prefix if isinstance(prefix, str) else ""
