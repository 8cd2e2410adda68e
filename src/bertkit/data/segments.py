"""Pretraining samples, made when they are asked for from a corpus of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bertkit.config import Settings
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masker, Masking
from bertkit.data.order import Permutation, Purpose, generator
from bertkit.errors import DataError
from bertkit.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]
EVALUATION = 2**32
"""The epoch of held-out samples: none that trains."""


class Sampling(Settings, frozen=True):
    """What a sample is."""

    pairs: Literal["nsp", "sop", "none"] = "nsp"
    """nsp: A and B, where B follows A or comes from another document; sop: A and B in order or
    swapped; none: one stretch of sentences."""
    across: bool = False
    """Without pairs, stretches may run over the end of a document (RoBERTa's full-sentences)
    instead of stopping there (doc-sentences)."""
    length: Annotated[int, Meta(ge=8)] = 128
    """Tokens of a sample at most, special tokens included."""
    first_length: Annotated[int, Meta(ge=8)] | None = None
    """A shorter length for the first part of training, as BERT did with 128 before 512."""
    first_share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.9
    """Which part of the steps that is."""
    short: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """Share of samples that are shorter, evenly from 2 tokens up, so that the model sees them."""
    held_out: Annotated[float, Meta(ge=0.0, lt=0.5)] = 0.01
    """Share of the tokens, in whole documents, kept for evaluation; 0 keeps none."""


@dataclass(frozen=True)
class Sample:
    """One sequence. Shapes: ids and types (T,); places and labels (M,), what was masked."""

    ids: Ids
    types: Ids
    places: Ids
    labels: Ids
    pair: int | None
    """nsp: 0 B follows A, 1 B is from elsewhere. sop: 0 in order, 1 swapped. As transformers."""

    def __len__(self) -> int:
        return len(self.ids)


class Samples:
    """The samples of some documents; which is which depends on (seed, epoch, index) only.

    A document is cut once into windows of sentences; every epoch draws anew where a window is
    divided into A and B, which other document B comes from, and what is masked. For pairs a window
    goes on until it fills a sample, and a true pair is cut to size just as a random one is: were
    true pairs whole sentences that fit, their length alone would give them away. Without pairs a
    window holds the whole sentences that fit. The draws follow google-research/bert
    `create_pretraining_data.py` with two differences: a window of one sentence is divided inside
    it, so that true pairs are really half; and sentences that a random B displaces are not put
    back but wait for the next epoch.
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
        self.seed, self.length = seed, length or sampling.length
        self.room = self.length - (2 if sampling.pairs == "none" else 3)
        self.windows = _windows(
            corpus,
            self.documents,
            self.room,
            across=self._across,
            fill=sampling.pairs != "none",
        )
        if not len(self.windows):
            raise DataError(f"{corpus.folder}: no text to make samples from")
        if sampling.pairs == "nsp" and len(self.documents) < 2:
            raise DataError(
                f"{corpus.folder}: next-sentence prediction takes a false B from another document, "
                f"and there is only {len(self.documents)}; add documents, or set "
                'sampling.pairs to "sop" or "none"'
            )

    @property
    def _across(self) -> bool:
        return self.sampling.across and self.sampling.pairs == "none"

    def __len__(self) -> int:
        """Samples of one epoch."""
        return len(self.windows)

    def batch(self, first: int, count: int) -> list[Sample]:
        """`count` samples of the endless shuffled order, from its place `first` on."""
        found: list[Sample] = []
        while count:
            epoch, place = divmod(first, len(self))
            part = min(count, len(self) - place)
            order = Permutation(len(self), self.seed, epoch)
            indices = order(np.arange(place, place + part))
            found += [self.sample(epoch, int(index)) for index in indices]
            first, count = first + part, count - part
        return found

    def evaluation(self, limit: int) -> list[Sample]:
        """At most `limit` samples, evenly spaced, with draws and masks that are always the same."""
        indices = np.unique(np.linspace(0, len(self) - 1, min(limit, len(self))).astype(int))
        return [self.sample(EVALUATION, int(index)) for index in indices]

    def sample(self, epoch: int, index: int) -> Sample:
        """The sample of one window in one epoch."""
        if self.masking.cycle and epoch != EVALUATION:
            epoch %= self.masking.cycle
        rng = generator(self.seed, epoch, index, Purpose.SAMPLE)
        parts, pair = self._parts(index, rng)
        special = self.tokenizer
        ids = [np.array([special.cls]), *(p for part in parts for p in (part, [special.sep]))]
        types = [np.zeros(len(parts[0]) + 2, dtype=np.int64)]
        if len(parts) == 2:
            types.append(np.ones(len(parts[1]) + 1, dtype=np.int64))
        whole = np.concatenate(ids).astype(np.int64)
        seen, places = self.masker(whole, generator(self.seed, epoch, index, Purpose.MASK))
        return Sample(seen, np.concatenate(types), places, whole[places], pair)

    def _parts(self, index: int, rng: np.random.Generator) -> tuple[list[Ids], int | None]:
        first, last = self.windows[index]
        wanted = self.room
        if rng.random() < self.sampling.short:
            wanted = int(rng.integers(2, self.room + 1))
        ends = self.corpus.starts[first + 1 : last + 1] - self.corpus.starts[first]
        last = first + 1 + int(np.searchsorted(ends, wanted))
        last = min(last, int(self.windows[index][1]))
        if self.sampling.pairs == "none":
            return _cut([self._tokens(first, last)], self.room, rng), None
        a, b = self._divide(int(first), last, rng)
        other = int(rng.random() < 0.5)
        if self.sampling.pairs == "sop":
            return _cut([b, a] if other else [a, b], self.room, rng), other
        if other:
            b = self._elsewhere(int(first), len(b), len(a) + len(b) >= self.room, rng)
        return _cut([a, b], self.room, rng), other

    def _divide(self, first: int, last: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
        if last - first > 1:
            middle = int(rng.integers(first + 1, last))
            return self._tokens(first, middle), self._tokens(middle, last)
        tokens = self._tokens(first, last)
        middle = int(rng.integers(1, len(tokens))) if len(tokens) > 1 else 1
        return tokens[:middle], tokens[middle:]

    def _elsewhere(self, sentence: int, wanted: int, fill: bool, rng: np.random.Generator) -> Ids:
        """Sentences of about `wanted` tokens from any other document of these.

        As long as the true B: with `fill` at least that, to be cut as it is; else the number of
        sentences that comes nearest. Where a document is long enough, so is what is left of it.
        """
        starts = self.corpus.document_starts
        own = int(np.searchsorted(starts, sentence, side="right")) - 1
        place = int(rng.integers(len(self.documents) - 1))
        other = int(self.documents[place])
        if other >= own:  # documents ascend: skip our own
            other = int(self.documents[place + 1])
        tokens, end = self.corpus.starts, int(starts[other + 1])
        latest = int(np.searchsorted(tokens, tokens[end] - wanted, side="right")) - 1
        first = int(rng.integers(starts[other], max(latest, starts[other]) + 1))
        ends = tokens[first + 1 : end + 1] - tokens[first]
        count = int(np.searchsorted(ends, wanted))  # sentences that stay below
        near = count and count < len(ends) and wanted - ends[count - 1] < ends[count] - wanted
        return self._tokens(first, min(first + count + (0 if near and not fill else 1), end))

    def _tokens(self, first: int, last: int) -> Ids:
        return self.corpus.slice(first, last).astype(np.int64)


def split_documents(corpus: Corpus, share: float, seed: int) -> tuple[Ids, Ids]:
    """Documents to train on, and documents held out: at most `share` of the tokens, drawn whole.

    A document that does not fit any more is passed over; where fewer than two fit, the two
    smallest are held out. With fewer than four documents none is.
    """
    documents = np.arange(corpus.documents)
    if share == 0.0 or corpus.documents < 4:
        return documents, documents[:0]
    sizes = np.diff(corpus.starts[corpus.document_starts])
    order = generator(seed, 0, 0, Purpose.SPLIT).permutation(documents)
    room, chosen = share * corpus.tokens, []
    for document in order[sizes[order] <= room]:
        if sizes[document] <= room:
            chosen.append(document)
            room -= sizes[document]
    if len(chosen) < 2:
        chosen = list(np.argsort(sizes, kind="stable")[:2])
    held_out = np.sort(chosen[: corpus.documents - 2])
    return np.setdiff1d(documents, held_out), held_out


def _windows(corpus: Corpus, documents: Ids, room: int, *, across: bool, fill: bool) -> Ids:
    """(W, 2) first and last sentence (exclusive) of each window.

    A window takes sentences while they fit, at least one, and with `fill` the one more that fills
    it. All documents advance together.
    """
    starts, limits = corpus.starts, corpus.document_starts
    place, end = limits[documents], limits[documents + 1]
    if across and len(documents):
        # neighbors in a shard are read as one document
        shards = np.cumsum([shard.documents for shard in corpus.manifest.shards])
        breaks = np.flatnonzero((np.diff(documents) > 1) | np.isin(documents[1:], shards))
        place = place[np.concatenate([[0], breaks + 1])]
        end = end[np.concatenate([breaks, [len(end) - 1]])]
    found: list[Ids] = []
    while len(place):
        last = np.searchsorted(starts, starts[place] + room, side="left" if fill else "right")
        last = last if fill else last - 1
        last = np.minimum(np.maximum(last, place + 1), end)
        found.append(np.stack([place, last], axis=1))
        going = last < end
        place, end = last[going], end[going]
    windows = np.concatenate(found) if found else np.zeros((0, 2), dtype=np.int64)
    return windows[np.argsort(windows[:, 0], kind="stable")]


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
