"""Published quality rules for web text: Gopher and C4.

Each filter is a stateless function that returns the name of the first rule that a document
violates. The thresholds are those of the papers. Details that the papers leave open follow
datatrove, with which FineWeb was created, and tests compare the decisions with datatrove's. The
rules are meant for languages with spaces between words, and the stop words are English.

Sources: Rae et al. 2021 (Gopher), appendix A.1.1 and table A1; Raffel et al. 2020 (C4), section
2.2, with the additional rules of its code in TensorFlow Datasets (`c4_utils.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, get_args

Filter = Literal["gopher-quality", "gopher-repetition", "c4"]

FILTERS: tuple[Filter, ...] = get_args(Filter)

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))

TOP_NGRAMS = {2: 0.20, 3: 0.18, 4: 0.16}
"""Maximum fraction of a text's characters that the most frequent n-gram may cover, by n."""

DUPLICATE_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
"""Maximum fraction of a text's characters that repeated n-grams may cover, by n."""

# "don't" counts as two words, as in spaCy, which datatrove uses.
_WORD = re.compile(r"\w+|['’](?:s|t|re|ve|ll|d|m)\b|\.{2,}|[^\w\s]")
_ELLIPSES = ("...", "…")
_PARAGRAPHS, _LINES = re.compile(r"\n{2,}"), re.compile(r"\n+")
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_POLICIES = (
    "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies",
    "use cookies",
)  # fmt: skip


def words_of(text: str) -> list[str]:
    """Split a text into words and punctuation marks."""
    return _WORD.findall(text)


def gopher_quality(text: str, words: Sequence[str]) -> str | None:
    """Return the first rule on length, words, symbols and lines that a text violates, or None."""
    real = [word for word in words if any(map(str.isalnum, word))]
    if len(real) < 50:
        return "short"
    if len(real) > 100_000:
        return "long"
    mean = sum(map(len, real)) / len(real)
    if mean < 3:
        return "short-words"
    if mean > 10:
        return "long-words"
    if text.count("#") > 0.1 * len(words):
        return "hashes"
    if sum(map(text.count, _ELLIPSES)) > 0.1 * len(words):
        return "ellipses"
    lines = text.splitlines()
    if sum(line.lstrip().startswith(("•", "-")) for line in lines) > 0.9 * len(lines):
        return "bullets"
    if sum(line.rstrip().endswith(_ELLIPSES) for line in lines) > 0.3 * len(lines):
        return "ellipsis-lines"
    if sum(any(map(str.isalpha, word)) for word in words) < 0.8 * len(words):
        return "letters"
    if len(STOP_WORDS.intersection(words)) < 2:
        return "stop-words"
    return None


def gopher_repetition(text: str, words: Sequence[str]) -> str | None:
    """Return the first rule on repeated lines or n-grams that a text violates, or None."""
    if not text:
        return "empty"
    for name, parts in (
        ("paragraph", _PARAGRAPHS.split(text.strip())),
        ("line", _LINES.split(text)),
    ):
        duplicates, characters = _count_duplicates(parts)
        if duplicates > 0.3 * len(parts):
            return f"{name}s"
        if characters > 0.2 * len(text):
            return f"{name}-characters"
    for n, fraction in TOP_NGRAMS.items():
        if len(words) >= n:
            gram, count = Counter(_ngrams(words, n)).most_common(1)[0]
            # The characters of an n-gram include the spaces between its words.
            if (sum(map(len, gram)) + n - 1) * count > fraction * len(text):
                return f"top-{n}-gram"
    lengths = sorted(map(len, words), reverse=True)
    for n, fraction in DUPLICATE_NGRAMS.items():
        grams = list(_ngrams(words, n))
        repeated = len(grams) - len(set(grams))
        # If no n-gram of this length is repeated, then no longer one is repeated either.
        if not repeated:
            break
        most = fraction * len(text)
        if sum(lengths[: repeated * n]) > most and _repeated_characters(grams, n) > most:
            return f"duplicate-{n}-gram"
    return None


def c4(text: str, sentences: Callable[[str], Sequence[str]]) -> tuple[str, str | None]:
    """Apply the rules of C4 to a document, except for its list of bad words.

    Args:
        text: The document.
        sentences: Function that splits a line into sentences.

    Returns:
        If the text passes, its lines of prose and None. Otherwise, the unchanged text and the rule
        that it violates.
    """
    lines, count = [], 0
    for line in map(str.strip, text.splitlines()):
        words = line.split()
        if any(len(word) > 1000 for word in words):
            continue
        line = _CITATION.sub("", line)
        if not line.endswith((".", "?", "!", '"', "'")) or line.endswith("..."):
            continue
        if len(words) < 3:
            continue
        lower = line.lower()
        if "lorem ipsum" in lower:
            return text, "lorem-ipsum"
        if "javascript" in lower:
            continue
        if "{" in line:
            return text, "curly-bracket"
        if any(policy in lower for policy in _POLICIES):
            continue
        count += len(sentences(line))
        lines.append(line)
    return ("\n".join(lines).strip(), None) if count >= 5 else (text, "few-sentences")


def _count_duplicates(parts: Sequence[str]) -> tuple[int, int]:
    """Return how many parts are repetitions of earlier parts, and how many characters they have."""
    seen: set[str] = set()
    repeated = [part for part in parts if part in seen or seen.add(part)]  # type: ignore[func-returns-value]
    return len(repeated), sum(map(len, repeated))


def _ngrams(words: Sequence[str], n: int) -> zip[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


def _repeated_characters(grams: Sequence[tuple[str, ...]], n: int) -> int:
    """Count the characters of n-grams that occurred before, from left to right without overlaps."""
    seen: set[tuple[str, ...]] = set()
    characters = start = 0
    while start < len(grams):
        gram = grams[start]
        if gram in seen:
            characters += sum(map(len, gram))
            start += n
        else:
            seen.add(gram)
            start += 1
    return characters
