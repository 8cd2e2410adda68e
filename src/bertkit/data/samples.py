"""Pretraining samples, which are built from the sentences of a corpus when they are accessed."""

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
"""Version of the sampling code. A run can be resumed only with the same version."""
NEXT_CANDIDATES = 64
"""Number of windows of other documents from which the best false B is chosen."""
SENTENCE_MARKS = tuple(".!?…。！？")
FIRST_SHARE = 0.9
WORD_MARKS = "Ġ▁"
"""Characters that mark the first token of a word in byte-level BPE and Unigram vocabularies."""


class Sampling(Settings, frozen=True):
    """Settings that determine how samples are built from documents."""

    pairs: Literal["nsp", "sop", "none"] = "nsp"
    """Content of a sample. nsp: texts A and B, where B follows A or comes from another document
    (next sentence prediction). sop: consecutive texts A and B, in order or swapped (sentence order
    prediction). none: consecutive sentences.
    """
    cross_documents: bool = False
    """Whether samples without pairs cross document boundaries, which are marked with a separator
    (RoBERTa's full-sentences). If false, a sample ends with its document (doc-sentences).
    """
    length: Annotated[int, Meta(ge=8)] = 128
    """Maximum number of tokens per sample, including special tokens."""
    first_length: Annotated[int, Meta(ge=8)] | None = None
    """Maximum number of tokens per sample in the first part of the run. BERT used 128 before 512.
    """
    first_share: Annotated[float, Meta(ge=0.0, le=1.0)] = FIRST_SHARE
    """Fraction of the training steps that use `first_length`."""
    short_seq_probability: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """Fraction of samples that are shortened, so that the model is also trained on short texts. The
    length of these samples is random and uniformly distributed, from 2 tokens to the maximum.
    """
    held_out: Annotated[float, Meta(ge=0.0, lt=0.5)] = 0.01
    """Fraction of the tokens to hold out for evaluation, in complete documents. 0 disables this.
    """

    def __post_init__(self) -> None:
        if self.first_length is None and self.first_share != FIRST_SHARE:
            raise ValueError(
                "first_share requires first_length; set first_length or remove first_share"
            )


@dataclass(frozen=True)
class Sample:
    """Masked sequence of tokens, with the original ids of the masked tokens.

    Shapes:
        ids, types: (T,).
        masked_positions, labels: (M,).
    """

    ids: Ids
    types: Ids
    masked_positions: Ids
    labels: Ids
    pair: int | None
    """Label of the pair, with the same values as in transformers. nsp: 0 if B follows A, and 1 if B
    is from another document. sop: 0 if A and B are in order, and 1 if they are swapped.
    """

    def __len__(self) -> int:
        return len(self.ids)


class Samples(Shuffled[Sample]):
    """Samples of documents. A sample depends only on the seed, the epoch, and its index.

    Documents are split into windows of sentences once. In every epoch, each window is randomly
    divided into A and B again, and the documents of false Bs and the masks are also sampled again.
    If samples are pairs, a window includes the sentence that exceeds the length, and the sample is
    truncated. Otherwise, a window only contains the complete sentences that fit.

    The procedure follows `create_pretraining_data.py` of google-research/bert, with one difference:
    no statistic of the tokens distinguishes true pairs from false pairs. For every sample, a true B
    and a false B are found, and their lengths are made equal, before one of them is selected at
    random. A false B is the end of a window in another document, just as the true B is the end of
    the current window. If the false B is selected, the sentences of the true B are not used until
    the next epoch.
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
            # The vocabulary does not mark the beginnings of words, so any token may begin a word.
            self.starts_word = np.ones(tokenizer.vocab_size, dtype=bool)
        self.opens = np.array([token.lstrip(WORD_MARKS)[:1].isupper() for token in tokens])
        self.closes = np.array([token.endswith(SENTENCE_MARKS) for token in tokens])
        self.seed, self.length = seed, length or sampling.length
        self.capacity = self.length - (2 if sampling.pairs == "none" else 3)
        self.windows = windows(
            corpus,
            self.documents,
            self.capacity,
            across=sampling.cross_documents and sampling.pairs == "none",
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
        """Return the parts of a sample (one text, or A and B), and the label of the pair."""
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

        A shortened sample ends with the sentence in which its size is reached. For sentence order
        prediction, half of these samples are counted from the end of the window and begin with
        that sentence, so that neither A nor B is longer on average.
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
        """Split a window into A and B, between two sentences or within a single sentence.

        A single sentence is split between two words, if possible. The model could detect which half
        comes first from the start and the end of the sentence. For sentence order prediction, at
        least two tokens are therefore removed at each end: the end of a sentence is a punctuation
        mark, possibly with a quotation mark.
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
        """Return a false B: the end of a window of another document that is similar to the true B.

        The candidates are `NEXT_CANDIDATES` random windows of other documents. If the window of the
        true B is full, they are full windows too. Otherwise, they are windows that end with their
        document. If other documents have no such windows, any windows are used. A candidate starts
        within a sentence if the true B does. Among the candidates with the same form as the true B
        (see `_form`), the one with the closest length is returned.
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
        """Return the form of a text, or None if it is empty.

        It consists of three values: whether the text begins with the first token of a word, whether
        it begins with a capital letter, and whether it ends with the final mark of a sentence.
        """
        if not len(tokens):
            return None
        begin, end = tokens[0], tokens[-1]
        return self.starts_word[begin], self.opens[begin], self.closes[end]

    def _running(self, first: int, last: int) -> Ids:
        """Return the tokens of consecutive sentences, with a separator between documents."""
        starts, documents = self.corpus.starts, self.corpus.document_starts
        within = documents.searchsorted([first, last], side="right")
        ends = documents[within[0] : within[1]]
        ends = starts[ends[ends < last]] - starts[first]
        tokens = self._tokens(first, last)
        return np.insert(tokens, ends, self.tokenizer.sep) if len(ends) else tokens

    def _tokens(self, first: int, last: int) -> Ids:
        return self.corpus.slice(first, last).astype(np.int64)


def split_documents(corpus: Corpus, share: float) -> tuple[Ids, Ids]:
    """Split the documents of a corpus into documents to train on and held-out documents.

    The held-out documents do not depend on the seed of a run, so that the losses of two runs are
    comparable. They are selected in random order, and a document that exceeds the remaining number
    of tokens is skipped. A corpus of fewer than four documents is not split.

    Args:
        corpus: The corpus.
        share: Maximum fraction of the tokens to hold out. If fewer than two documents fit into
            this fraction, the two smallest documents are held out.

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
    """Truncate the parts of a sample to a total of `capacity` tokens.

    If there are two parts, the longer part is truncated until both have the same length, and then
    both are truncated equally. Each token is removed at random from the start or the end of its
    part.
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
