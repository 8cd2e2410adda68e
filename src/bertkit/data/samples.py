"""Pretraining samples, built on access from a corpus of sentences."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bertkit.config import Settings
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masker, Masking
from bertkit.data.sentence_windows import windows
from bertkit.data.shuffling import EVALUATION_EPOCH, Purpose, Shuffled, generator
from bertkit.errors import DataError, TokenizerError
from bertkit.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]
SAMPLING_VERSION = 3
"""Version of the sampling code. A run resumes only with the same version."""
NEXT_CANDIDATES = 64
"""Number of windows of other documents from which a false B is chosen."""
SENTENCE_MARKS = tuple(".!?…。！？")
FIRST_SHARE = 0.9
WORD_MARKS = "Ġ▁"
"""Prefixes of a word's first token, in byte-level BPE and in Unigram vocabularies."""


class Sampling(Settings, frozen=True):
    """Settings of how samples are built from documents."""

    pairs: Literal["nsp", "sop", "none"] = "nsp"
    """nsp: sentences A and B, where B follows A or comes from another document. sop: A and B in
    order or swapped. none: consecutive sentences.
    """
    cross_documents: bool = False
    """If true, samples without pairs cross document boundaries, with a separator (RoBERTa's
    full-sentences). If false, they stop there (doc-sentences).
    """
    length: Annotated[int, Meta(ge=8)] = 128
    """Maximum number of tokens per sample, including special tokens."""
    first_length: Annotated[int, Meta(ge=8)] | None = None
    """Shorter length for the first part of the run; BERT used 128 before 512."""
    first_share: Annotated[float, Meta(ge=0.0, le=1.0)] = FIRST_SHARE
    """Fraction of the steps with `first_length`."""
    short_seq_probability: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """Fraction of samples with a shorter length, sampled uniformly from 2 tokens, so that the model
    is trained on short texts.
    """
    held_out: Annotated[float, Meta(ge=0.0, lt=0.5)] = 0.01
    """Fraction of the tokens, in complete documents, to hold out for evaluation; 0 holds out none.
    """

    def __post_init__(self) -> None:
        if self.first_length is None and self.first_share != FIRST_SHARE:
            raise ValueError(
                "first_share requires first_length; set first_length or remove first_share"
            )


@dataclass(frozen=True)
class Sample:
    """One masked sequence.

    Shapes:
        ids, types: (T,).
        masked_positions, labels: (M,).
    """

    ids: Ids
    types: Ids
    masked_positions: Ids
    labels: Ids
    pair: int | None
    """nsp: 0 if B follows A, 1 if B is from another document. sop: 0 in order, 1 swapped.
    transformers uses the same values.
    """

    def __len__(self) -> int:
        return len(self.ids)


class Samples(Shuffled[Sample]):
    """The samples of documents. A sample depends only on (seed, epoch, index).

    Documents are split once into windows of sentences. In every epoch, the division of a window
    into A and B, the document of a false B, and the masks are sampled again. With pairs, a window
    ends with the sentence that fills a sample, and the sample is truncated. Without pairs, a window
    contains the complete sentences that fit.

    The procedure follows google-research/bert `create_pretraining_data.py`, but no statistic of
    tokens distinguishes true pairs from false ones. A true and a false B are found for every
    sample, and the lengths are fixed before one of them is selected at random. A false B ends a
    window of another document, just as the true B ends its own window. The sentences that a false B
    replaces are not used until the next epoch.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        sampling: Sampling,
        masking: Masking,
        *,
        documents: Ids | None = None,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        self.corpus, self.tokenizer, self.sampling = corpus, tokenizer, sampling
        self.masking, self.masker = masking, Masker(masking, tokenizer)
        self.documents = np.arange(corpus.documents) if documents is None else documents
        tokens = tokenizer.pieces(np.arange(tokenizer.vocab_size))
        try:
            self.starts_word = tokenizer.starts_word
        except TokenizerError:
            # The tokens do not show where words begin: any token may begin one.
            self.starts_word = np.ones(tokenizer.vocab_size, dtype=bool)
        self.opens = np.array([token.lstrip(WORD_MARKS)[:1].isupper() for token in tokens])
        self.closes = np.array([token.endswith(SENTENCE_MARKS) for token in tokens])
        self.seed, self.length = seed, length or sampling.length
        self.capacity = self.length - (2 if sampling.pairs == "none" else 3)
        self.windows = windows(
            corpus,
            self.documents,
            self.capacity,
            across=self._across,
            fill=sampling.pairs != "none",
            mirror=sampling.pairs == "sop",
        )
        full = np.diff(corpus.starts[self.windows], axis=1)[:, 0] >= self.capacity
        self.pools = self.windows[~full], self.windows[full]
        if not len(self.windows):
            raise DataError(f"{corpus.folder}: the documents contain no text")
        if sampling.pairs == "nsp" and len(self.documents) < 2:
            raise DataError(
                f"{corpus.folder}: next-sentence prediction requires at least 2 documents, got "
                f"{len(self.documents)}; add documents (if blank lines of a .txt file separate "
                "documents, prepare it with --blank-lines documents), or set sampling.pairs to "
                '"sop" or "none"'
            )

    @property
    def _across(self) -> bool:
        return self.sampling.cross_documents and self.sampling.pairs == "none"

    def __len__(self) -> int:
        """Return the number of samples per epoch."""
        return len(self.windows)

    def with_probability(self, probability: float) -> Samples:
        samples = copy.copy(self)
        samples.masker = self.masker.with_probability(probability)
        return samples

    def sample(self, epoch: int, index: int) -> Sample:
        """Return the sample of a window in an epoch."""
        if self.masking.dupe_factor and epoch != EVALUATION_EPOCH:
            epoch %= self.masking.dupe_factor
        rng = generator(self.seed, epoch, index, Purpose.SAMPLE)
        parts, pair = self._parts(index, rng)
        special = self.tokenizer
        ids = [np.array([special.cls]), *(p for part in parts for p in (part, [special.sep]))]
        types = [np.zeros(len(parts[0]) + 2, dtype=np.int64)]
        if len(parts) == 2:
            types.append(np.ones(len(parts[1]) + 1, dtype=np.int64))
        labels = np.concatenate(ids).astype(np.int64)
        rng = generator(self.seed, epoch, index, Purpose.MASK)
        masked, positions = self.masker(labels, rng)
        return Sample(masked, np.concatenate(types), positions, labels[positions], pair)

    def _parts(self, index: int, rng: np.random.Generator) -> tuple[list[Ids], int | None]:
        """Return the text, or A and B, of a sample, and the label of the pair."""
        first, last, size = self._window(index, rng)
        if self.sampling.pairs == "none":
            return _cut([self._running(first, last)], self.capacity, rng), None
        a, b = self._divide(first, last, rng)
        other = int(rng.random() < 0.5)
        if self.sampling.pairs == "sop":
            return _cut([b, a] if other else [a, b], self.capacity, rng), other
        false_b = self._sample_false_b(first, last, size, b, rng)
        shorter = min(len(b), len(false_b))
        b = false_b if other else b
        return _cut([a, b[len(b) - shorter :]], self.capacity, rng), other

    def _window(self, index: int, rng: np.random.Generator) -> tuple[int, int, int]:
        """Return the first and last sentence (exclusive) of a sample, and its number of tokens.

        A shorter sample ends with the sentence that reaches its size. For sentence order it may
        begin with that sentence instead, so that neither A nor B is longer on average.
        """
        first, last = map(int, self.windows[index])
        if rng.random() >= self.sampling.short_seq_probability:
            return first, last, self.capacity
        size, starts = int(rng.integers(2, self.capacity + 1)), self.corpus.starts
        if self.sampling.pairs == "sop" and rng.random() < 0.5:
            start = int(starts.searchsorted(starts[last] - size, side="right")) - 1
            return max(first, start), last, size
        return first, min(last, int(starts.searchsorted(starts[first] + size))), size

    def _divide(self, first: int, last: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Split a window into A and B between two sentences, or else between two words.

        The start and the end of a sentence show which half comes first. For sentence order, a
        single sentence therefore loses at least two tokens at each end: the final punctuation mark,
        and perhaps a quotation mark.
        """
        if last - first > 1:
            middle = int(rng.integers(first + 1, last))
            return self._tokens(first, middle), self._tokens(middle, last)
        tokens = self._tokens(first, last)
        size = len(tokens)
        edges = np.array([0, *np.flatnonzero(self.starts_word[tokens[1:]]) + 1, size])
        if self.sampling.pairs == "sop" and size > 5:
            inner = edges[(edges >= 2) & (edges <= size - 2)]
            edges = inner if len(inner) > 2 else np.arange(2, size - 1)
        if len(edges) == 2:
            # A single word is split between any two of its tokens.
            edges = np.arange(size + 1)
        middle = int(edges[1 + rng.integers(max(len(edges) - 2, 1))])
        return tokens[edges[0] : middle], tokens[middle : edges[-1]]

    def _sample_false_b(
        self, first: int, last: int, size: int, b: Ids, rng: np.random.Generator
    ) -> Ids:
        """Return the end of a window of another document that resembles the true B.

        The candidates are `NEXT_CANDIDATES` random windows of other documents. They are full if the
        window of the true B is full, and otherwise end with their document, unless other documents
        have no such windows. A candidate starts within a sentence if the true B does. The result is
        the candidate with the closest length among candidates with the same form as the true B
        (`_form`).
        """
        starts, documents = self.corpus.starts, self.corpus.document_starts
        document = int(documents.searchsorted(first, side="right"))
        full = starts[last] - starts[first] >= size
        for pool in (self.pools[int(full)], self.windows):
            low, high = pool[:, 0].searchsorted(documents[document - 1 : document + 1])
            if len(pool) > high - low:
                break
        windows = rng.integers(len(pool) - (high - low), size=NEXT_CANDIDATES)
        windows += (windows >= low) * (high - low)
        firsts, lasts = pool[windows].T
        if size < self.capacity:
            lasts = np.minimum(lasts, starts.searchsorted(starts[firsts] + size))
        ends = starts[lasts]
        mismatch = np.zeros(NEXT_CANDIDATES, dtype=bool)
        if last - first == 1:
            sentences = lasts - 1
            begins = np.maximum(ends - len(b), starts[sentences] + 1)
        else:
            near = starts.searchsorted(ends - len(b))
            near -= starts[near] + starts[near - 1] > 2 * (ends - len(b))
            sentences = np.minimum(np.maximum(near, firsts + 1), lasts - 1)
            begins = starts[sentences]
            mismatch = lasts - firsts == 1
        order = np.argsort(np.abs(ends - begins - len(b)) + mismatch * self.length, kind="stable")
        form = self._form(b)
        candidates = []
        for index in order:
            skipped = begins[index] - starts[sentences[index]]
            candidates.append(self._tokens(int(sentences[index]), int(lasts[index]))[skipped:])
            if self._form(candidates[-1]) == form:
                return candidates[-1]
        return candidates[0]

    def _form(self, tokens: Ids) -> tuple[bool, bool, bool] | None:
        """Return whether tokens begin with a word and a capital, and end with a sentence mark."""
        if not len(tokens):
            return None
        begin, end = tokens[0], tokens[-1]
        return self.starts_word[begin], self.opens[begin], self.closes[end]

    def _running(self, first: int, last: int) -> Ids:
        """Return consecutive sentences, with a separator between two documents."""
        starts, documents = self.corpus.starts, self.corpus.document_starts
        within = documents.searchsorted([first, last], side="right")
        ends = documents[within[0] : within[1]]
        ends = starts[ends[ends < last]] - starts[first]
        tokens = self._tokens(first, last)
        return np.insert(tokens, ends, self.tokenizer.sep) if len(ends) else tokens

    def _tokens(self, first: int, last: int) -> Ids:
        return self.corpus.slice(first, last).astype(np.int64)


def split_documents(corpus: Corpus, share: float) -> tuple[Ids, Ids]:
    """Return the documents to train on and the held-out documents.

    The held-out documents do not depend on the seed of a run, so that losses of two runs are
    comparable. They are selected in random order, and a document that does not fit is skipped.
    Fewer than four documents are never split.

    Args:
        corpus: The corpus.
        share: Maximum fraction of the tokens to hold out. If fewer than two documents fit, the two
            smallest are held out.

    Returns:
        Indices of the documents to train on, and of the held-out documents.
    """
    documents = np.arange(corpus.documents)
    if share == 0.0 or corpus.documents < 4:
        return documents, documents[:0]
    sizes = np.diff(corpus.starts[corpus.document_starts])
    order = generator(0, 0, 0, Purpose.SPLIT).permutation(documents)
    budget, chosen = share * corpus.tokens, []
    for document in order[sizes[order] <= budget]:
        if sizes[document] <= budget:
            chosen.append(document)
            budget -= sizes[document]
    if len(chosen) < 2:
        chosen = list(np.argsort(sizes, kind="stable")[:2])
    held_out = np.sort(chosen[: corpus.documents - 2])
    return np.setdiff1d(documents, held_out), held_out


def _cut(parts: Sequence[Ids], capacity: int, rng: np.random.Generator) -> list[Ids]:
    """Truncate parts to fit. Each part loses tokens at its start or its end, chosen at random.

    The longer part loses tokens until both are equally long; then both lose tokens.
    """
    sizes = [len(part) for part in parts]
    surplus = sum(sizes) - capacity
    if surplus <= 0:
        return list(parts)
    keep = list(sizes)
    if len(parts) == 1:
        keep[0] = capacity
    else:
        long = int(sizes[1] > sizes[0])
        lead = min(surplus, abs(sizes[0] - sizes[1]))
        keep[long] -= lead
        keep[0] -= (surplus - lead) // 2
        keep[1] -= surplus - lead - (surplus - lead) // 2
    truncated = []
    for part, size in zip(parts, keep, strict=True):
        front = int(rng.binomial(len(part) - size, 0.5))
        truncated.append(part[front : front + size])
    return truncated
