"""Choosing the tokens to predict. Devlin et al. 2019, section 3.1, task 1."""

from __future__ import annotations

import copy
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bertkit.config import Settings
from bertkit.text.tokenizer import Tokenizer


class Masking(Settings, frozen=True):
    """How much is masked, and in what units."""

    mlm_probability: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.15
    """Share of a sample's tokens that are chosen."""
    first_mlm_probability: Annotated[float, Meta(gt=0.0, lt=1.0)] | None = None
    """Another share at the start of a run; by default the same."""
    first_share: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Share of the steps after which `mlm_probability` is reached."""
    schedule: Literal["linear", "step"] = "linear"
    """How it is reached: evenly (Ankner et al. 2024), or in one step."""
    unit: Literal["token", "word", "span", "ngram"] = "token"
    """Tokens; whole words (google-research/bert, 2019); spans of words (SpanBERT); or n-grams of
    one to three words (ALBERT). Whether a chosen token becomes [MASK], another or none is drawn for
    each token, as the code of BERT and ALBERT does; for spans once for all of a span."""
    mask: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.8
    """Share of the chosen that become [MASK]."""
    random: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """Share of the chosen that become a random piece; the rest is left as it is."""
    dupe_factor: Annotated[int, Meta(ge=1)] | None = None
    """Static masking: the masks (and pairs) of this many epochs, over and over; BERT's data had
    10. Without it every epoch draws new ones (RoBERTa's dynamic masking)."""

    def __post_init__(self) -> None:
        if self.mask + self.random > 1.0:
            raise ValueError(
                f"mask = {self.mask} and random = {self.random} are shares of the chosen; "
                "together they cannot exceed 1"
            )
        if self.first_mlm_probability is None:
            if (self.first_share, self.schedule) != (1.0, "linear"):
                raise ValueError(
                    "first_share, schedule: say how the share of masks changes, and it does not; "
                    "set first_mlm_probability, or leave them out"
                )
            return
        if self.dupe_factor is not None:
            raise ValueError(
                "first_mlm_probability: static masks (dupe_factor) stay the same; leave out either"
            )
        if self.schedule == "step" and self.first_share == 1.0:
            raise ValueError(
                "first_share = 1.0: the step from first_mlm_probability to mlm_probability would "
                "never be taken; set it below 1"
            )

    def probability(self, step: int, steps: int) -> float:
        """The share of tokens that are chosen in a step, from 0, of a run of so many."""
        first, last = self.first_mlm_probability, self.mlm_probability
        if first is None:
            return last
        until = self.first_share * steps
        if self.schedule == "step":
            return first if step < round(until) else last
        done = min(1.0, step / max(1.0, until - 1.0))
        return (1.0 - done) * first + done * last


SPANS = np.power(0.8, np.arange(10.0))
"""How likely a span is of 1, 2 … 10 words, up to a factor: geometric with p = 0.2 and no longer
ones, 3.8 words on average."""

NGRAM_WEIGHTS = 1.0 / np.arange(1, 4)
"""How likely an n-gram is of 1, 2 or 3 words, up to a factor."""


class Masker:
    """Masks samples of one vocabulary."""

    def __init__(self, settings: Masking, tokenizer: Tokenizer) -> None:
        self.settings, self.share = settings, settings.mlm_probability
        self.mask = tokenizer.mask
        self.special = np.zeros(tokenizer.vocab_size, dtype=bool)
        self.special[list(tokenizer.special_ids)] = True
        self.ordinary = np.flatnonzero(~self.special)
        if settings.unit != "token":
            self.starts_word = tokenizer.starts_word

    def with_share(self, share: float) -> Masker:
        """One that chooses another share of the tokens."""
        masker = copy.copy(self)
        masker.share = share
        return masker

    def __call__(
        self, ids: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The masked ids, and the positions of the chosen tokens in order.

        Special tokens are never chosen nor drawn; at least one token is chosen where there is an
        ordinary one. Tokens are chosen until round(share × tokens) are reached; a word
        or span that would overshoot is passed over, unless nothing is chosen yet.
        """
        candidates = np.flatnonzero(~self.special[ids])
        if not len(candidates):
            return ids, candidates
        wanted = max(1, round(self.share * len(candidates)))
        match self.settings.unit:
            case "token":
                positions = rng.permutation(candidates)[:wanted]
            case "word":
                words = self._words(ids, candidates)
                positions = _take(words, rng.permutation(len(words)), wanted)
            case "span":  # Joshi et al. 2020 (SpanBERT), section 3.1
                positions = self._spans(ids, candidates, wanted, rng, SPANS)
            case "ngram":  # Lan et al. 2020 (ALBERT), section 4.1
                positions = self._spans(ids, candidates, wanted, rng, NGRAM_WEIGHTS)
        positions = np.sort(positions)
        masked = ids.copy()
        draw = rng.random(len(positions))
        if self.settings.unit == "span":  # spans that touch are one, as in the authors' code
            draw = draw[np.cumsum(np.diff(positions, prepend=positions[0]) > 1)]
        masked[positions[draw < self.settings.mask]] = self.mask
        random = positions[(draw >= self.settings.mask) & (draw < self._replaced)]
        masked[random] = rng.choice(self.ordinary, len(random))
        return masked, positions

    @property
    def _replaced(self) -> float:
        return self.settings.mask + self.settings.random

    def _words(
        self, ids: NDArray[np.int64], candidates: NDArray[np.int64]
    ) -> list[NDArray[np.int64]]:
        """The candidates, grouped: a piece joins the one before it unless it starts a word."""
        apart = self.starts_word[ids[candidates]]
        apart[1:] |= np.diff(candidates) > 1
        return np.split(candidates, np.flatnonzero(apart[1:]) + 1)

    def _spans(
        self,
        ids: NDArray[np.int64],
        candidates: NDArray[np.int64],
        wanted: int,
        rng: np.random.Generator,
        likelihoods: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Spans of whole words; `likelihoods` are those of spans of one, two, three … words."""
        bounds = np.cumsum(likelihoods) / likelihoods.sum()
        words = self._words(ids, candidates)
        free = np.ones(len(words), dtype=bool)
        chosen: list[NDArray[np.int64]] = []
        count = 0
        for first in rng.permutation(len(words)):
            length = int(np.searchsorted(bounds, rng.random(), side="right")) + 1
            for word in range(first, min(first + length, len(words))):
                if not free[word]:
                    break
                if count and count + len(words[word]) > wanted:
                    break
                free[word] = False
                chosen.append(words[word])
                count += len(words[word])
            if count >= wanted:
                break
        return np.concatenate(chosen)


def _take(
    words: list[NDArray[np.int64]], order: NDArray[np.int64], wanted: int
) -> NDArray[np.int64]:
    chosen: list[NDArray[np.int64]] = []
    count = 0
    for word in order:
        if count and count + len(words[word]) > wanted:
            continue
        chosen.append(words[word])
        count += len(words[word])
        if count >= wanted:
            break
    return np.concatenate(chosen)
