"""Extractive summarization of documents. Source: Liu & Lapata 2019 (BertSum), section 3."""

from __future__ import annotations

import json
import re
from bisect import bisect, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, Self

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit import metrics
from bertkit.batch import Batch, split_by_tokens
from bertkit.config import Count, Settings
from bertkit.data.columns import check_columns, first_column, missing_columns
from bertkit.data.row_errors import read_each
from bertkit.data.row_readers import Source
from bertkit.data.sentences import split
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.capabilities import ChanceLevel
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reader, Reading, Serving, Task
from bertkit.tasks.trained_columns import open_rows
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer

TEXTS = ("document", "article", "body", "email_body", "dialogue", "source", "input", "text")
SUMMARIES = ("summary", "highlights", "abstract", "subject", "subject_line")
REFERENCES_COLUMN = "annotated_subjects"
"""Column of additional references in AESLC, which is read unless --label-column is set."""


@dataclass(frozen=True)
class SummaryExample:
    """Document and its reference summaries. For predictions, there are no references."""

    document: str
    references: tuple[str, ...] = ()
    where: str = "a document"
    """File and line, for messages."""

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Span [start, end) of each sentence, in characters of the document."""
        visible = [index for index, letter in enumerate(self.document) if not letter.isspace()]
        spans, first = [], 0
        # `split` changes only white space, so sentences can be found by counting other characters.
        for sentence in split(self.document):
            last = first + len(sentence) - sentence.count(" ") - 1
            spans.append((visible[first], visible[last] + 1))
            first = last + 1
        return spans

    @cached_property
    def sentences(self) -> list[str]:
        """Sentences of the document, with their original white space."""
        return [self.document[start:end] for start, end in self.spans]


class SummarizeOptions(Settings, frozen=True):
    """Options of extractive summarization."""

    sentences: Count = 3
    """Maximum number of sentences in a summary."""
    block_trigrams: bool = True
    """Whether to skip a sentence if it shares three consecutive words with a sentence that is
    already selected."""


class SummarySentence(msgspec.Struct, frozen=True):
    """Sentence of a summary, its span [start, end) in characters, and its probability."""

    text: str
    start: int
    end: int
    score: float


class SummaryAnswer(msgspec.Struct, frozen=True):
    """Summary, and its sentences in the order of the document.

    `truncated` is true if a sentence was truncated because it exceeded the maximum length.
    """

    text: str
    sentences: list[SummarySentence]
    truncated: bool = False


class DocumentReader(Reader[SummaryExample]):
    """Reader of documents with summaries from a table."""

    def read(
        self, source: Source, reading: Reading, *, labeled: bool
    ) -> tuple[list[SummaryExample], str]:
        """Read .jsonl, .csv, or .tsv rows. A summary may be a JSON list of several references."""
        return read_documents(source, reading, "summary", SUMMARIES, labeled=labeled)

    def example(self, text: str, others: Sequence[str]) -> SummaryExample:
        if others:
            raise DataError(f"{text[:40]!r}: expected one document, got a pair; pass one text")
        if not text.strip():
            raise DataError("the document is empty; remove it")
        return SummaryExample(text)


class Summarize(Task[SummaryExample, SummaryAnswer], ChanceLevel):
    """Extractive summarization: the model selects the best sentences of a document.

    The token types 0 and 1 alternate from sentence to sentence, so the model must have two types. A
    document that exceeds the maximum length is split into windows of complete sentences, without
    overlap. Source: Liu & Lapata 2019, sections 3.1 and 3.2, but without the additional layers that
    relate sentences to each other.
    """

    name = "summarize"
    reader = DocumentReader()
    metric = "rougeL"
    score_names = ("rouge1", "rouge2", "rougeL")
    Options = SummarizeOptions
    serving = Serving(
        SummaryAnswer, "The cat sat on the mat. It slept. Nobody saw it.", "/summarize"
    )
    long = ("window",)

    @property
    def head(self) -> str:
        return "tag"

    @classmethod
    def from_examples(cls, train: Sequence[SummaryExample], options: Settings) -> Self:
        """Return the task for training examples.

        Args:
            train: Training examples.
            options: Options that the user set.

        Raises:
            DataError: If no document shares a word with its summary.
        """
        if not any(oracle(example.sentences, example.references, 1) for example in train):
            raise DataError(
                f"{train[0].where}: no document contains a word (a-z, 0-9) of its summary; check "
                "--text-column and --label-column"
            )
        return cls(("summary",), options)

    @classmethod
    def restore(cls, labels: Sequence[str], settings: Mapping[str, Any]) -> Self:
        if tuple(labels) != ("summary",):
            raise CheckpointError(
                f"config.json: expected a model for summaries, but its labels are "
                f"{', '.join(labels) or 'none'}; run `bertkit finetune summarize`"
            )
        return super().restore(labels, settings)

    def check(self, examples: Sequence[SummaryExample]) -> None:
        for example in examples:
            if not example.references:
                raise DataError(f"{example.where}: no summary; add a summary or remove the row")

    def features(
        self,
        examples: Sequence[SummaryExample],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labeled: bool,
    ) -> list[Feature]:
        """Encode windows of complete sentences. Sentences that are too long are truncated."""
        if labeled:
            self.check(examples)
        texts = [sentence for example in examples for sentence in example.sentences]
        encoded = iter(tokenizer.encode_batch(texts, max_length=length, truncate="first"))
        built = []
        for number, example in enumerate(examples):
            parts = list(islice(encoded, len(example.spans)))
            starts = np.array([start for start, _ in example.spans])
            targets = np.zeros(len(parts), dtype=np.float32)
            if labeled:
                targets[oracle(example.sentences, example.references, self.options.sentences)] = 1.0
            for window in split_by_tokens([len(part) for part in parts], length):
                encoding, indices = _join(parts[window], starts[window])
                target = targets[window] if labeled else None
                built.append(Feature(encoding, number, indices, target))
        return built

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """Return 1.0 for each sentence of the oracle summary, and 0.0 for each other sentence.

        Shapes:
            Returns (P,).
        """
        return torch.from_numpy(np.concatenate([feature.target for feature in features]))

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Compute the binary cross-entropy of the sentences, averaged over the step."""
        targets = batch.targets[self.head]
        loss = F.binary_cross_entropy_with_logits(outputs.squeeze(1), targets, reduction="sum")
        loss = loss / totals[self.head]
        return Loss(loss, {self.head: loss.detach()})

    def answers(
        self, outputs: Sequence[ExampleOutput[SummaryExample]], head: nn.Module
    ) -> list[SummaryAnswer]:
        """Summarize each document with its most probable sentences.

        If probabilities are equal, the earlier sentence is preferred.
        """
        return [self._answer(item) for item in outputs]

    def _answer(self, item: ExampleOutput[SummaryExample]) -> SummaryAnswer:
        example = item.example
        logits = np.concatenate(item.outputs)[:, 0]
        scores = torch.sigmoid(torch.from_numpy(logits)).numpy()
        chosen = [
            SummarySentence(example.sentences[index], *example.spans[index], float(scores[index]))
            for index in self.choose(example.sentences, scores)
        ]
        return SummaryAnswer(" ".join(c.text for c in chosen), chosen, item.truncated)

    def choose(self, texts: Sequence[str], scores: NDArray[np.floating[Any]]) -> list[int]:
        """Select the sentences of the summary, and return their indices in ascending order.

        Source:
            Liu & Lapata 2019, section 4.2.
        """
        chosen: list[int] = []
        used_trigrams: set[tuple[str, ...]] = set()
        for index in np.argsort(-scores, kind="stable").tolist():
            trigrams = _trigrams(texts[index]) if self.options.block_trigrams else set()
            if used_trigrams.isdisjoint(trigrams):
                insort(chosen, index)
                used_trigrams |= trigrams
            if len(chosen) == self.options.sentences:
                break
        return chosen

    def score(
        self, answers: Sequence[SummaryAnswer], examples: Sequence[SummaryExample]
    ) -> dict[str, float]:
        """Compute the ROUGE of summaries and, for comparison, of the lead baseline.

        A summary is compared with the best of its references. The lead baseline consists of the
        first sentences of a document.
        """
        references = [example.references for example in examples]
        lead = [" ".join(example.sentences[: self.options.sentences]) for example in examples]
        scores = metrics.rouge([answer.text for answer in answers], references)
        baseline = metrics.rouge(lead, references)
        return {**scores, **{f"lead_{name}": score for name, score in baseline.items()}}

    def chance(self, examples: Sequence[SummaryExample]) -> dict[str, float]:
        return {"rougeL": 0.0}

    def error_record(self, answer: SummaryAnswer, example: SummaryExample) -> ErrorRecord:
        rouge = metrics.rouge([answer.text], [example.references])["rouge1"]
        return ErrorRecord(
            example.document, " | ".join(example.references), answer.text, 1.0 - rouge
        )


# ---- Training targets


def oracle(texts: Sequence[str], references: Sequence[str], most: int) -> list[int]:
    """Select sentences of a document that together are close to a reference, as training targets.

    The search is greedy. Each step adds the sentence that most increases the sum of the ROUGE-1 F1
    and ROUGE-2 F1 of all selected sentences, which are computed as in `metrics.rouge`. The search
    stops when no sentence increases the sum.

    Args:
        texts: Sentences of the document.
        references: Reference summaries.
        most: Maximum number of sentences.

    Returns:
        Indices of the selected sentences, in ascending order.

    Source:
        `greedy_selection` in the code of BertSum, which counts each different n-gram only once.
    """
    words = [metrics.rouge_words(text) for text in texts]
    reference_words = [metrics.rouge_words(reference) for reference in references]
    unigrams = [_Overlap(reference) for reference in reference_words]
    bigrams = [_Overlap(pairwise(reference)) for reference in reference_words]
    vocab = set().union(*reference_words)
    # Only sentences that share a word with a reference can increase the scores.
    candidates = {i: Counter(part) for i, part in enumerate(words) if not vocab.isdisjoint(part)}
    chosen: list[int] = []
    total, best = 0, 0.0
    while len(chosen) < most:
        winner = None
        for index, counts in candidates.items():
            size = total + len(words[index])
            score = _f1(unigrams, counts, size)
            score += _f1(bigrams, _new_bigrams(words, chosen, index), size - 1)
            if score > best:
                winner, best = index, score
        if winner is None:
            break
        for overlap in unigrams:
            overlap.add(candidates[winner])
        for overlap in bigrams:
            overlap.add(_new_bigrams(words, chosen, winner))
        del candidates[winner]
        total += len(words[winner])
        insort(chosen, winner)
    return chosen


class _Overlap:
    """Number of n-grams that the selected sentences share with a reference."""

    def __init__(self, grams: Iterable[Hashable]) -> None:
        self.missing = Counter(grams)
        """Counts in the reference minus counts in the sentences. They can be negative."""
        self.size = self.missing.total()
        self.shared = 0

    def after(self, change: Mapping[Any, int]) -> int:
        """Return the number of shared n-grams if the n-grams in `change` were added.

        A negative count in `change` removes n-grams.
        """
        shared = self.shared
        for gram in change.keys() & self.missing.keys():
            count = self.missing[gram]
            shared += max(count, 0) - max(count - change[gram], 0)
        return shared

    def add(self, change: Mapping[Any, int]) -> None:
        self.shared = self.after(change)
        for gram in change.keys() & self.missing.keys():
            self.missing[gram] -= change[gram]


def _f1(overlaps: Sequence[_Overlap], change: Mapping[Any, int], size: int) -> float:
    """Return the F1 with the best reference if `change` is added and there are `size` n-grams."""
    return max(2 * o.after(change) / (size + o.size) if size + o.size else 0.0 for o in overlaps)


def _new_bigrams(words: Sequence[list[str]], chosen: list[int], index: int) -> Counter[Any]:
    """Return how the bigram counts change if a sentence is inserted into the summary."""
    position = bisect(chosen, index)
    before = words[chosen[position - 1]][-1:] if position else []
    after = words[chosen[position]][:1] if position < len(chosen) else []
    bigrams = Counter(pairwise([*before, *words[index], *after]))
    if before and after:
        bigrams[before[0], after[0]] -= 1
    return bigrams


# ---- Reader


def read_documents(
    source: Source, reading: Reading, name: str, columns: Sequence[str], *, labeled: bool
) -> tuple[list[SummaryExample], str]:
    """Read documents with their targets, and return them with a message about the columns.

    Args:
        source: The file or rows.
        reading: Columns and format.
        name: Name of the target, such as "summary", for messages.
        columns: Known names of the column that contains the target.
        labeled: Whether to read the targets.

    Raises:
        DataError: If a row is invalid. The message contains the location of the row.
        ConfigError: If a column for a second text is set.
    """
    if reading.pair_column is not None:
        raise ConfigError("--pair-column: not supported for documents; remove it")
    table = open_rows(source, reading)
    check_columns(table, reading.text_column, reading.label_column)
    text = reading.text_column or first_column(table, TEXTS, reading.label_column)
    target = (reading.label_column or first_column(table, columns, text)) if labeled else None
    missing = {}
    if text is None:
        missing["--text-column"] = "document"
    if labeled and target is None:
        missing["--label-column"] = name
    if text is None or missing:
        raise missing_columns(table, missing, has_header_option=labeled)
    targets = [] if target is None else [target]
    if labeled and reading.label_column is None and REFERENCES_COLUMN in table.columns:
        targets.append(REFERENCES_COLUMN)

    texts = table.texts(text)
    references = [table.texts(target) for target in targets]

    def example(index: int) -> SummaryExample:
        where = table.where(index)
        if not texts[index].strip():
            raise DataError(f"{where}: the document is empty; remove the row")
        parsed = tuple(text for column in references for text in _parse_references(column[index]))
        if labeled and not (parsed and all(map(str.strip, parsed))):
            raise DataError(f"{where}: no {name}; add a {name} or remove the row")
        return SummaryExample(texts[index], parsed, where)

    examples = read_each(example, range(len(table)))
    summary = f"{table.summary}; {len(examples):,} rows; text = {text!r}"
    return examples, summary + "".join(f", {name} = {target!r}" for target in targets)


def _parse_references(cell: str) -> list[str]:
    """Return the references in a cell, which contains a text or a JSON list of texts."""
    try:
        texts = json.loads(cell) if cell.startswith("[") else None
    except (ValueError, RecursionError):  # A text can begin with a bracket.
        texts = None
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        return texts
    return [cell] if cell else []


def _join(parts: Sequence[Encoding], starts: NDArray[np.int64]) -> tuple[Encoding, NDArray[Any]]:
    """Concatenate encoded sentences, and return the index of each [CLS] token.

    The token types of the sentences are 0, 1, 0, and so on.
    """
    lengths = np.array([len(part) for part in parts])
    sequence = [text_id for part in parts for text_id in part.sequence]
    # Special tokens keep the offsets (0, 0).
    is_text = np.array([text_id is not None for text_id in sequence])
    shift = np.repeat(starts, lengths) * is_text
    encoding = Encoding(
        ids=np.concatenate([part.ids for part in parts]),
        types=np.repeat(np.arange(len(parts)) % 2, lengths),
        offsets=np.concatenate([part.offsets for part in parts]) + shift[:, None],
        words=[None] * len(sequence),
        sequence=sequence,
        truncated=any(part.truncated for part in parts),
    )
    return encoding, np.cumsum(lengths) - lengths


def _trigrams(text: str) -> set[tuple[str, ...]]:
    """Return the trigrams of the lowercased words of a text in any script."""
    words = re.findall(r"\w+", text.lower())
    return set(zip(words, words[1:], words[2:], strict=False))
