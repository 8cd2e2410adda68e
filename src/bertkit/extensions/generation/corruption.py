"""Text corruption for the denoising objectives of encoder-decoder models."""

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
CorruptionType = Literal["spans", "infill", "mass", "prefix"]


class Corruption(Settings, frozen=True):
    """Settings of text corruption."""

    rate: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.15
    """Fraction of tokens to remove (0.15 in T5, 0.3 in BART, 0.5 in MASS). The objective `prefix`
    ignores it and splits a text at a uniformly sampled position."""
    mean: Annotated[float, Meta(ge=1.0)] = 3.0
    """Mean number of tokens per removed span."""
    permute: bool = False
    """Whether the objective `infill` also shuffles the sentences of a text, as in BART."""


def spans(
    ids: Ids, sentinels: Ids, rng: np.random.Generator, settings: Corruption
) -> tuple[Ids, Ids]:
    """Replace random spans of a text with sentinel tokens, as in T5.

    The target contains each sentinel, followed by the tokens that it replaces. The number of
    removed tokens is `rate` times the number of tokens, rounded. At least one token is removed, and
    at least one remains.

    Args:
        ids: Token ids of a text of at least two tokens.
        sentinels: Token ids of the sentinels.
        rng: Random generator.
        settings: Fraction of removed tokens and mean length of spans.

    Returns:
        The corrupted source and the target.

    Source:
        Raffel et al. 2020, section 3.1.4; `random_spans_noise_mask` of
        text-to-text-transfer-transformer.
    """
    count = len(ids)
    removed = min(max(round(count * settings.rate), 1), count - 1)
    number = min(max(round(removed / settings.mean), 1), removed, count - removed, len(sentinels))
    sizes = [_split_total(total, number, rng) for total in (count - removed, removed)]
    bounds = np.cumsum(np.stack(sizes, 1).ravel())[:-1]
    parts = np.split(ids, bounds)
    source, target = [], []
    for rest, sentinel, span in zip(parts[::2], sentinels[:number, None], parts[1::2], strict=True):
        source += [rest, sentinel]
        target += [sentinel, span]
    return np.concatenate(source), np.concatenate(target)


def infill(ids: Ids, mask: int, rng: np.random.Generator, settings: Corruption) -> Ids:
    """Replace each of several random spans with one mask token, as in BART.

    The lengths of the spans are sampled from a Poisson distribution until `rate` times the number
    of tokens are removed. A span of length 0 inserts a mask token.

    Source:
        Lewis et al. 2020, section 2.2.
    """
    removed = int(np.ceil(len(ids) * settings.rate))
    sizes: list[int] = []
    while sum(sizes) < removed:
        sizes.append(min(int(rng.poisson(settings.mean)), removed - sum(sizes)))
    rng.shuffle(sizes)
    rest = len(ids) - sum(sizes)
    gaps = np.diff([0, *np.sort(rng.integers(0, rest + 1, len(sizes))), rest])
    source: list[Any] = []
    start = 0
    for gap, size in zip(gaps, [*sizes, 0], strict=True):
        source += [ids[start : start + gap], [mask]]
        start += gap + size
    return np.concatenate(source[:-1]).astype(np.int64)


def permute_sentences(ids: Ids, starts: Sequence[int], rng: np.random.Generator) -> Ids:
    """Shuffle the sentences of a text.

    Args:
        ids: Token ids of the text.
        starts: Index of the first token of every sentence except the first.
        rng: Random generator.
    """
    sentences = np.split(ids, starts)
    order = rng.permutation(len(sentences))
    return np.concatenate([sentences[index] for index in order])


def mass(ids: Ids, mask: int, rng: np.random.Generator, settings: Corruption) -> tuple[Ids, Ids]:
    """Mask every token of one random span. The target consists of the masked tokens.

    Source:
        Song et al. 2019, section 3.1.
    """
    size = min(max(round(len(ids) * settings.rate), 1), len(ids))
    start = int(rng.integers(0, len(ids) - size + 1))
    source = ids.copy()
    source[start : start + size] = mask
    return source, ids[start : start + size]


def prefix(ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Split a text into a source and a target at a uniformly sampled position.

    Source:
        Raffel et al. 2020, section 3.2.3.
    """
    size = int(rng.integers(1, len(ids)))
    return ids[:size], ids[size:]


def sentinel_ids(tokenizer: Tokenizer) -> Ids:
    """Return the ids of T5's sentinel tokens <extra_id_0>, <extra_id_1>, and so on.

    Raises:
        TokenizerError: If the vocabulary has no sentinel tokens.
    """
    ids: list[int] = []
    while tokenizer.has(name := f"<extra_id_{len(ids)}>"):
        ids.append(tokenizer.token(name))
    if not ids:
        raise TokenizerError(
            f"{tokenizer.source}: the vocabulary has no sentinel token <extra_id_0>; train a "
            "tokenizer with --use spans"
        )
    return np.array(ids, dtype=np.int64)


class Corrupted(Shuffled[Pair]):
    """Chunks of documents that are corrupted in a new way in every epoch.

    A document is split into chunks of `length` tokens, including special tokens. The last chunk may
    be shorter. It is skipped if it has fewer than two tokens. The corruption depends only on the
    seed, the epoch, and the index.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        kind: CorruptionType,
        settings: Corruption,
        *,
        start: int,
        length: int,
        documents: Ids | None = None,
        seed: int = 0,
    ) -> None:
        self.corpus, self.settings, self.seed, self.start = corpus, settings, seed, start
        self.end, self.length = tokenizer.eos, length
        specials = tokenizer.encode("").ids
        self._before = specials[:-1]
        self._corrupt = get_corruption(kind, settings, special_token_ids(kind, tokenizer))
        self.capacity = length - len(specials) - 1
        self.documents = np.arange(corpus.documents) if documents is None else documents
        sizes = np.diff(corpus.starts[corpus.document_starts])[self.documents]
        full, rest = np.divmod(sizes, self.capacity)
        self._first = np.cumsum([0, *(full + (rest > 1))])
        if not len(self):
            raise DataError(f"{corpus.folder}: contains no text to train on; prepare other files")

    def __len__(self) -> int:
        """Return the number of chunks per epoch."""
        return int(self._first[-1])

    def sample(self, epoch: int, index: int) -> Pair:
        """Return a corrupted chunk and its target."""
        document = int(np.searchsorted(self._first, index, side="right")) - 1
        begin = int(index - self._first[document]) * self.capacity
        first, last = map(int, self.corpus.document_starts[self.documents[document] :][:2])
        text = self.corpus.slice(first, last)[begin : begin + self.capacity].astype(np.int64)
        starts = self.corpus.starts[first + 1 : last] - self.corpus.starts[first] - begin
        rng = generator(self.seed, epoch, index, Purpose.MASK)
        inside = starts[(starts > 0) & (starts < len(text))].tolist()
        source, target = self._corrupt(text, inside, rng)
        source = source[: self.length - len(self._before) - 1]
        return Pair(
            np.concatenate([self._before, source, [self.end]]).astype(np.int64),
            np.concatenate([[self.start], target]).astype(np.int64),
            np.append(target, self.end),
        )


def special_token_ids(kind: CorruptionType, tokenizer: Tokenizer) -> Ids:
    """Return the ids of the tokens that replace removed tokens.

    These are all sentinel tokens for `spans`, no tokens for `prefix`, and otherwise the mask token.

    Raises:
        TokenizerError: If the vocabulary does not contain the required tokens.
    """
    if kind == "spans":
        return sentinel_ids(tokenizer)
    return np.array([] if kind == "prefix" else [tokenizer.mask], dtype=np.int64)


def get_corruption(
    kind: CorruptionType, settings: Corruption, specials: Ids
) -> Callable[[Ids, list[int], np.random.Generator], tuple[Ids, Ids]]:
    """Return a function that corrupts a text.

    Args:
        kind: Type of the corruption.
        settings: Settings of the corruption.
        specials: Ids of the tokens that replace removed tokens; see `special_token_ids`.

    Returns:
        A function that returns the corrupted source and the target. Its arguments are the token
        ids of the text, the start index of every sentence except the first, and a random generator.
    """
    match kind:
        case "spans":
            return lambda ids, _, rng: spans(ids, specials, rng, settings)
        case "prefix":
            return lambda ids, _, rng: prefix(ids, rng)
        case "mass":
            return lambda ids, _, rng: mass(ids, int(specials[0]), rng, settings)

    def corrupt(ids: Ids, starts: list[int], rng: np.random.Generator) -> tuple[Ids, Ids]:
        text = permute_sentences(ids, starts, rng) if settings.permute else ids
        return infill(text, int(specials[0]), rng, settings), ids

    return corrupt


def _split_total(total: int, number: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Split `total` into `number` positive integers. All possible splits are equally likely."""
    bounds = np.sort(rng.choice(np.arange(1, total), number - 1, replace=False))
    return np.diff([0, *bounds, total])
