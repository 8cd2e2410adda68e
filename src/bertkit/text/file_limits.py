"""Limits of tokenizer files, which are checked before the `tokenizers` library loads the files.

The library itself has no limits. For example, it frees a vocabulary recursively, so that a very
long token causes a stack overflow.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from typing import Any

import msgspec
from tokenizers import Regex, normalizers

from bertkit.errors import TokenizerError

MAX_TOKEN = 1_000
"""Maximum number of characters of a token, and of a word that WordPiece splits into tokens."""

MAX_ADDED = 2_000_000
"""Maximum number of characters of all added tokens together."""

MAX_GROWTH = 1_000
"""Maximum number of characters by which a normalizer or a decoder may replace one character, and
maximum number of special tokens that may be added to a text.
"""

MAX_STRING, MAX_VALUES = 20_000, 5_000
"""Maximum number of characters of any other string, such as a regular expression, and maximum
number of values outside the vocabulary.
"""


def check_json(text: str, source: str) -> None:
    """Check that the content of a tokenizer.json does not exceed the limits.

    Content that is not a valid tokenizer is accepted here, because the library later reports what
    is wrong.

    Raises:
        TokenizerError: If the library would need too much memory or time for a string or number.
    """
    try:
        spec = msgspec.json.decode(text)
        parts = {**spec}
        model = {**(parts.pop("model", None) or {})}
        vocab, merges = model.pop("vocab", None) or [], model.pop("merges", None) or []
        added = [token["content"] for token in parts.pop("added_tokens", None) or []]
        longest = max(
            map(len, vocab if isinstance(vocab, dict) else map(itemgetter(0), vocab)), default=0
        )
        pairs = merges if not merges or isinstance(merges[0], str) else chain.from_iterable(merges)
        longest = max(longest, max(map(len, pairs), default=0) // 2)
    except (msgspec.DecodeError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return
    _check(source, "characters of a token", longest, MAX_TOKEN)
    check_added(added, source)
    _check(source, "max_input_chars_per_word", model.get("max_input_chars_per_word"), MAX_TOKEN)
    values = list(_values([model, parts]))
    _check(source, "values outside the vocabulary", len(values), MAX_VALUES)
    strings = [(key, value) for key, value in values if isinstance(value, str)]
    for key, value in strings:
        if key == "precompiled_charsmap":
            check_charsmap(_decoded(value), source)
        else:
            _check(source, f"characters of {key}", len(value), MAX_STRING)
    for part in ("normalizer", "decoder"):
        _check(source, f"growth of a text in the {part}", _growth(parts.get(part)), MAX_GROWTH)
    num_special = sum(key in ("ids", "tokens") for key, _ in values)
    _check(source, "special tokens of a text", num_special, MAX_GROWTH)


def check_tokens(tokens: Iterable[str], source: str) -> None:
    """Raise TokenizerError if a token of a vocabulary is too long."""
    _check(source, "characters of a token", max(map(len, tokens), default=0), MAX_TOKEN)


def check_added(tokens: Iterable[str], source: str) -> None:
    """Raise TokenizerError if one added token, or all added tokens together, are too long."""
    lengths = [len(token) for token in tokens if isinstance(token, str)]
    _check(source, "characters of an added token", max(lengths, default=0), MAX_TOKEN)
    _check(source, "characters of all added tokens", sum(lengths), MAX_ADDED)


def check_charsmap(content: bytes, source: str) -> None:
    """Check the normalization table of SentencePiece.

    The table contains the size of a trie in bytes, the trie, and strings that end with a zero byte.

    Raises:
        TokenizerError: If the table replaces a character by a string that is too long.
    """
    strings = content[4 + int.from_bytes(content[:4], "little") :]
    longest = max(map(len, strings.split(b"\0")), default=0)
    _check(source, "bytes of a string in precompiled_charsmap", longest, MAX_GROWTH)


def _check(source: str, quantity: str, value: object, limit: int) -> None:
    if isinstance(value, int | float) and value > limit:
        raise TokenizerError(
            f"{source}: {quantity}: {value:,}, but the limit is {limit:,}; download the file again"
        )


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value)
    except binascii.Error:
        return b""


def _values(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield all values of a JSON document that are not objects or lists, with the nearest key."""
    waiting = [("", content)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += ((key, item) for item in value)
        else:
            yield key, value


def _growth(part: Any) -> int:
    """Return the maximum number of characters by which a normalizer or decoder replaces one.

    If a step can apply to text that an earlier step inserted, the growths of both are multiplied.
    """
    growth, inserted = 1, ""
    for step in _flat_steps(part):
        content = str(step.get("content") or step.get("prepend") or "")
        pattern = step.get("pattern")
        searched = pattern.get("String") if isinstance(pattern, dict) else None
        if step.get("type") == "Prepend":
            growth += len(content)
        elif step.get("type") == "Replace" and searched:
            growth = growth * len(content) if searched in inserted else max(growth, len(content))
        elif step.get("type") == "Replace" and content:
            growth *= len(content) + _matches_nothing(pattern)
        inserted += f"{content} "
    return growth


def _flat_steps(part: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(part, dict):
        return
    steps = part.get("normalizers") or part.get("decoders")
    if isinstance(steps, list):
        for step in steps:
            yield from _flat_steps(step)
    else:
        yield part


def _matches_nothing(pattern: Any) -> bool:
    """Return whether a regular expression matches the empty string."""
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    if not isinstance(expression, str):
        return True
    return normalizers.Replace(Regex(expression), "aa").normalize_str("") != ""
