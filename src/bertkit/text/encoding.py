"""The tokens of a text: how the `tokenizers` library makes them, their cuts and their windows."""

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
"""A raw string, or its words already split."""

Truncate = Literal["error", "longest", "first", "second"]

Side = Literal["right", "left"]
"""The end of a text from which tokens are removed."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """The tokens of one text or pair, special tokens included.

    Shapes: ids (T,), types (T,) segment of each token, offsets (T, 2).
    Units: offsets are [start, end) characters of the raw text; for words already split, of the
    word that `words` names. Added special tokens have offsets (0, 0), word None, sequence None, and
    so have those of a prompt.
    `words` numbers the words of each sequence from 0; `sequence` says 0 for text, 1 for pair.
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
        """Tokens that were written as ids: of no text."""
        none = np.zeros(len(ids), dtype=np.int64)
        offsets = np.zeros((len(ids), 2), dtype=np.int64)
        nothing: list[int | None] = [None] * len(ids)
        return Encoding(ids, none, offsets, nothing, nothing, truncated)

    def behind(self, ids: Sequence[int]) -> Encoding:
        """The same behind tokens that are of no text."""
        before = len(ids)
        none: list[int | None] = [None] * before
        return Encoding(
            np.concatenate([np.array(ids, dtype=np.int64), self.ids]),
            np.pad(self.types, (before, 0)),
            np.pad(self.offsets, ((before, 0), (0, 0))),
            none + self.words,
            none + self.sequence,
            self.truncated,
        )

    def only(self, kept: NDArray[np.intp], *, truncated: bool = True) -> Encoding:
        """The tokens at these indices, in this order."""
        indices = kept.tolist()
        return Encoding(
            self.ids[kept],
            self.types[kept],
            self.offsets[kept],
            [self.words[index] for index in indices],
            [self.sequence[index] for index in indices],
            truncated,
        )

    def span(self, which: int) -> slice:
        """The indices of the text's tokens (0), or of the pair's (1): they stand together."""
        return _span_in(self.sequence, which)

    def covering(self, start: int, end: int, which: int = 0) -> NDArray[np.int64]:
        """The indices of the tokens that hold any of the characters [start, end) of a text."""
        span = self.span(which)
        offsets = self.offsets[span]
        inside = (offsets[:, 0] < end) & (offsets[:, 1] > start)
        indices: NDArray[np.int64] = span.start + np.flatnonzero(inside)
        return indices

    def cut(
        self, kept: Mapping[int, tuple[int, int]], *, truncated: bool | None = None
    ) -> Encoding:
        """Only the tokens [start, end) of some texts; special tokens and other texts are whole.

        `truncated` None says whether any token was left out.
        """
        indices = tokens_in(kept, self.sequence)
        lost = len(indices) < len(self) if truncated is None else truncated
        return self.only(indices, truncated=lost)

    def windows(self, which: int, max_length: int, overlap: int) -> list[Encoding]:
        """Windows over one text's tokens; each has the special tokens and the other text.

        Together they hold every token, so that none is `truncated` unless the encoding is. One that
        holds everything is the encoding itself. Units: max_length and overlap in tokens; there must
        be room for more than the overlap.
        """
        span = self.span(which)
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


def _span_in(sequence: Sequence[int | None], which: int) -> slice:
    count = sequence.count(which)
    start = sequence.index(which) if count else 0
    return slice(start, start + count)


def tokens_in(
    kept: Mapping[int, tuple[int, int]], sequence: Sequence[int | None]
) -> NDArray[np.intp]:
    """Return the indices of the tokens [start, end) of some texts, and of all other tokens."""
    keep = np.ones(len(sequence), dtype=np.bool_)
    for which, (start, end) in kept.items():
        span = _span_in(sequence, which)
        keep[span.start : span.start + start] = False
        keep[span.start + end : span.stop] = False
    return np.flatnonzero(keep)


def strides(length: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """[start, end) of windows of `room` tokens, the last ending where the text does."""
    starts = range(0, max(length - overlap, 1), room - overlap)
    return [(start, min(start + room, length)) for start in starts]


def word_windows(encoding: Encoding, length: int) -> Iterator[tuple[Encoding, NDArray[np.int64]]]:
    """Windows of at most `length` tokens, and where the words that belong to each begin.

    They overlap by a quarter of the length. A word belongs to one window, in which its first
    piece stands: to the one that shows more on the side where it shows less, the earlier of
    equals (max context, in run_squad.py of Google's BERT); so it is whole there unless it has
    more pieces than the overlap. Windows to which no word belongs are left out.
    Raises: DataError for a length that leaves no room for an overlap.
    """
    words = np.array([-1 if word is None else word for word in encoding.words])
    first = np.flatnonzero((words >= 0) & (np.diff(words, prepend=-1) != 0))
    if len(encoding) <= length:
        yield encoding, first
        return
    span = encoding.span(0)
    size = span.stop - span.start
    overlap, room = length // 4, length - (len(encoding) - size)
    if room <= overlap:
        raise DataError(
            f"length: of {length} tokens {room} are left for words, and windows overlap by "
            f"{overlap}; read longer sequences"
        )
    starts = span.start + np.array([start for start, _ in strides(size, room, overlap)])
    owner = np.minimum((first - span.start) // (room - overlap), len(starts) - 1)
    last = np.append(first[1:], span.stop) - 1
    shown_before, shown_after = first - starts[owner], starts[owner] + overlap - 1 - last
    owner -= (owner > 0) & (shown_before <= shown_after)
    bounds = np.searchsorted(owner, np.arange(len(starts) + 1))
    for number, window in enumerate(encoding.windows(0, length, overlap)):
        heads = first[bounds[number] : bounds[number + 1]]
        if len(heads):
            yield window, heads - starts[number] + span.start


# ---- from texts to tokens


def encode_raw(
    core: tokenizers.Tokenizer,
    texts: Sequence[Text],
    pairs: Sequence[Text] | None,
    *,
    spaced: bool = False,
    plain: bool = False,
    named: bool = False,
) -> list[tokenizers.Encoding]:
    """Through Rust, without truncation.

    `spaced` puts a space before each word but the first, where words are given. `plain` leaves out
    special tokens and offsets, which is faster; and the text of pieces, unless they are `named`.
    """
    if isinstance(texts, str) or isinstance(pairs, str):
        raise DataError("a batch is a sequence of texts, not one string; put it in a list")
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"{len(texts)} texts but {len(pairs)} pairs; give one pair to each text")
    if len(texts) == 0:  # an array has no truth
        return []
    split = is_words(texts[0])
    columns = [_checked(column, split) for column in (texts, pairs) if column is not None]
    given = [list(map(_spaced, column)) for column in columns] if split and spaced else columns
    batch: list[Any] = given[0] if len(given) == 1 else list(zip(*given, strict=True))
    run = core.encode_batch_fast if plain and not named else core.encode_batch
    with usable("the tokenizer"):
        try:
            return run(batch, is_pretokenized=split, add_special_tokens=not plain)
        except TypeError:  # the only strings Rust cannot take are those that are not Unicode text
            for column in columns:
                _refuse_surrogates(column)
            raise


def words_lose_their_space(core: tokenizers.Tokenizer) -> bool:
    """Whether a word given alone has other pieces than within a text.

    Byte-level BPE writes the space before a word as part of it, and leaves to the text whether
    there is one; Unigram puts one before any word, and WordPiece has none.
    """
    text = core.encode("a a", add_special_tokens=False)
    words = core.encode(["a", "a"], is_pretokenized=True, add_special_tokens=False)
    return bool(text.ids != words.ids)


def with_prompts(prompts: Sequence[str], texts: Sequence[Text]) -> Sequence[Text]:
    """Each text behind its prompt. Raises: DataError for words, which no prompt is put before."""
    if not any(prompts):
        return texts
    if not all(isinstance(text, str) for text in texts):
        raise DataError("a prompt stands before a text; give texts, not words already split")
    return [f"{prompt}{text}" for prompt, text in zip(prompts, texts, strict=True)]


def _checked(texts: Sequence[Text], split: bool) -> list[Any]:
    """The same texts as strings, or as lists of words; all must be of one kind."""
    checked: list[Any] = []
    for i, text in enumerate(texts):
        words = None if isinstance(text, str) else list(text) if _is_list(text) else [text]
        if (words is not None) != split or not all(isinstance(w, str) for w in words or ()):
            kind = type(text).__name__
            wanted = "a sequence of words, as the first text is" if split else "a string"
            raise DataError(f"text {i} is of type {kind}, not {wanted}; clean the input first")
        checked.append(words if split else text)
    return checked


def _spaced(words: Sequence[str]) -> list[str]:
    first = _first(words)
    return [" " + word if word and i > first else word for i, word in enumerate(words)]


def _first(words: Sequence[str]) -> int:
    """The place of the first word that is not empty."""
    return next((i for i, word in enumerate(words) if word), len(words))


def is_words(text: object) -> bool:
    """Whether a text is given as its words."""
    return not isinstance(text, str) and _is_list(text)


def _is_list(text: object) -> bool:
    return isinstance(text, Sequence | np.ndarray)


def _refuse_surrogates(texts: Sequence[Text]) -> None:
    for i, text in enumerate(texts):
        for part in [text] if isinstance(text, str) else text:
            try:
                part.encode()
            except UnicodeEncodeError as error:
                raise DataError(
                    f"text {i}, character {error.start}: half of a surrogate pair "
                    f"(U+{ord(part[error.start]):04X}) is not text; read the file as UTF-8, or "
                    'clean it with text.encode("utf-8", "replace").decode()'
                ) from None


def spans_to_keep(
    lengths: tuple[int, int], room: int, limit: int, truncate: Truncate, side: Side, where: str
) -> dict[int, tuple[int, int]]:
    """Return the tokens of each sequence to keep so that both fill `room`, as in `transformers`.

    Source: tokenizers, `truncate_encodings`; longest-first levels the two down to equal length,
    the odd token going to the longer one.
    """
    first, second = lengths
    excess = first + second - room
    if truncate == "error":
        raise DataError(
            f"{where}{limit + excess} tokens, but the limit is {limit}; cut it with truncate="
            '"longest", split it with windows(), or raise max_length as far as the model goes'
        )
    if room < 0:
        raise DataError(
            f"{where}max_length {limit} is less than the special tokens need; "
            f"it must be {limit - room} or more"
        )
    if truncate == "longest":
        short, long = sorted(lengths)
        if second:
            short, long = (short, room - short) if 2 * short <= room else (room // 2, -(-room // 2))
        else:
            long = room
        kept = (long, short) if first > second else (short, long)
        return {which: _span(lengths[which], kept[which], side) for which in (0, 1)}
    which = 0 if truncate == "first" else 1
    if excess >= lengths[which]:
        raise DataError(
            f"{where}cutting {excess} tokens from the {truncate} text, which has "
            f'{lengths[which]}, leaves nothing; use truncate="longest", or raise max_length '
            f"above {limit}"
        )
    return {which: _span(lengths[which], lengths[which] - excess, side)}


def _span(length: int, kept: int, side: Side) -> tuple[int, int]:
    """Return [start, end) of the tokens to keep; `kept` may exceed the length."""
    kept = min(kept, length)
    return (0, kept) if side == "right" else (length - kept, length)


def from_raw(
    raw: tokenizers.Encoding,
    prompt: int,
    spaced: Sequence[Text] | None,
    kept: NDArray[np.intp] | None = None,
) -> Encoding:
    """Convert the tokens of the library.

    `prompt` is its length; `spaced` are the words, of each sequence, that were given a space:
    neither is part of the text. `kept` are the indices of the tokens that truncation keeps; only
    these are converted if possible, because converting all tokens of a long text is slow.
    """
    if kept is not None and not prompt and spaced is None:
        return _kept_of(raw, kept.tolist())
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
        first = [_first(each) for each in spaced]
        later = [
            w is not None and s is not None and w > first[s]
            for w, s in zip(words, sequence, strict=True)
        ]
        offsets[later] = np.maximum(offsets[later] - 1, 0)
    encoding = Encoding(ids, types, offsets, words, sequence, False)
    return encoding if kept is None else encoding.only(kept)


def _kept_of(raw: tokenizers.Encoding, kept: Sequence[int]) -> Encoding:
    ids, types = raw.ids, raw.type_ids
    offsets = [raw.token_to_chars(i) or (0, 0) for i in kept]  # none of a special token
    return Encoding(
        np.array([ids[i] for i in kept], dtype=np.int64),
        np.array([types[i] for i in kept], dtype=np.int64),
        np.array(offsets, dtype=np.int64).reshape(-1, 2),
        [raw.token_to_word(i) for i in kept],
        [raw.token_to_sequence(i) for i in kept],
        True,
    )


def sequence_of(raw: tokenizers.Encoding, prompt: int) -> list[int | None]:
    """Return the text of each token; None for special tokens, and for those of the prompt."""
    if not prompt:
        return raw.sequence_ids
    owners = zip(raw.sequence_ids, raw.offsets, strict=True)
    return [None if end <= prompt else owner for owner, (_, end) in owners]
