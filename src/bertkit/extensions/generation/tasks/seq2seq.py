"""Sequence-to-sequence task, for summaries, headlines, or corrections. Sutskever et al. 2014."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np

from bertkit.config import Settings
from bertkit.data.row_readers import Source
from bertkit.errors import CheckpointError, DataError
from bertkit.extensions.generation.tasks.language import LanguageTask, TextScore
from bertkit.tasks.capabilities import UsesDecoder
from bertkit.tasks.summarize import SUMMARIES, SummaryExample, read_documents
from bertkit.tasks.task import ErrorRecord, Feature, Reader, Reading
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long, encode
from bertkit.text.tokenizer import Tokenizer

TARGETS = ("target", "output", "translation", "correction", "answer", *SUMMARIES)


class Seq2seqOptions(Settings, frozen=True):
    """Options for sequence-to-sequence tasks."""

    prompt: str = ""
    """Prompt that is prepended to each text, such as "summarize: " for T5."""


class TargetReader(Reader[SummaryExample]):
    """Reader of texts and their target texts in a table."""

    def read(
        self, source: Source, reading: Reading, *, labeled: bool
    ) -> tuple[list[SummaryExample], str]:
        """Read a text and its target from each row of a .jsonl, .csv, or .tsv file.

        A target may be a JSON list of alternatives. The model is trained on the first alternative.
        """
        return read_documents(source, reading, "target", TARGETS, labeled=labeled)

    def example(self, text: str, others: Sequence[str]) -> SummaryExample:
        raise DataError("not supported by encoder-decoder models; use `bertkit generate`")


class Seq2seq(LanguageTask[SummaryExample], UsesDecoder):
    """Generation of a text from another text, such as a summary, with an encoder-decoder model.

    Source: Lewis et al. 2020, section 3.3; Raffel et al. 2020, section 2.4.
    """

    name = "seq2seq"
    reader = TargetReader()
    Options = Seq2seqOptions
    long = ("truncate", "error")
    _begin: Sequence[int] = ()
    _writer: Tokenizer | None = None

    def with_decoder(self, begin: Sequence[int], tokenizer: Tokenizer) -> Self:
        """Return a copy of the task for a model's decoder.

        Raises:
            CheckpointError: If the model has no encoder.
        """
        if not begin:
            raise CheckpointError(
                f"{tokenizer.source}: not an encoder-decoder model; use T5, BART or Marian, or "
                "fine-tune a decoder-only model with `bertkit finetune chat`"
            )
        task = copy.copy(self)
        task._begin, task._writer = begin, tokenizer
        return task

    def features(
        self,
        examples: Sequence[SummaryExample],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labeled: bool,
    ) -> list[Feature]:
        """Tokenize each text and its target.

        A target has the special tokens that the tokenizer of the target texts adds. The tokens that
        start the decoder's input precede it. An EOS token is appended if the tokenizer adds none.
        """
        writer = self._writer
        assert writer is not None
        sources, _ = encode(
            tokenizer,
            [example.document for example in examples],
            length=length,
            long=long,
            where=[example.where for example in examples],
            prompts=[self.options.prompt] * len(examples),
        )
        references = [(example.references or ("",))[0] for example in examples]
        targets = writer.ids(references, special=True)
        ends = () if writer.added[1] else (writer.eos,)
        features = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            ids = np.array([*self._begin, *target, *ends], dtype=np.int64)
            if long == "error" and len(ids) > length:
                where = examples[number].where
                raise DataError(
                    f"{where}: the target has {len(ids):,} tokens, but the maximum length is "
                    f"{length:,}; shorten the target"
                )
            encoding = Encoding.of_ids(ids[:length], truncated=len(ids) > length)
            positions = np.arange(len(encoding) - 1)
            labels = encoding.ids[1:] if labeled else None
            features.append(Feature(encoding, number, positions, labels, source=source))
        return features

    def error_record(self, answer: TextScore, example: SummaryExample) -> ErrorRecord:
        nats = -answer.log_probability
        expected = example.references[0]
        return ErrorRecord(example.document, expected, f"{nats:.2f} nats per token", nats)
