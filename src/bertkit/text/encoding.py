"""Encodings of texts: conversion from the `tokenizers` library, truncation, and windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bertkit.errors import DataError
from bertkit.text.tokenizer_files import usable

Text = str | Sequence[str]
"""Text, as a string or as a list of words."""

Truncate = Literal["error", "longest", "first", "second"]

Side = Literal["right", "left"]
"""End of a text at which tokens are removed."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """Tokens of one text, or of a pair of texts, including special tokens.

    Attributes:
        ids: Token ids.
        types: Segment of each token.
        offsets: For each token, its range of characters [start, end) in the raw text. If the input
            is a list of words, the range is in the token's word. Special tokens and tokens of a
            prompt have (0, 0).
        words: For each token, the index of its word in the text, starting at 0. The value is None
            for special tokens and tokens of a prompt.
        sequence: For each token, 0 if it belongs to the first text, or 1 if it belongs to the
            second text. The value is None for special tokens and tokens of a prompt.
        truncated: Whether tokens were removed.

    Shapes:
        ids, types: (T,).
        offsets: (T, 2).
    """

    ids: NDArray[np.int64]
    types: NDArray[np.int64]
    offsets: NDArray[np.int64]
    words: list[int | None]
    sequence: list[int | None]
    truncated: bool

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def of_ids(ids: NDArray[np.int64], *, truncated: bool = False) -> Encoding:
        """Create an encoding from ids that do not belong to a text.

        Args:
            ids: Token ids.
            truncated: Whether tokens were removed.
        """
        zeros = np.zeros(len(ids), dtype=np.int64)
        offsets = np.zeros((len(ids), 2), dtype=np.int64)
        no_words: list[int | None] = [None] * len(ids)
        return Encoding(ids, zeros, offsets, no_words, no_words, truncated)

    def behind(self, ids: Sequence[int]) -> Encoding:
        """Return a copy that starts with additional tokens, which do not belong to a text.

        Args:
            ids: Ids of the additional tokens.
        """
        before = len(ids)
        no_words: list[int | None] = [None] * before
        return Encoding(
            np.concatenate([np.array(ids, dtype=np.int64), self.ids]),
            np.pad(self.types, (before, 0)),
            np.pad(self.offsets, ((before, 0), (0, 0))),
            no_words + self.words,
            no_words + self.sequence,
            self.truncated,
        )

    def only(self, kept: NDArray[np.intp], *, truncated: bool = True) -> Encoding:
        """Return a copy that contains only some tokens.

        Args:
            kept: Indices of the tokens to keep, in the order of the copy.
            truncated: Value of `truncated` in the copy.
        """
        indices = kept.tolist()
        return Encoding(
            self.ids[kept],
            self.types[kept],
            self.offsets[kept],
            [self.words[index] for index in indices],
            [self.sequence[index] for index in indices],
            truncated,
        )

    def span(self, part: int) -> slice:
        """Return the range of the tokens that belong to the first text (0) or the second (1)."""
        return _span_in(self.sequence, part)

    def covering(self, start: int, end: int, part: int = 0) -> NDArray[np.int64]:
        """Return the indices of the tokens that overlap with a range of characters in a text.

        Args:
            start: Index of the first character.
            end: Index of the last character, plus 1.
            part: 0 for the first text, 1 for the second text.
        """
        span = self.span(part)
        offsets = self.offsets[span]
        inside = (offsets[:, 0] < end) & (offsets[:, 1] > start)
        indices: NDArray[np.int64] = span.start + np.flatnonzero(inside)
        return indices

    def cut(
        self, kept: Mapping[int, tuple[int, int]], *, truncated: bool | None = None
    ) -> Encoding:
        """Return a copy that contains only some tokens of a text, and all other tokens.

        Args:
            kept: Text (0 or 1) -> the range [start, end) of its tokens to keep. Texts that are not
                listed are kept completely.
            truncated: Value of `truncated` in the copy. Default: whether a token was removed.
        """
        indices = tokens_in(kept, self.sequence)
        lost = len(indices) < len(self) if truncated is None else truncated
        return self.only(indices, truncated=lost)

    def windows(self, part: int, max_length: int, overlap: int) -> list[Encoding]:
        """Split the tokens of one text into overlapping windows.

        Each window also contains the special tokens and the complete other text. Together, the
        windows contain all tokens, so `truncated` does not change. If a single window is
        sufficient, it is the encoding itself.

        Args:
            part: Text to split: 0 for the first text, 1 for the second text.
            max_length: Maximum number of tokens in a window. It must leave space for more than
                `overlap` tokens of the text.
            overlap: Number of tokens that consecutive windows share.
        """
        span = self.span(part)
        length = span.stop - span.start
        spans = strides(length, max_length - len(self) + length, overlap)
        if len(spans) == 1:
            return [self]
        before, after = np.arange(span.start), np.arange(span.stop, len(self))
        return [
            self.only(
                np.concatenate([before, np.arange(span.start + start, span.start + end), after]),
                truncated=self.truncated,
            )
            for start, end in spans
        ]


def _span_in(sequence: Sequence[int | None], part: int) -> slice:
    count = sequence.count(part)
    start = sequence.index(part) if count else 0
    return slice(start, start + count)


def tokens_in(
    kept: Mapping[int, tuple[int, int]], sequence: Sequence[int | None]
) -> NDArray[np.intp]:
    """Return the indices of the tokens that remain if only some tokens of a text are kept.

    `kept` has the range [start, end) to keep of each text. Special tokens and texts that are not
    listed are kept completely.
    """
    keep = np.ones(len(sequence), dtype=np.bool_)
    for part, (start, end) in kept.items():
        span = _span_in(sequence, part)
        keep[span.start : span.start + start] = False
        keep[span.start + end : span.stop] = False
    return np.flatnonzero(keep)


def strides(length: int, capacity: int, overlap: int) -> list[tuple[int, int]]:
    """Return the ranges [start, end) of windows of up to `capacity` tokens over `length` tokens."""
    starts = range(0, max(length - overlap, 1), capacity - overlap)
    return [(start, min(start + capacity, length)) for start in starts]


def word_windows(encoding: Encoding, length: int) -> Iterator[tuple[Encoding, NDArray[np.int64]]]:
    """Yield windows of a text, and the positions of the words that belong to each window.

    The position of a word is the position of its first token. Windows overlap by a quarter of
    `length`, but each word belongs to only one window. This is the window with the most context on
    the side of the word that has less context, or the earlier window if two windows are equal (as
    the max context in run_squad.py of Google's BERT). The window contains all tokens of the word,
    unless the word has more tokens than the overlap. Windows without words are skipped.

    Args:
        encoding: The tokens of a text.
        length: Maximum number of tokens in a window.

    Raises:
        DataError: If `length` leaves no space for the overlap.
    """
    words = np.array([-1 if word is None else word for word in encoding.words])
    first = np.flatnonzero((words >= 0) & (np.diff(words, prepend=-1) != 0))
    if len(encoding) <= length:
        yield encoding, first
        return
    span = encoding.span(0)
    size = span.stop - span.start
    overlap, capacity = length // 4, length - (len(encoding) - size)
    if capacity <= overlap:
        raise DataError(
            f"length = {length} is too short: {capacity} tokens remain after special tokens, and "
            f"windows overlap by {overlap}; increase length"
        )
    starts = span.start + np.array([start for start, _ in strides(size, capacity, overlap)])
    window_ids = np.minimum((first - span.start) // (capacity - overlap), len(starts) - 1)
    last = np.append(first[1:], span.stop) - 1
    shown_before, shown_after = first - starts[window_ids], starts[window_ids] + overlap - 1 - last
    window_ids -= (window_ids > 0) & (shown_before <= shown_after)
    bounds = np.searchsorted(window_ids, np.arange(len(starts) + 1))
    for number, window in enumerate(encoding.windows(0, length, overlap)):
        heads = first[bounds[number] : bounds[number + 1]]
        if len(heads):
            yield window, heads - starts[number] + span.start


# ---- Conversion of texts to tokens


def encode_raw(
    core: tokenizers.Tokenizer,
    texts: Sequence[Text],
    pairs: Sequence[Text] | None,
    *,
    spaced: bool = False,
    plain: bool = False,
    named: bool = False,
) -> list[tokenizers.Encoding]:
    """Encode texts with the `tokenizers` library, without truncation.

    Args:
        core: The tokenizer of the library.
        texts: The texts, as strings or as lists of words.
        pairs: The second texts, if the inputs are pairs.
        spaced: Whether to add a space before each word except the first one, if the texts are lists
            of words.
        plain: Whether to omit special tokens, offsets, and token strings, which is faster.
        named: Whether to include token strings even if `plain` is true.

    Raises:
        DataError: If the input has an invalid type or length, or contains a lone surrogate.
    """
    if isinstance(texts, str) or isinstance(pairs, str):
        raise DataError("expected a sequence of texts, got a string; pass a list")
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"{len(texts)} texts but {len(pairs)} pairs; pass one pair for each text")
    if len(texts) == 0:
        return []
    split = is_words(texts[0])
    columns = [_checked(column, split) for column in (texts, pairs) if column is not None]
    inputs = [list(map(_spaced, column)) for column in columns] if split and spaced else columns
    batch: list[Any] = inputs[0] if len(inputs) == 1 else list(zip(*inputs, strict=True))
    run = core.encode_batch_fast if plain and not named else core.encode_batch
    with usable("the tokenizer"):
        try:
            return run(batch, is_pretokenized=split, add_special_tokens=not plain)
        except TypeError:
            # Rust rejects lone surrogates.
            for column in columns:
                _check_surrogates(column)
            raise


def words_lose_their_space(core: tokenizers.Tokenizer) -> bool:
    """Return whether a word has different tokens in a list of words than in a string.

    In byte-level BPE, the space before a word is part of the word's first token, but a list of
    words contains no spaces. Unigram always adds a space before a word, and WordPiece never does.
    """
    text = core.encode("a a", add_special_tokens=False)
    words = core.encode(["a", "a"], is_pretokenized=True, add_special_tokens=False)
    return bool(text.ids != words.ids)


def with_prompts(prompts: Sequence[str], texts: Sequence[Text]) -> Sequence[Text]:
    """Return the texts with their prompts prepended.

    Raises:
        DataError: If a text with a prompt is a list of words.
    """
    if not any(prompts):
        return texts
    if not all(isinstance(text, str) for text in texts):
        raise DataError("a prompt requires texts as strings, got lists of words; join the words")
    return [f"{prompt}{text}" for prompt, text in zip(prompts, texts, strict=True)]


def _checked(texts: Sequence[Text], split: bool) -> list[Any]:
    """Return the texts as strings or as lists of words, and check that all have the same type."""
    checked: list[Any] = []
    for i, text in enumerate(texts):
        words = None if isinstance(text, str) else list(text) if _is_list(text) else [text]
        if (words is not None) != split or not all(isinstance(w, str) for w in words or ()):
            kind = type(text).__name__
            expected = "a sequence of words, like the first text" if split else "a string"
            raise DataError(f"text {i}: expected {expected}, got {kind}; convert the text")
        checked.append(words if split else text)
    return checked


def _spaced(words: Sequence[str]) -> list[str]:
    first = _first(words)
    return [" " + word if word and i > first else word for i, word in enumerate(words)]


def _first(words: Sequence[str]) -> int:
    """Return the index of the first word that is not empty."""
    return next((i for i, word in enumerate(words) if word), len(words))


def is_words(text: object) -> bool:
    """Return whether a text is a list of words."""
    return not isinstance(text, str) and _is_list(text)


def _is_list(text: object) -> bool:
    return isinstance(text, Sequence | np.ndarray)


def _check_surrogates(texts: Sequence[Text]) -> None:
    for i, text in enumerate(texts):
        for part in [text] if isinstance(text, str) else text:
            try:
                part.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"text {i}, character {error.start}: lone surrogate "
                    f"(U+{ord(part[error.start]):04X}); read the file as UTF-8, or use "
                    'text.encode("utf-8", "replace").decode()'
                ) from None


def spans_to_keep(
    lengths: tuple[int, int], size: int, limit: int, truncate: Truncate, side: Side, location: str
) -> dict[int, tuple[int, int]]:
    """Return the range [start, end) of the tokens to keep of each text, as in `transformers`.

    Source: tokenizers, `truncate_encodings`. "longest" truncates the longer text until both texts
    are equally long. If `size` is odd, the longer text keeps one token more.

    Args:
        lengths: Number of tokens of the first text and of the second text.
        size: Number of tokens to keep in total.
        limit: Maximum number of tokens, including special tokens, for error messages.
        truncate: Text to truncate, or "error".
        side: End of a text at which tokens are removed.
        location: Prefix of error messages.

    Raises:
        DataError: If truncation is not allowed or not possible.
    """
    first, second = lengths
    excess = first + second - size
    if truncate == "error":
        raise DataError(
            f"{location}{limit + excess} tokens, but the limit is {limit}; set truncate="
            '"longest", use windows(), or increase max_length up to the limit of the model'
        )
    if size < 0:
        raise DataError(
            f"{location}max_length must be at least {limit - size} because of the special "
            f"tokens, got {limit}"
        )
    if truncate == "longest":
        short, long = sorted(lengths)
        if second:
            short, long = (short, size - short) if 2 * short <= size else (size // 2, -(-size // 2))
        else:
            long = size
        kept = (long, short) if first > second else (short, long)
        return {part: _span(lengths[part], kept[part], side) for part in (0, 1)}
    part = 0 if truncate == "first" else 1
    if excess >= lengths[part]:
        raise DataError(
            f"{location}removing {excess} tokens from the {truncate} text, which has "
            f'{lengths[part]}, leaves none; use truncate="longest", or increase max_length '
            f"above {limit}"
        )
    return {part: _span(lengths[part], lengths[part] - excess, side)}


def _span(length: int, kept: int, side: Side) -> tuple[int, int]:
    """Return the range [start, end) of the tokens to keep. `kept` may exceed `length`."""
    kept = min(kept, length)
    return (0, kept) if side == "right" else (length - kept, length)


def from_raw(
    raw: tokenizers.Encoding,
    prompt: int,
    spaced: Sequence[Text] | None,
    kept: NDArray[np.intp] | None = None,
) -> Encoding:
    """Convert an encoding of the `tokenizers` library.

    Args:
        raw: The encoding.
        prompt: Number of characters of the prompt, which was prepended to the text.
        spaced: The words of each text, if a space was added before each word except the first one.
            The added spaces are not part of the text.
        kept: Indices of the tokens that truncation keeps. If possible, only these tokens are
            converted, because converting all tokens of a long text is slow.
    """
    if kept is not None and not prompt and spaced is None:
        return _select_tokens(raw, kept.tolist())
    ids = np.array(raw.ids, dtype=np.int64)
    types = np.array(raw.type_ids, dtype=np.int64)
    offsets = np.array(raw.offsets, dtype=np.int64).reshape(-1, 2)
    words, sequence = raw.word_ids, sequence_of(raw, prompt)
    if prompt:
        offsets = np.maximum(offsets - prompt, 0)
        words = [None if s is None else w for s, w in zip(sequence, words, strict=True)]
        before = min((word for word in words if word is not None), default=0)
        words = [None if word is None else word - before for word in words]
    if spaced is not None:
        first = [_first(text) for text in spaced]
        later = [
            w is not None and s is not None and w > first[s]
            for w, s in zip(words, sequence, strict=True)
        ]
        offsets[later] = np.maximum(offsets[later] - 1, 0)
    encoding = Encoding(ids, types, offsets, words, sequence, False)
    return encoding if kept is None else encoding.only(kept)


def _select_tokens(raw: tokenizers.Encoding, kept: Sequence[int]) -> Encoding:
    ids, types = raw.ids, raw.type_ids
    # Special tokens have no offsets.
    offsets = [raw.token_to_chars(i) or (0, 0) for i in kept]
    return Encoding(
        np.array([ids[i] for i in kept], dtype=np.int64),
        np.array([types[i] for i in kept], dtype=np.int64),
        np.array(offsets, dtype=np.int64).reshape(-1, 2),
        [raw.token_to_word(i) for i in kept],
        [raw.token_to_sequence(i) for i in kept],
        True,
    )


def sequence_of(raw: tokenizers.Encoding, prompt: int) -> list[int | None]:
    """Return the text (0 or 1) of each token, or None for special tokens and tokens of prompts."""
    if not prompt:
        return raw.sequence_ids
    owners = zip(raw.sequence_ids, raw.offsets, strict=True)
    return [None if end <= prompt else owner for owner, (_, end) in owners]
