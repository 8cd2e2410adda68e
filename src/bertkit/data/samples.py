"""Pretraining samples, made when they are asked for from a corpus of sentences."""

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
"""Version of the sampling code; a run resumes only with its own."""
NEXT_CANDIDATES = 64
"""Windows of other documents among which a false B is chosen."""
SENTENCE_MARKS = tuple(".!?…。！？")
FIRST_SHARE = 0.9
WORD_MARKS = "Ġ▁"
"""Prefixes of a word's first piece, in byte-level BPE and in Unigram vocabularies."""


class Sampling(Settings, frozen=True):
    """How samples are taken from documents."""

    pairs: Literal["nsp", "sop", "none"] = "nsp"
    """nsp: A and B, where B follows A or comes from another document; sop: A and B in order or
    swapped; none: one stretch of sentences."""
    cross_documents: bool = False
    """Without pairs, stretches may run over the end of a document, with a separator there
    (RoBERTa's full-sentences), instead of stopping (doc-sentences)."""
    length: Annotated[int, Meta(ge=8)] = 128
    """Tokens of a sample at most, special tokens included."""
    first_length: Annotated[int, Meta(ge=8)] | None = None
    """A shorter length for the first part of training, as BERT did with 128 before 512."""
    first_share: Annotated[float, Meta(ge=0.0, le=1.0)] = FIRST_SHARE
    """Share of the steps with `first_length`."""
    short_seq_probability: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """Share of samples that are shorter, evenly from 2 tokens up, so that the model sees them."""
    held_out: Annotated[float, Meta(ge=0.0, lt=0.5)] = 0.01
    """Share of the tokens, in whole documents, kept for evaluation; 0 keeps none."""

    def __post_init__(self) -> None:
        if self.first_length is None and self.first_share != FIRST_SHARE:
            raise ValueError(
                "first_share: says how long first_length lasts, and there is none; set it, or "
                "leave both out"
            )


@dataclass(frozen=True)
class Sample:
    """One sequence, masked. Shapes: ids and types (T,); masked_positions and labels (M,)."""

    ids: Ids
    types: Ids
    masked_positions: Ids
    labels: Ids
    pair: int | None
    """nsp: 0 B follows A, 1 B is from elsewhere. sop: 0 in order, 1 swapped. As transformers."""

    def __len__(self) -> int:
        return len(self.ids)


class Samples(Shuffled[Sample]):
    """The samples of some documents; which is which depends on (seed, epoch, index) only.

    A document is cut once into windows of sentences; every epoch draws anew where a window is
    divided into A and B, which other document B comes from, and what is masked. For pairs a window
    goes on until it fills a sample, and is cut to size; without pairs it holds the whole sentences
    that fit. The draws follow google-research/bert `create_pretraining_data.py`, but nothing that
    can be counted tells a true pair from a false one. A true and a false B are both found for every
    sample, and its lengths are decided before chance takes one of the two. A false B ends a window
    of another document as the true B ends its own. Sentences that it displaces are not put back
    but wait for the next epoch.
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
        pieces = tokenizer.pieces(np.arange(tokenizer.vocab_size))
        try:
            self.starts_word = tokenizer.starts_word
        except TokenizerError:  # whose pieces do not show it: each may begin a word
            self.starts_word = np.ones(tokenizer.vocab_size, dtype=bool)
        self.opens = np.array([piece.lstrip(WORD_MARKS)[:1].isupper() for piece in pieces])
        self.closes = np.array([piece.endswith(SENTENCE_MARKS) for piece in pieces])
        self.seed, self.length = seed, length or sampling.length
        self.room = self.length - (2 if sampling.pairs == "none" else 3)
        self.windows = windows(
            corpus,
            self.documents,
            self.room,
            across=self._across,
            fill=sampling.pairs != "none",
            mirror=sampling.pairs == "sop",
        )
        full = np.diff(corpus.starts[self.windows], axis=1)[:, 0] >= self.room
        self.pools = self.windows[~full], self.windows[full]
        if not len(self.windows):
            raise DataError(f"{corpus.folder}: no text to make samples from")
        if sampling.pairs == "nsp" and len(self.documents) < 2:
            raise DataError(
                f"{corpus.folder}: next-sentence prediction takes a false B from another document, "
                f"and there is only {len(self.documents)}; add documents (where a blank line of a "
                ".txt file ends one, prepare it with --blank-lines documents), or set "
                'sampling.pairs to "sop" or "none"'
            )

    @property
    def _across(self) -> bool:
        return self.sampling.cross_documents and self.sampling.pairs == "none"

    def __len__(self) -> int:
        """Samples of one epoch."""
        return len(self.windows)

    def masked(self, share: float) -> Samples:
        samples = copy.copy(self)
        samples.masker = self.masker.with_share(share)
        return samples

    def sample(self, epoch: int, index: int) -> Sample:
        """The sample of one window in one epoch."""
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
        first, last, wanted = self._window(index, rng)
        if self.sampling.pairs == "none":
            return _cut([self._running(first, last)], self.room, rng), None
        a, b = self._divide(first, last, rng)
        other = int(rng.random() < 0.5)
        if self.sampling.pairs == "sop":
            return _cut([b, a] if other else [a, b], self.room, rng), other
        false = self._elsewhere(first, last, wanted, b, rng)
        size = min(len(b), len(false))
        b = false if other else b
        return _cut([a, b[len(b) - size :]], self.room, rng), other

    def _window(self, index: int, rng: np.random.Generator) -> tuple[int, int, int]:
        """First and last sentence (exclusive) of a sample, and how many tokens it should have.

        One that should be shorter ends with the sentence that reaches so many; for sentence order
        it may begin with that sentence instead, so that neither part is the longer by it.
        """
        first, last = map(int, self.windows[index])
        if rng.random() >= self.sampling.short_seq_probability:
            return first, last, self.room
        wanted, starts = int(rng.integers(2, self.room + 1)), self.corpus.starts
        if self.sampling.pairs == "sop" and rng.random() < 0.5:
            reached = int(starts.searchsorted(starts[last] - wanted, side="right")) - 1
            return max(first, reached), last, wanted
        return first, min(last, int(starts.searchsorted(starts[first] + wanted))), wanted

    def _divide(self, first: int, last: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """A and B, parted between two sentences; between two words where there is one.

        How a sentence begins and ends tells which half of it comes first: for sentence order two
        tokens at least are left out at each end, its mark and perhaps a quotation mark.
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
        if len(edges) == 2:  # one word
            edges = np.arange(size + 1)
        middle = int(edges[1 + rng.integers(max(len(edges) - 2, 1))])
        return tokens[edges[0] : middle], tokens[middle : edges[-1]]

    def _elsewhere(
        self, first: int, last: int, wanted: int, b: Ids, rng: np.random.Generator
    ) -> Ids:
        """The end of a window of another document, as like the true B as one of some can be.

        Both begin with a sentence, or both inside one; their windows are both full, or both end
        with their document; both begin with a word, and with a capital letter, and end with a
        sentence mark, or neither does; and their lengths are as near as can be.
        """
        starts, documents = self.corpus.starts, self.corpus.document_starts
        own = int(documents.searchsorted(first, side="right"))
        full = starts[last] - starts[first] >= wanted
        for pool in (self.pools[int(full)], self.windows):
            low, high = pool[:, 0].searchsorted(documents[own - 1 : own + 1])
            if len(pool) > high - low:
                break
        drawn = rng.integers(len(pool) - (high - low), size=NEXT_CANDIDATES)
        drawn += (drawn >= low) * (high - low)
        firsts, lasts = pool[drawn].T
        if wanted < self.room:
            lasts = np.minimum(lasts, starts.searchsorted(starts[firsts] + wanted))
        ends = starts[lasts]
        unlike = np.zeros(NEXT_CANDIDATES, dtype=bool)
        if last - first == 1:
            sentences = lasts - 1
            begins = np.maximum(ends - len(b), starts[sentences] + 1)
        else:
            near = starts.searchsorted(ends - len(b))
            near -= starts[near] + starts[near - 1] > 2 * (ends - len(b))
            sentences = np.minimum(np.maximum(near, firsts + 1), lasts - 1)
            begins = starts[sentences]
            unlike = lasts - firsts == 1
        order = np.argsort(np.abs(ends - begins - len(b)) + unlike * self.length, kind="stable")
        looks = self._looks(b)
        candidates = []
        for place in order:
            skipped = begins[place] - starts[sentences[place]]
            candidates.append(self._tokens(int(sentences[place]), int(lasts[place]))[skipped:])
            if self._looks(candidates[-1]) == looks:
                return candidates[-1]
        return candidates[0]

    def _looks(self, tokens: Ids) -> tuple[bool, bool, bool] | None:
        """Whether these begin with a word, with a capital letter, and end with a sentence mark."""
        if not len(tokens):
            return None
        begin, end = tokens[0], tokens[-1]
        return self.starts_word[begin], self.opens[begin], self.closes[end]

    def _running(self, first: int, last: int) -> Ids:
        """Sentences in a row, with a separator where one document ends and the next begins."""
        starts, documents = self.corpus.starts, self.corpus.document_starts
        within = documents.searchsorted([first, last], side="right")
        ends = documents[within[0] : within[1]]
        ends = starts[ends[ends < last]] - starts[first]
        tokens = self._tokens(first, last)
        return np.insert(tokens, ends, self.tokenizer.sep) if len(ends) else tokens

    def _tokens(self, first: int, last: int) -> Ids:
        return self.corpus.slice(first, last).astype(np.int64)


def split_documents(corpus: Corpus, share: float) -> tuple[Ids, Ids]:
    """Documents to train on, and documents held out: at most `share` of the tokens, drawn whole.

    They are the same for every seed of a run, so that losses of two runs are of the same text.
    A document that does not fit any more is passed over; where fewer than two fit, the two
    smallest are held out. With fewer than four documents none is.
    """
    documents = np.arange(corpus.documents)
    if share == 0.0 or corpus.documents < 4:
        return documents, documents[:0]
    sizes = np.diff(corpus.starts[corpus.document_starts])
    order = generator(0, 0, 0, Purpose.SPLIT).permutation(documents)
    room, chosen = share * corpus.tokens, []
    for document in order[sizes[order] <= room]:
        if sizes[document] <= room:
            chosen.append(document)
            room -= sizes[document]
    if len(chosen) < 2:
        chosen = list(np.argsort(sizes, kind="stable")[:2])
    held_out = np.sort(chosen[: corpus.documents - 2])
    return np.setdiff1d(documents, held_out), held_out


def _cut(parts: Sequence[Ids], room: int, rng: np.random.Generator) -> list[Ids]:
    """Parts that fit: the longer loses tokens first, each from the front or the back by chance."""
    sizes = [len(part) for part in parts]
    surplus = sum(sizes) - room
    if surplus <= 0:
        return list(parts)
    keep = list(sizes)
    if len(parts) == 1:
        keep[0] = room
    else:
        long = int(sizes[1] > sizes[0])
        lead = min(surplus, abs(sizes[0] - sizes[1]))
        keep[long] -= lead
        keep[0] -= (surplus - lead) // 2
        keep[1] -= surplus - lead - (surplus - lead) // 2
    cut = []
    for part, size in zip(parts, keep, strict=True):
        front = int(rng.binomial(len(part) - size, 0.5))
        cut.append(part[front : front + size])
    return cut
