"""Pipeline for abstractive summarization."""

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
from bertkit.pipelines.base import CACHE_TOKENS, inference_device, open_engine
from bertkit.pipelines.task import TaskPipeline
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import TEXTS_PER_BATCH, Work
from bertkit.tasks.summarize import Summarize, SummaryAnswer
from bertkit.tasks.task import Feature, NoOptions
from bertkit.text.long_texts import Long, encode


class WriteSummaries:
    """Pipeline for abstractive summarization with an encoder-decoder model, such as T5 or BART.

    Long documents are truncated by default. `SummaryAnswer.truncated` says whether a document was
    truncated.
    """

    policies: tuple[Long, ...] = ("truncate", "error")
    item, prediction, example = str, SummaryAnswer, Summarize.serving.example
    options = NoOptions

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        """Create a pipeline for a loaded model.

        Raises:
            CheckpointError: If the model is not an encoder-decoder model.
        """
        self.loaded, self.writer = loaded, Generate(loaded, engine)
        if not self.writer.reads:
            raise CheckpointError(
                f"{loaded.folder}: not an encoder-decoder model; use T5, BART, or a model from "
                "`bertkit finetune summarize`"
            )
        self.engine = self.writer.engine
        self.prompt = self.writer.prompt or _published_prompt(loaded)

    @classmethod
    def open(
        cls,
        model: str | Path | Loaded,
        *,
        precision: Inference = "fp32",
        device: str = "auto",
        revision: str | None = None,
    ) -> Self | TaskPipeline[SummaryAnswer]:
        """Load a summarization model, and open its pipeline.

        For the arguments and errors, see `pipeline`.

        Returns:
            This pipeline if the model has a decoder. Otherwise, the pipeline for the task
            `summarize`, which selects sentences.
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
        """Summarize documents.

        Args:
            documents: Texts to summarize.
            decoding: Decoding settings. A mapping changes individual settings of the model
                directory. A `Decoding` replaces all of them.
            long: Whether to truncate documents longer than the model supports ("truncate") or
                raise an error ("error").

        Returns:
            The summary of each document.

        Raises:
            ConfigError: If a setting is invalid.
            DataError: If a document is empty, or if it is too long and `long` is "error".
        """
        answers: list[SummaryAnswer] = []
        for start in range(0, len(documents), TEXTS_PER_BATCH):
            part = documents[start : start + TEXTS_PER_BATCH]
            works = self.prepare(part, long=long, decoding=decoding)
            results: dict[int, SummaryAnswer] = {}
            for indices in by_length([work.tokens for work in works], CACHE_TOKENS):
                batch = self.run([works[index] for index in indices])
                results.update(zip(indices, batch, strict=True))
            answers += [results[index] for index in range(len(works))]
        return answers

    def prepare(
        self,
        documents: Sequence[str],
        *,
        long: Long,
        decoding: Decoding | Mapping[str, Any] | None = None,
    ) -> list[Work]:
        """Tokenize documents, and return the work for each document.

        For the errors, see `__call__`.
        """
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
            cost = decoding.num_beams * self.writer.cost(request, decoding)
            features = [Feature(encoding, 0)]
            works.append(Work(features, (document, request, decoding), cost - len(encoding)))
        return works

    def run(self, works: Sequence[Work]) -> list[SummaryAnswer]:
        """Generate the best summary of each document in one batch."""
        return finish(self.steps(works))

    def steps(self, works: Sequence[Work]) -> Generator[int, None, list[SummaryAnswer]]:
        """Summarize documents as `run` does, and yield the number of sequences after each step."""
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
    """Summarize documents with either type of summarization pipeline.

    Args:
        pipeline: A pipeline that generates summaries, or a pipeline that selects sentences.
        documents: Texts to summarize.
        decoding: Decoding settings. Only for a pipeline that generates summaries.

    Raises:
        ConfigError: If decoding settings are passed to a pipeline that selects sentences.
        DataError: If a document is empty.
    """
    if isinstance(pipeline, WriteSummaries):
        return pipeline(documents, decoding)
    if decoding is not None:
        raise ConfigError(
            f"{pipeline.loaded.folder}: the model selects sentences and does not generate text; "
            "remove the decoding options (--num-beams, --max-tokens, …)"
        )
    return pipeline(list(documents))


def _published_prompt(loaded: Loaded) -> str:
    """Return the summarization prompt that `config.json` of a published T5 model contains.

    Source: Raffel et al. 2020, section 2.4.
    """
    settings = loaded.settings.get("task_specific_params")
    settings = settings.get("summarization") if isinstance(settings, dict) else None
    prefix = settings.get("prefix") if isinstance(settings, dict) else None
    return prefix if isinstance(prefix, str) else ""
