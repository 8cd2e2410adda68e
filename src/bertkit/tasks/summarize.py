"""A summary made of a document's own sentences. Liu & Lapata 2019 (BertSum), section 3."""

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
from bertkit.data.row_errors import each_of
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
"""Beside a guessed summary: further references, as the mails of AESLC have them."""


@dataclass(frozen=True)
class SummaryExample:
    """A document, and what its summary may be; no references where that is to be found."""

    document: str
    references: tuple[str, ...] = ()
    where: str = "a document"
    """File and line, for messages."""

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """[start, end) of each sentence, in characters of the document."""
        visible = [place for place, letter in enumerate(self.document) if not letter.isspace()]
        spans, first = [], 0
        for sentence in split(self.document):  # which changes white space alone
            last = first + len(sentence) - sentence.count(" ") - 1
            spans.append((visible[first], visible[last] + 1))
            first = last + 1
        return spans

    @cached_property
    def sentences(self) -> list[str]:
        """As they stand in the document."""
        return [self.document[start:end] for start, end in self.places]


class SummarizeOptions(Settings, frozen=True):
    """What a summary is."""

    sentences: Count = 3
    """At most so many."""
    block_trigrams: bool = True
    """Whether to skip a sentence that shares three words in a row with a better one."""


class SummarySentence(msgspec.Struct, frozen=True):
    """A sentence of the summary, and how likely it belongs there.

    Units: [start, end) characters of the document.
    """

    text: str
    start: int
    end: int
    score: float


class SummaryAnswer(msgspec.Struct, frozen=True):
    """Sentences in the order of the document, and the text they make.

    `truncated` is True where the model could not read a sentence to its end.
    """

    text: str
    sentences: list[SummarySentence]
    truncated: bool = False


class DocumentReader(Reader[SummaryExample]):
    """Documents with summaries, from a table."""

    def read(
        self, source: Source, reading: Reading, *, labelled: bool
    ) -> tuple[list[SummaryExample], str]:
        """Read .jsonl, .csv, or .tsv; a summary may be a JSON list of alternatives."""
        return read_documents(source, reading, "summary", SUMMARIES, labelled=labelled)

    def example(self, text: str, others: Sequence[str]) -> SummaryExample:
        if others:
            raise DataError(f"{text[:40]!r}: a document is summarized alone; give one text")
        if not text.strip():
            raise DataError("a document is empty: there is nothing to summarize; leave it out")
        return SummaryExample(text)


class Summarize(Task[SummaryExample, SummaryAnswer], ChanceLevel):
    """Extractive summarization: the best sentences of a document.

    Segments alternate from sentence to sentence, so the model must have two. A document longer
    than the model is read in windows of whole sentences, which do not overlap. Source: Liu &
    Lapata 2019, sections 3.1 and 3.2, without the layers between sentences.
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
        """Raises: DataError when no document shares a word with its summary."""
        if not any(oracle(example.sentences, example.references, 1) for example in train):
            raise DataError(
                f"{train[0].where}: neither this document nor another has a word (a-z, 0-9) of "
                "its summary: there is nothing to learn; check the columns"
            )
        return cls(("summary",), options)

    @classmethod
    def restore(cls, labels: Sequence[str], settings: Mapping[str, Any]) -> Self:
        if tuple(labels) != ("summary",):
            raise CheckpointError(
                f"config.json: its labels are {', '.join(labels) or 'none'}, which makes it no "
                "model for summaries; fine-tune one with `bertkit finetune summarize`"
            )
        return super().restore(labels, settings)

    def check(self, examples: Sequence[SummaryExample]) -> None:
        for example in examples:
            if not example.references:
                raise DataError(
                    f"{example.where}: a summary is lacking; give one or remove the row"
                )

    def features(
        self,
        examples: Sequence[SummaryExample],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        """Windows of whole sentences; one that is longer than the model is cut."""
        if labelled:
            self.check(examples)
        texts = [sentence for example in examples for sentence in example.sentences]
        encoded = iter(tokenizer.encode_batch(texts, max_length=length, truncate="first"))
        built = []
        for number, example in enumerate(examples):
            parts = list(islice(encoded, len(example.places)))
            starts = np.array([start for start, _ in example.places])
            wanted = np.zeros(len(parts), dtype=np.float32)
            if labelled:
                wanted[oracle(example.sentences, example.references, self.options.sentences)] = 1.0
            for window in split_by_tokens([len(part) for part in parts], length):
                encoding, places = _join(parts[window], starts[window])
                built.append(
                    Feature(encoding, number, places, wanted[window] if labelled else None)
                )
        return built

    def targets(self, features: Sequence[Feature]) -> Tensor:
        """Shapes: (P,), 1.0 for the sentences to choose."""
        return torch.from_numpy(np.concatenate([feature.target for feature in features]))

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Binary cross-entropy of each sentence, averaged over the step."""
        targets = batch.targets[self.head]
        loss = F.binary_cross_entropy_with_logits(outputs.squeeze(1), targets, reduction="sum")
        loss = loss / totals[self.head]
        return Loss(loss, {self.head: loss.detach()})

    def answers(
        self, outputs: Sequence[ExampleOutput[SummaryExample]], head: nn.Module
    ) -> list[SummaryAnswer]:
        """The likeliest sentences, of equally likely ones the first."""
        return [self._answer(item) for item in outputs]

    def _answer(self, item: ExampleOutput[SummaryExample]) -> SummaryAnswer:
        example = item.example
        logits = np.concatenate(item.outputs)[:, 0]
        scores = torch.sigmoid(torch.from_numpy(logits)).numpy()
        chosen = [
            SummarySentence(example.sentences[place], *example.places[place], float(scores[place]))
            for place in self.choose(example.sentences, scores)
        ]
        return SummaryAnswer(" ".join(c.text for c in chosen), chosen, item.truncated)

    def choose(self, texts: Sequence[str], scores: NDArray[np.floating[Any]]) -> list[int]:
        """Which sentences make the summary, in order. Source: Liu & Lapata 2019, section 4.2."""
        chosen: list[int] = []
        taken: set[tuple[str, ...]] = set()
        for place in np.argsort(-scores, kind="stable").tolist():
            trigrams = _trigrams(texts[place]) if self.options.block_trigrams else set()
            if taken.isdisjoint(trigrams):
                insort(chosen, place)
                taken |= trigrams
            if len(chosen) == self.options.sentences:
                break
        return chosen

    def score(
        self, answers: Sequence[SummaryAnswer], examples: Sequence[SummaryExample]
    ) -> dict[str, float]:
        """ROUGE with the best reference, and the same of the first sentences (lead)."""
        references = [example.references for example in examples]
        lead = [" ".join(example.sentences[: self.options.sentences]) for example in examples]
        ours = metrics.rouge([answer.text for answer in answers], references)
        baseline = metrics.rouge(lead, references)
        return {**ours, **{f"lead_{name}": score for name, score in baseline.items()}}

    def chance(self, examples: Sequence[SummaryExample]) -> dict[str, float]:
        return {"rougeL": 0.0}

    def error_record(self, answer: SummaryAnswer, example: SummaryExample) -> ErrorRecord:
        rouge = metrics.rouge([answer.text], [example.references])["rouge1"]
        return ErrorRecord(
            example.document, " | ".join(example.references), answer.text, 1.0 - rouge
        )


# ---- what to learn


def oracle(texts: Sequence[str], references: Sequence[str], most: int) -> list[int]:
    """The sentences to learn from: those whose summary is nearest to a reference, in order.

    Greedily, each is the one that adds most to the F1 of ROUGE-1 plus that of ROUGE-2, as
    `metrics.rouge` gives them for the sentences chosen, until none adds or there are `most`.
    Source: `greedy_selection` of BertSum's code, which counts each n-gram once.
    """
    words = [metrics.rouge_words(text) for text in texts]
    wanted = [metrics.rouge_words(reference) for reference in references]
    singles = [_Overlap(reference) for reference in wanted]
    pairs = [_Overlap(pairwise(reference)) for reference in wanted]
    known = set().union(*wanted)
    # without a word of a reference a sentence cannot add anything
    left = {i: Counter(own) for i, own in enumerate(words) if not known.isdisjoint(own)}
    chosen: list[int] = []
    total, best = 0, 0.0
    while len(chosen) < most:
        winner = None
        for place, counts in left.items():
            size = total + len(words[place])
            score = _f1(singles, counts, size)
            score += _f1(pairs, _new_pairs(words, chosen, place), size - 1)
            if score > best:
                winner, best = place, score
        if winner is None:
            break
        for overlap in singles:
            overlap.add(left[winner])
        for overlap in pairs:
            overlap.add(_new_pairs(words, chosen, winner))
        del left[winner]
        total += len(words[winner])
        insort(chosen, winner)
    return chosen


class _Overlap:
    """How many n-grams the sentences chosen so far share with a reference."""

    def __init__(self, grams: Iterable[Hashable]) -> None:
        self.missing = Counter(grams)
        """Below zero for those found too often."""
        self.size = self.missing.total()
        self.shared = 0

    def after(self, change: Mapping[Any, int]) -> int:
        """How many they would share with so many more (or fewer) of these n-grams."""
        shared = self.shared
        for gram in change.keys() & self.missing.keys():
            left = self.missing[gram]
            shared += max(left, 0) - max(left - change[gram], 0)
        return shared

    def add(self, change: Mapping[Any, int]) -> None:
        self.shared = self.after(change)
        for gram in change.keys() & self.missing.keys():
            self.missing[gram] -= change[gram]


def _f1(overlaps: Sequence[_Overlap], change: Mapping[Any, int], size: int) -> float:
    """With the best reference, once `change` has brought the n-grams to `size`."""
    return max(2 * o.after(change) / (size + o.size) if size + o.size else 0.0 for o in overlaps)


def _new_pairs(words: Sequence[list[str]], chosen: list[int], place: int) -> Counter[Any]:
    """The pairs of words that a further sentence brings, with its new neighbors', less theirs."""
    at = bisect(chosen, place)
    before = words[chosen[at - 1]][-1:] if at else []
    after = words[chosen[at]][:1] if at < len(chosen) else []
    pairs = Counter(pairwise([*before, *words[place], *after]))
    if before and after:
        pairs[before[0], after[0]] -= 1
    return pairs


# ---- texts


def read_documents(
    source: Source, reading: Reading, what: str, usual: Sequence[str], *, labelled: bool
) -> tuple[list[SummaryExample], str]:
    """Documents and what is to be made of each, and a sentence on how they were read.

    `what` it is, for messages; `usual` are names that its column has.
    Raises: DataError naming file and line, ConfigError for a second text.
    """
    if reading.pair_column is not None:
        raise ConfigError("--pair-column: a document has no second text; leave it out")
    table = open_rows(source, reading)
    check_columns(table, reading.text_column, reading.label_column)
    text = reading.text_column or first_column(table, TEXTS, reading.label_column)
    target = (reading.label_column or first_column(table, usual, text)) if labelled else None
    missing = {}
    if text is None:
        missing["--text-column"] = "document"
    if labelled and target is None:
        missing["--label-column"] = what
    if text is None or missing:
        raise missing_columns(table, missing, has_header_option=labelled)
    targets = [] if target is None else [target]
    if labelled and reading.label_column is None and REFERENCES_COLUMN in table.columns:
        targets.append(REFERENCES_COLUMN)

    texts = table.texts(text)
    columns = [table.texts(name) for name in targets]

    def example(index: int) -> SummaryExample:
        where = table.where(index)
        if not texts[index].strip():
            raise DataError(f"{where}: the document is empty; remove the row")
        references = tuple(one for column in columns for one in _several(column[index]))
        if labelled and not (references and all(map(str.strip, references))):
            raise DataError(f"{where}: a {what} is lacking; give one or remove the row")
        return SummaryExample(texts[index], references, where)

    examples = each_of(example, range(len(table)))
    summary = f"{table.summary}; {len(examples):,} rows; text = {text!r}"
    return examples, summary + "".join(f", {what} = {name!r}" for name in targets)


def _several(cell: str) -> list[str]:
    """The references of a cell: a text, or a JSON list of texts."""
    try:
        texts = json.loads(cell) if cell.startswith("[") else None
    except (ValueError, RecursionError):  # a text may begin with a bracket
        texts = None
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        return texts
    return [cell] if cell else []


def _join(parts: Sequence[Encoding], starts: NDArray[np.int64]) -> tuple[Encoding, NDArray[Any]]:
    """Sentences as one sequence with segments 0, 1, 0, ..., and where each begins: its [CLS]."""
    lengths = np.array([len(part) for part in parts])
    sequence = [which for part in parts for which in part.sequence]
    text = np.array([which is not None for which in sequence])  # specials stay at (0, 0)
    shift = np.repeat(starts, lengths) * text
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
    """Three words in a row, in small letters and any script."""
    words = re.findall(r"\w+", text.lower())
    return set(zip(words, words[1:], words[2:], strict=False))
