"""Damaged text, from which an encoder and a decoder learn to write what is lacking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bertkit.config import Settings
from bertkit.data.corpus import Corpus
from bertkit.data.shuffling import Purpose, Shuffled, generator
from bertkit.errors import DataError, TokenizerError
from bertkit.extensions.generation.pairs import Pair
from bertkit.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]
Damage = Literal["spans", "infill", "mass", "prefix"]


class Corruption(Settings, frozen=True):
    """How a text is damaged."""

    rate: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.15
    """Share of the tokens that are taken away: 0.15 of T5's spans; BART took 0.3, MASS 0.5. With
    `prefix` the place of the cut is drawn evenly."""
    mean: Annotated[float, Meta(ge=1.0)] = 3.0
    """Tokens of a span, on average."""
    permute: bool = False
    """Whether the sentences of an infilled text are put in another order, as by BART."""


def spans(
    ids: Ids, sentinels: Ids, rng: np.random.Generator, settings: Corruption
) -> tuple[Ids, Ids]:
    """Spans go, each leaves a sentinel; the target names each sentinel and what it stands for.

    Exactly `rate` of the tokens go, rounded, one at least and not all. Source: Raffel et al. 2020,
    section 3.1.4; text-to-text-transfer-transformer's `random_spans_noise_mask`.
    """
    count = len(ids)
    taken = min(max(round(count * settings.rate), 1), count - 1)
    number = min(max(round(taken / settings.mean), 1), taken, count - taken, len(sentinels))
    kept_sizes, taken_sizes = _parts(count - taken, number, rng), _parts(taken, number, rng)
    bounds = np.cumsum(np.stack([kept_sizes, taken_sizes], 1).ravel())[:-1]
    pieces = np.split(ids, bounds)
    marks = sentinels[:number, None]
    source, target = [], []
    for kept, mark, gone in zip(pieces[::2], marks, pieces[1::2], strict=True):
        source += [kept, mark]
        target += [mark, gone]
    return np.concatenate(source), np.concatenate(target)


def infill(ids: Ids, mask: int, rng: np.random.Generator, settings: Corruption) -> Ids:
    """Spans go, each leaves one mask; a span of no tokens leaves one too.

    Their lengths are Poisson's, until `rate` of the tokens are gone. Source: Lewis et al. 2020,
    section 2.2.
    """
    wanted = int(np.ceil(len(ids) * settings.rate))
    sizes: list[int] = []
    while sum(sizes) < wanted:
        sizes.append(min(int(rng.poisson(settings.mean)), wanted - sum(sizes)))
    rng.shuffle(sizes)
    kept = len(ids) - sum(sizes)
    gaps = np.diff([0, *np.sort(rng.integers(0, kept + 1, len(sizes))), kept])
    source: list[Any] = []
    place = 0
    for gap, size in zip(gaps, [*sizes, 0], strict=True):
        source += [ids[place : place + gap], [mask]]
        place += gap + size
    return np.concatenate(source[:-1]).astype(np.int64)


def permuted(ids: Ids, starts: Sequence[int], rng: np.random.Generator) -> Ids:
    """The sentences in another order; `starts` are the first tokens of all but the first."""
    sentences = np.split(ids, starts)
    order = rng.permutation(len(sentences))
    return np.concatenate([sentences[place] for place in order])


def mass(ids: Ids, mask: int, rng: np.random.Generator, settings: Corruption) -> tuple[Ids, Ids]:
    """One stretch is masked token by token; it is the target. Source: Song et al. 2019, section
    3.1.
    """
    size = min(max(round(len(ids) * settings.rate), 1), len(ids))
    start = int(rng.integers(0, len(ids) - size + 1))
    source = ids.copy()
    source[start : start + size] = mask
    return source, ids[start : start + size]


def prefix(ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """The beginning is read, the rest is the target. Source: Raffel et al. 2020, section 3.2.3."""
    cut = int(rng.integers(1, len(ids)))
    return ids[:cut], ids[cut:]


def sentinels_of(tokenizer: Tokenizer) -> Ids:
    """Of T5: <extra_id_0>, <extra_id_1> … Raises: TokenizerError where there is none."""
    ids: list[int] = []
    while tokenizer.has(name := f"<extra_id_{len(ids)}>"):
        ids.append(tokenizer.token(name))
    if not ids:
        raise TokenizerError(
            f"{tokenizer.source}: the vocabulary has no <extra_id_0>, which stands for a span; "
            "train one with --use spans"
        )
    return np.array(ids, dtype=np.int64)


class Corrupted(Shuffled[Pair]):
    """The stretches of some documents, damaged anew in every epoch.

    A document is cut every `length` tokens, less the tokens around a text; what is left of it
    counts too, if it has two tokens. What goes depends on (seed, epoch, index) alone.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        damage: Damage,
        settings: Corruption,
        *,
        start: int,
        length: int,
        documents: Ids | None = None,
        seed: int = 0,
    ) -> None:
        self.corpus, self.settings, self.seed, self.start = corpus, settings, seed, start
        self.end, self.length = tokenizer.eos, length
        frame = tokenizer.encode("").ids
        self._before = frame[:-1]
        self._damage = damager(damage, settings, marks_of(damage, tokenizer))
        self.room = length - len(frame) - 1
        self.documents = np.arange(corpus.documents) if documents is None else documents
        sizes = np.diff(corpus.starts[corpus.document_starts])[self.documents]
        whole, rest = np.divmod(sizes, self.room)
        self._first = np.cumsum([0, *(whole + (rest > 1))])
        if not len(self):
            raise DataError(f"{corpus.folder}: no text to make samples from")

    def __len__(self) -> int:
        """Stretches of one epoch."""
        return int(self._first[-1])

    def sample(self, epoch: int, index: int) -> Pair:
        """One damaged text, and what is to be written."""
        place = int(np.searchsorted(self._first, index, side="right")) - 1
        begin = int(index - self._first[place]) * self.room
        first, last = map(int, self.corpus.document_starts[self.documents[place] :][:2])
        text = self.corpus.slice(first, last)[begin : begin + self.room].astype(np.int64)
        starts = self.corpus.starts[first + 1 : last] - self.corpus.starts[first] - begin
        rng = generator(self.seed, epoch, index, Purpose.MASK)
        inside = starts[(starts > 0) & (starts < len(text))].tolist()
        source, target = self._damage(text, inside, rng)
        source = source[: self.length - len(self._before) - 1]
        return Pair(
            np.concatenate([self._before, source, [self.end]]).astype(np.int64),
            np.concatenate([[self.start], target]).astype(np.int64),
            np.append(target, self.end),
        )


def marks_of(damage: Damage, tokenizer: Tokenizer) -> Ids:
    """The tokens that stand for what is gone: sentinels, or a mask; none beside a prefix.

    Raises: TokenizerError where the vocabulary has none.
    """
    if damage == "spans":
        return sentinels_of(tokenizer)
    return np.array([] if damage == "prefix" else [tokenizer.mask], dtype=np.int64)


def damager(
    damage: Damage, settings: Corruption, marks: Ids
) -> Callable[[Ids, list[int], np.random.Generator], tuple[Ids, Ids]]:
    """What makes a source and a target of a text; `marks` are as of `marks_of`, and the list is of
    the first tokens of all sentences but the first.
    """
    match damage:
        case "spans":
            return lambda ids, _, rng: spans(ids, marks, rng, settings)
        case "prefix":
            return lambda ids, _, rng: prefix(ids, rng)
        case "mass":
            return lambda ids, _, rng: mass(ids, int(marks[0]), rng, settings)

    def filled(ids: Ids, starts: list[int], rng: np.random.Generator) -> tuple[Ids, Ids]:
        text = permuted(ids, starts, rng) if settings.permute else ids
        return infill(text, int(marks[0]), rng, settings), ids

    return filled


def _parts(total: int, number: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`total` as that many numbers above 0, all ways alike."""
    cuts = np.sort(rng.choice(np.arange(1, total), number - 1, replace=False))
    return np.diff([0, *cuts, total])
