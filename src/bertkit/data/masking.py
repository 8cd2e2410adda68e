"""Masking of tokens for masked language modeling (Devlin et al. 2019, section 3.1, task 1)."""

from __future__ import annotations

import copy
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from bertkit.config import Settings
from bertkit.text.tokenizer import Tokenizer


class Masking(Settings, frozen=True):
    """Settings of masked language modeling: which tokens to predict, and how to mask them."""

    mlm_probability: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.15
    """Fraction of a sample's tokens to predict."""
    first_mlm_probability: Annotated[float, Meta(gt=0.0, lt=1.0)] | None = None
    """Fraction of a sample's tokens to predict at the start of the run. Default: `mlm_probability`.
    """
    first_share: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Fraction of the training steps after which `mlm_probability` is reached."""
    schedule: Literal["linear", "step"] = "linear"
    """How the fraction changes from `first_mlm_probability` to `mlm_probability`: linearly (Ankner
    et al. 2024), or in a single step."""
    unit: Literal["token", "word", "span", "ngram"] = "token"
    """Unit in which tokens are selected: single tokens, whole words (google-research/bert, 2019),
    spans of words (SpanBERT), or n-grams of one to three words (ALBERT). All tokens of a span are
    masked, replaced or kept together. The tokens of words and n-grams are masked, replaced or kept
    independently, as in the code of BERT and ALBERT.
    """
    mask: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.8
    """Fraction of the selected tokens to replace with [MASK]."""
    random: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """Fraction of the selected tokens to replace with a random token. The remaining tokens are
    unchanged.
    """
    dupe_factor: Annotated[int, Meta(ge=1)] | None = None
    """Number of epochs with different masks and pairs, which are then repeated (static masking).
    BERT used 10. By default, every epoch has new masks (dynamic masking, as in RoBERTa).
    """

    def __post_init__(self) -> None:
        if self.mask + self.random > 1.0:
            raise ValueError(
                f"mask + random must not exceed 1, got {self.mask} + {self.random}; reduce one "
                "of them"
            )
        if self.first_mlm_probability is None:
            if (self.first_share, self.schedule) != (1.0, "linear"):
                raise ValueError(
                    "first_share and schedule require first_mlm_probability; set "
                    "first_mlm_probability, or remove first_share and schedule"
                )
            return
        if self.dupe_factor is not None:
            raise ValueError(
                "first_mlm_probability cannot be combined with dupe_factor (static masks); remove "
                "one of them"
            )
        if self.schedule == "step" and self.first_share == 1.0:
            raise ValueError(
                'with schedule = "step", first_share must be less than 1, because otherwise '
                "mlm_probability is never reached"
            )

    def probability(self, step: int, steps: int) -> float:
        """Return the fraction of a sample's tokens to predict at a training step.

        Args:
            step: Index of the step, starting at 0.
            steps: Total number of training steps.
        """
        first, last = self.first_mlm_probability, self.mlm_probability
        if first is None:
            return last
        until = self.first_share * steps
        if self.schedule == "step":
            return first if step < round(until) else last
        done = min(1.0, step / max(1.0, until - 1.0))
        return (1.0 - done) * first + done * last


SPANS = np.power(0.8, np.arange(10.0))
"""Relative probabilities of spans of 1 to 10 words.

They follow a geometric distribution with p = 0.2, truncated at 10 words. The mean is 3.8 words.
"""

NGRAM_WEIGHTS = 1.0 / np.arange(1, 4)
"""Relative probabilities of n-grams of 1, 2 and 3 words."""


class Masker:
    """Callable that selects the tokens of a sample to predict, and masks them."""

    def __init__(self, settings: Masking, tokenizer: Tokenizer) -> None:
        self.settings, self.probability = settings, settings.mlm_probability
        self.mask = tokenizer.mask
        self.special = np.zeros(tokenizer.vocab_size, dtype=bool)
        self.special[list(tokenizer.special_ids)] = True
        self.ordinary = np.flatnonzero(~self.special)
        if settings.unit != "token":
            self.starts_word = tokenizer.starts_word

    def with_probability(self, probability: float) -> Masker:
        """Return a copy with a different masking probability."""
        masker = copy.copy(self)
        masker.probability = probability
        return masker

    def __call__(
        self, ids: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Mask a sample.

        The number of tokens to select is the masking probability times the number of tokens that
        are not special, rounded, and at least 1. A word that would exceed this number is not
        selected, unless nothing has been selected yet, and a span ends before such a word. Special
        tokens are never selected, and never used as random tokens.

        Args:
            ids: Token ids of the sample.
            rng: Random number generator.

        Returns:
            The masked ids, and the positions of the selected tokens in ascending order.

        Shapes:
            ids: (T,); returns (T,) and (M,).
        """
        candidates = np.flatnonzero(~self.special[ids])
        if not len(candidates):
            return ids, candidates
        target = max(1, round(self.probability * len(candidates)))
        match self.settings.unit:
            case "token":
                positions = rng.permutation(candidates)[:target]
            case "word":
                words = self._words(ids, candidates)
                positions = _select_words(words, rng.permutation(len(words)), target)
            case "span":  # Joshi et al. 2020 (SpanBERT), section 3.1
                positions = self._spans(ids, candidates, target, rng, SPANS)
            case "ngram":  # Lan et al. 2020 (ALBERT), section 4.1
                positions = self._spans(ids, candidates, target, rng, NGRAM_WEIGHTS)
        positions = np.sort(positions)
        masked = ids.copy()
        action = rng.random(len(positions))
        if self.settings.unit == "span":
            # Spans that are adjacent are treated as one span, as in the code of SpanBERT.
            action = action[np.cumsum(np.diff(positions, prepend=positions[0]) > 1)]
        masked[positions[action < self.settings.mask]] = self.mask
        replaced = self.settings.mask + self.settings.random
        random = positions[(action >= self.settings.mask) & (action < replaced)]
        masked[random] = rng.choice(self.ordinary, len(random))
        return masked, positions

    def _words(
        self, ids: NDArray[np.int64], candidates: NDArray[np.int64]
    ) -> list[NDArray[np.int64]]:
        """Group the positions of candidates by word."""
        begins = self.starts_word[ids[candidates]]
        begins[1:] |= np.diff(candidates) > 1
        return np.split(candidates, np.flatnonzero(begins[1:]) + 1)

    def _spans(
        self,
        ids: NDArray[np.int64],
        candidates: NDArray[np.int64],
        target: int,
        rng: np.random.Generator,
        likelihoods: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Select spans of whole words.

        Entry n of `likelihoods` is the relative probability of spans of n + 1 words.
        """
        bounds = np.cumsum(likelihoods) / likelihoods.sum()
        words = self._words(ids, candidates)
        unselected = np.ones(len(words), dtype=bool)
        chosen: list[NDArray[np.int64]] = []
        count = 0
        for first in rng.permutation(len(words)):
            length = int(np.searchsorted(bounds, rng.random(), side="right")) + 1
            for word in range(first, min(first + length, len(words))):
                if not unselected[word]:
                    break
                if count and count + len(words[word]) > target:
                    break
                unselected[word] = False
                chosen.append(words[word])
                count += len(words[word])
            if count >= target:
                break
        return np.concatenate(chosen)


def _select_words(
    words: list[NDArray[np.int64]], order: NDArray[np.int64], target: int
) -> NDArray[np.int64]:
    """Select words in the given order until they contain `target` tokens."""
    chosen: list[NDArray[np.int64]] = []
    count = 0
    for word in order:
        if count and count + len(words[word]) > target:
            continue
        chosen.append(words[word])
        count += len(words[word])
        if count >= target:
            break
    return np.concatenate(chosen)
