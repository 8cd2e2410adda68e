"""Text to token ids, over the `tokenizers` library, with offsets into the raw text.

A `Tokenizer` never changes once built: limits, overlaps and pairs are arguments of each call,
so threads and calls with different limits do not disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from bertkit.errors import DataError, TokenizerError
from bertkit.storage import write_text
from bertkit.text.folder import (
    MOST_PIECES,
    SETTINGS,
    find_specials,
    is_special,
    normalizer_settings,
    open_tokenizer,
    required,
    usable,
    usual_class,
)

Text = str | Sequence[str]
"""A raw string, or its words already split."""

Truncate = Literal["error", "longest", "first", "second"]

NO_LIMIT = 10**9
"""`transformers` writes 1e30 for a tokenizer without a limit."""


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

    def only(self, kept: NDArray[np.intp], *, truncated: bool = True) -> Encoding:
        """The tokens at these places, in this order."""
        places = kept.tolist()
        return Encoding(
            self.ids[kept],
            self.types[kept],
            self.offsets[kept],
            [self.words[place] for place in places],
            [self.sequence[place] for place in places],
            truncated,
        )


class Tokenizer:
    """A vocabulary with its normalization: text to ids, and ids to text.

    It need not have all special tokens; one that it lacks is missed when it is used.
    """

    def __init__(
        self, core: tokenizers.Tokenizer, settings: Mapping[str, Any], source: str = "tokenizer"
    ) -> None:
        """Takes over `core` (limits and padding baked into it are removed).

        `settings` are keys of tokenizer_config.json; `source` is named in error messages.
        """
        core.no_truncation()
        core.no_padding()
        self.core = core
        """The `tokenizers` object; nothing here changes it after construction."""
        self.source = source
        self._settings = {key: settings[key] for key in SETTINGS if key in settings}
        self._specials = find_specials(core, settings, source)
        core.add_special_tokens([t for t in self._specials.values() if not is_special(core, t)])
        pieces = core.get_vocab()
        self._vocab_size = max(pieces.values()) + 1
        framed = max((*core.encode("").ids, *core.encode("", "").ids), default=0)
        if framed >= self._vocab_size or self._vocab_size > MOST_PIECES:
            raise TokenizerError(
                f"{source}: ids up to {max(framed, self._vocab_size - 1)}, of {len(pieces)} "
                "pieces; fetch it again"
            )

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Read a Hugging Face folder, its tokenizer.json, or a Google vocab.txt.

        A folder gives tokenizer.json if it has one, else vocab.txt, else vocab.json with
        merges.txt. Where tokenizer_config.json names lower-casing, accents or Chinese characters,
        it wins over tokenizer.json, as in `transformers`. Where nothing names lower-casing, a
        vocab.txt is taken as cased if any piece but the `[...]` ones has a capital: an uncased
        vocabulary cannot hold one.
        Raises: TokenizerError naming the file, if it is missing or damaged, or lacks a token that
        it names, or that frames a text.
        """
        with usable(str(path)):
            core, settings, source = open_tokenizer(Path(path))
            return Tokenizer(core, settings, str(source))

    def remade(self, core: tokenizers.Tokenizer) -> Tokenizer:
        """The same settings and special tokens over another `core`, which is taken over."""
        roles = {f"{role}_token": token for role, token in self._specials.items()}
        return Tokenizer(core, {**self._settings, **roles}, self.source)

    def save(self, folder: str | Path, *, segments: bool = True) -> None:
        """Write tokenizer.json, tokenizer_config.json and, for WordPiece, vocab.txt.

        `transformers` opens the folder and gives the same ids; without `segments` it gives no
        segment of each token, for a model that knows none. Each file is replaced whole.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "tokenizer.json", self.core.to_str())
        if isinstance(self.core.model, models.WordPiece):
            lines = (self.core.id_to_token(i) or f"[hole{i}]" for i in range(self.vocab_size))
            write_text(folder / "vocab.txt", "".join(piece + "\n" for piece in lines))
        config = {**self._settings, **normalizer_settings(self.core)}
        config.setdefault("tokenizer_class", usual_class(self.core))
        config |= {f"{role}_token": token for role, token in self._specials.items()}
        if not segments:
            config["model_input_names"] = ["input_ids", "attention_mask"]
        write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2, sort_keys=True))

    @property
    def vocab_size(self) -> int:
        """Rows an embedding needs: the largest id, plus one."""
        return self._vocab_size

    @cached_property
    def segments(self) -> int:
        """How many segments it numbers: two where a pair's texts are told apart."""
        frame = self.core.post_processor
        said = "" if frame is None else frame.__getstate__().decode()  # as JSON
        return 1 + max(map(int, re.findall(r'"type_id": ?(\d+)', said)), default=0)

    @property
    def pad(self) -> int:
        """Raises: TokenizerError if the vocabulary has no such token, as do all that follow."""
        return self._id("pad")

    @property
    def unk(self) -> int:
        return self._id("unk")

    @property
    def cls(self) -> int:
        return self._id("cls")

    @property
    def sep(self) -> int:
        return self._id("sep")

    @property
    def mask(self) -> int:
        return self._id("mask")

    @property
    def bos(self) -> int:
        """What a text begins with, where a model writes it."""
        return self._id("bos")

    @property
    def eos(self) -> int:
        """What ends a text that a model reads or writes."""
        return self._id("eos")

    def need(self, *roles: str) -> None:
        """Raises: TokenizerError for the first role that the vocabulary has no token for."""
        for role in roles:
            required(self._specials, role, self.source)

    def _id(self, role: str) -> int:
        token = required(self._specials, role, self.source)
        return int(self.core.token_to_id(token))  # type: ignore[arg-type]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no text: those of roles, and whatever else is marked special."""
        marked = self.core.get_added_tokens_decoder().items()
        return frozenset(i for i, token in marked if token.special) | {
            self._id(role) for role in self._specials
        }

    @property
    def max_length(self) -> int | None:
        """The most tokens a sequence may have, specials included, if the folder says so."""
        limit = self._settings.get("model_max_length")
        return int(limit) if limit is not None and limit < NO_LIMIT else None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides ids: equal for two copies of one vocabulary."""
        spec = json.loads(self.core.to_str())
        normalizer = spec["normalizer"] or {}
        if normalizer.get("type") == "BertNormalizer" and normalizer["strip_accents"] is None:
            normalizer["strip_accents"] = normalizer["lowercase"]
        template = [self.core.encode("", pair) for pair in (None, "")]
        canon = {
            "model": spec["model"],
            "normalizer": normalizer,
            "pre_tokenizer": spec["pre_tokenizer"],
            "added": sorted((t["id"], t["content"], t["special"]) for t in spec["added_tokens"]),
            # bos and eos are left out: they decide no ids, and older fingerprints had none
            "specials": {r: t for r, t in self._specials.items() if r not in ("bos", "eos")},
            "template": [[e.ids, e.type_ids] for e in template],
        }
        text = json.dumps(_without_defaults(canon), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def starts_word(self) -> NDArray[np.bool_]:
        """For each id, whether it begins a word; special tokens do, so they continue nothing.

        WordPiece continues with its prefix (`##`); byte-level BPE begins with a space (`Ġ`) or
        another white space, Unigram with `▁`. In the latter two, punctuation after a word
        continues it.
        Shapes: (V,). Raises: TokenizerError if the pieces do not show where words begin.
        """
        pieces = [self.core.id_to_token(i) or "" for i in range(self.vocab_size)]
        model = self.core.model
        spec = str(self.core.pre_tokenizer)
        if isinstance(model, models.WordPiece):
            prefix = model.continuing_subword_prefix
            starts = [not piece.startswith(prefix) or piece == prefix for piece in pieces]
        elif "ByteLevel" in spec:
            starts = [piece.startswith(("Ġ", "Ċ", "ĉ", "č")) for piece in pieces]
        elif "Metaspace" in spec:
            starts = [piece.startswith("▁") for piece in pieces]
        else:
            raise TokenizerError(
                f"{self.source}: its pieces do not show where words begin; mask tokens, not words"
            )
        begins = np.array(starts, dtype=np.bool_)
        begins[list(self.special_ids)] = True
        return begins

    def pieces(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> list[str]:
        """The vocabulary's spelling of each id."""
        found = []
        for i in map(int, ids):
            piece = self.core.id_to_token(i) if i >= 0 else None
            if piece is None:
                raise DataError(f"id {i} is not in the vocabulary (0 to {self.vocab_size - 1})")
            found.append(piece)
        return found

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Readable text of these ids, without special tokens."""
        return self.core.decode([int(i) for i in ids])

    def encode(
        self,
        text: Text,
        pair: Text | None = None,
        *,
        max_length: int | None = None,
        truncate: Truncate = "error",
    ) -> Encoding:
        """One text or pair as tokens.

        Special tokens spelled out in the text ("[MASK]") are read as such. A sequence of words
        is taken as already split: `words` then numbers those. It has the pieces of the text in
        which a space stands between any two of them; an empty word has none.
        `max_length` None means the tokenizer's own. `truncate` "longest" takes from the longer
        text until both are equally long, "first" and "second" from that text alone.
        Raises: DataError if the text is longer than `max_length` and `truncate` is "error", or
        the specials and the other text alone fill it; or if a string holds a lone surrogate.
        """
        pairs = None if pair is None else [pair]
        return self.encode_batch([text], pairs, max_length=max_length, truncate=truncate)[0]

    def encode_batch(
        self,
        texts: Sequence[Text],
        pairs: Sequence[Text] | None = None,
        *,
        max_length: int | None = None,
        truncate: Truncate = "error",
        prompts: Sequence[str] | None = None,
    ) -> list[Encoding]:
        """`encode` for many texts, in parallel.

        `prompts` are put before texts that have no pair, one to each. Their tokens are as special
        ones: of no text, and never cut.
        """
        assert pairs is None or prompts is None
        limit = self.max_length if max_length is None else max_length
        if truncate == "second" and pairs is None:
            raise DataError('truncate="second" needs a pair; use "first" for a single text')
        before = prompts or [""] * len(texts)
        found = []
        for i, whole in enumerate(self._whole(texts, pairs, before)):
            if limit is None or len(whole) <= limit:
                found.append(whole)
                continue
            lengths = whole.sequence.count(0), whole.sequence.count(1)
            room = limit - len(whole) + sum(lengths)
            where = f"text {i}: " if len(texts) > 1 else ""
            spans = _shorter(lengths, room, limit, truncate, where)
            found.append(whole.only(_kept(whole.sequence, spans)))
        return found

    def _whole(
        self, texts: Sequence[Text], pairs: Sequence[Text] | None, prompts: Sequence[str]
    ) -> Iterator[Encoding]:
        split = bool(texts) and not isinstance(texts[0], str)
        spaced = split and self._words_lose_their_space
        columns = [texts] if pairs is None else [texts, pairs]
        each = _encode(self.core, _joined(prompts, texts), pairs, spaced=spaced)
        for raw, prompt, *row in zip(each, prompts, *columns, strict=True):
            yield _encoding(raw, len(prompt), row if spaced else None)

    @cached_property
    def _words_lose_their_space(self) -> bool:
        """Whether a word given alone has other pieces than within a text.

        Byte-level BPE writes the space before a word as part of it, and leaves to the text whether
        there is one; Unigram puts one before any word, and WordPiece has none.
        """
        text = self.core.encode("a a", add_special_tokens=False)
        words = self.core.encode(["a", "a"], is_pretokenized=True, add_special_tokens=False)
        return bool(text.ids != words.ids)

    def ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """The ids alone, without adding special tokens: the fast way through a corpus.

        Special tokens spelled out in the text are ordinary text here (as in Google's BERT), so
        that an article about "[MASK]" does not plant one. No limit applies.
        """
        raw = _encode(self._literal, texts, None, plain=True)
        return [np.array(e.ids, dtype=np.int64) for e in raw]

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The same, but finding no special token in a text."""
        spec = json.loads(self.core.to_str())
        if spec["model"]["type"] == "Unigram":  # a lattice finds any piece, at the special's 0.0
            vocab = spec["model"]["vocab"]
            for i in self.special_ids:
                if i >= len(vocab):
                    continue  # added behind the vocabulary: no piece of the lattice
                vocab[i][0] = f" {i}"  # white space is gone before the lattice
            spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["special"]]
        core = tokenizers.Tokenizer.from_str(json.dumps(spec))
        core.encode_special_tokens = True
        return core

    def windows(
        self,
        text: Text,
        pair: Text | None = None,
        *,
        max_length: int,
        overlap: int,
        slide: Literal["first", "second"] = "first",
        prompt: str = "",
    ) -> list[Encoding]:
        """Overlapping windows over a long text, which together hold every token of it.

        `slide` says which of the two is cut into windows; each window has the specials, the prompt
        and the whole of the other text. `truncated` is True where a window lacks part of the text.
        Units: max_length and overlap in tokens.
        Raises: DataError if a window has no room for more than the overlap.
        """
        if slide == "second" and pair is None:
            raise DataError('slide="second" needs a pair; use "first" for a single text')
        if overlap < 0:
            raise DataError(f"overlap is {overlap}; it is a number of tokens, 0 or more")
        whole = next(self._whole([text], None if pair is None else [pair], [prompt]))
        sequence = whole.sequence
        which = 0 if slide == "first" else 1
        length = sequence.count(which)
        room = max_length - len(sequence) + length
        if room <= overlap:
            raise DataError(
                f"no room for windows: of {max_length} tokens, {len(sequence) - length} go to the "
                f"specials, the prompt and the other text, which leaves {max(room, 0)} for an "
                f"overlap of {overlap}; raise max_length, lower the overlap or shorten the others"
            )
        spans = _spans(length, room, overlap)
        if len(spans) == 1:
            return [whole]
        first = sequence.index(which)
        return [
            whole.only(np.r_[:first, first + start : first + end, first + length : len(sequence)])
            for start, end in spans
        ]


# ---- encoding


def _encode(
    core: tokenizers.Tokenizer,
    texts: Sequence[Text],
    pairs: Sequence[Text] | None,
    *,
    spaced: bool = False,
    plain: bool = False,
) -> list[tokenizers.Encoding]:
    """Through Rust, without truncation; `plain` leaves out special tokens and offsets.

    `spaced` puts a space before each word but the first, where words are given.
    """
    if isinstance(texts, str) or isinstance(pairs, str):
        raise DataError("a batch is a sequence of texts, not one string; put it in a list")
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"{len(texts)} texts but {len(pairs)} pairs; give one pair to each text")
    if not texts:
        return []
    split = not isinstance(texts[0], str)
    columns = [_checked(column, split) for column in (texts, pairs) if column is not None]
    given = [list(map(_spaced, column)) for column in columns] if split and spaced else columns
    batch: list[Any] = given[0] if len(given) == 1 else list(zip(*given, strict=True))
    run = core.encode_batch_fast if plain else core.encode_batch
    with usable("the tokenizer"):
        try:
            return run(batch, is_pretokenized=split, add_special_tokens=not plain)
        except TypeError:  # the only strings Rust cannot take are those that are not Unicode text
            for column in columns:
                _refuse_surrogates(column)
            raise


def _joined(prompts: Sequence[str], texts: Sequence[Text]) -> Sequence[Text]:
    """Each text behind its prompt. Raises: DataError for words, which no prompt is put before."""
    if not any(prompts):
        return texts
    if not all(isinstance(text, str) for text in texts):
        raise DataError("a prompt stands before a text; give texts, not words already split")
    return [f"{prompt}{text}" for prompt, text in zip(prompts, texts, strict=True)]


def _sequence(raw: tokenizers.Encoding, prompt: int) -> list[int | None]:
    """The text of each token; None for special tokens, and for those of the prompt."""
    if not prompt:
        return raw.sequence_ids
    owners = zip(raw.sequence_ids, raw.offsets, strict=True)
    return [None if end <= prompt else owner for owner, (_, end) in owners]


def _checked(texts: Sequence[Text], split: bool) -> list[Any]:
    """The same texts as strings, or as lists of words; all must be of one kind."""
    found: list[Any] = []
    for i, text in enumerate(texts):
        words = None if isinstance(text, str) else list(text) if _is_list(text) else [text]
        if (words is not None) != split or not all(isinstance(w, str) for w in words or ()):
            kind = type(text).__name__
            wanted = "a sequence of words, as the first text is" if split else "a string"
            raise DataError(f"text {i} is of type {kind}, not {wanted}; clean the input first")
        found.append(words if split else text)
    return found


def _spaced(words: Sequence[str]) -> list[str]:
    first = _first(words)
    return [" " + word if word and i > first else word for i, word in enumerate(words)]


def _first(words: Sequence[str]) -> int:
    """The place of the first word that is not empty."""
    return next((i for i, word in enumerate(words) if word), len(words))


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


def _shorter(
    lengths: tuple[int, int], room: int, limit: int, truncate: Truncate, where: str
) -> dict[int, tuple[int, int]]:
    """Which tokens of each sequence to keep so that both fill `room`, as `transformers` cuts.

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
        first, second = (long, short) if first > second else (short, long)
        return {0: (0, first), 1: (0, second)}
    which = 0 if truncate == "first" else 1
    if excess >= lengths[which]:
        raise DataError(
            f"{where}cutting {excess} tokens from the {truncate} text, which has "
            f'{lengths[which]}, leaves nothing; use truncate="longest", or raise max_length '
            f"above {limit}"
        )
    return {which: (0, lengths[which] - excess)}


def _spans(length: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """[start, end) of windows of `room` tokens, the last ending where the text does."""
    starts = range(0, max(length - overlap, 1), room - overlap)
    return [(start, min(start + room, length)) for start in starts]


def _kept(sequence: list[int | None], spans: Mapping[int, tuple[int, int]]) -> NDArray[np.intp]:
    """Places of the tokens to keep: those spans, sequences without one, and all specials."""
    owner = np.array([-1 if s is None else s for s in sequence])
    keep = np.ones(len(owner), dtype=np.bool_)
    for which, (start, end) in spans.items():
        places = np.flatnonzero(owner == which)
        keep[places[:start]] = False
        keep[places[end:]] = False
    return np.flatnonzero(keep)


def _encoding(raw: tokenizers.Encoding, prompt: int, spaced: Sequence[Text] | None) -> Encoding:
    """`prompt` is its length; `spaced` are the words, of each sequence, that were given a space:
    neither is part of the text."""
    ids = np.array(raw.ids, dtype=np.int64)
    types = np.array(raw.type_ids, dtype=np.int64)
    offsets = np.array(raw.offsets, dtype=np.int64).reshape(-1, 2)
    words, sequence = raw.word_ids, _sequence(raw, prompt)
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
    return Encoding(ids, types, offsets, words, sequence, False)


def _without_defaults(value: Any) -> Any:
    """Drop what is null or false, so that a newer library's new options change no fingerprint."""
    if isinstance(value, dict):
        kept = {k: _without_defaults(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not None and v is not False}
    return value
