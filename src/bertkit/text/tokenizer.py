"""Text to token ids, over the `tokenizers` library, with offsets into the raw text.

A `Tokenizer` never changes once built: limits, overlaps and pairs are arguments of each call,
so threads and calls with different limits do not disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertkit.errors import DataError, TokenizerError

Text = str | Sequence[str]
"""A raw string, or its words already split."""

Truncate = Literal["error", "longest", "first", "second"]

ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
"""The special tokens, and their usual names where a folder does not name them."""

SETTINGS = (
    "tokenizer_class",
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "keep_accents",
    "add_prefix_space",
    "trim_offsets",
    "model_max_length",
)
"""The keys of tokenizer_config.json that are read and kept; code is never taken from one."""

AS_THE_FILE_SAYS = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of `transformers` that take tokenizer.json as it is; others rebuild its normalizer."""

NO_LIMIT = 10**9
"""`transformers` writes 1e30 for a tokenizer without a limit."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """The tokens of one text or pair, special tokens included.

    Shapes: ids (T,), types (T,) segment of each token, offsets (T, 2).
    Units: offsets are [start, end) characters of the raw text; for words already split, of the
    word that `words` names. Added special tokens have offsets (0, 0), word None, sequence None.
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


class Tokenizer:
    """A vocabulary with its normalization: text to ids, and ids to text.

    Raises: TokenizerError if there is no pad, unk, cls or sep token.
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
        self._specials = _find_specials(core, settings, source)
        core.add_special_tokens([t for t in self._specials.values() if not _is_special(core, t)])
        self._vocab_size = max(core.get_vocab().values()) + 1

    @staticmethod
    def load(path: str | Path) -> Tokenizer:
        """Read a Hugging Face folder, its tokenizer.json, or a Google vocab.txt.

        A folder gives tokenizer.json if it has one, else vocab.txt, else vocab.json with
        merges.txt. Where tokenizer_config.json names lower-casing, accents or Chinese characters,
        it wins over tokenizer.json, as in `transformers`. Where nothing names lower-casing, a
        vocab.txt is taken as cased if any piece but the `[...]` ones has a capital: an uncased
        vocabulary cannot hold one.
        Raises: TokenizerError naming the file, if it is missing, damaged, or lacks specials.
        """
        core, settings, source = _open(Path(path))
        return Tokenizer(core, settings, str(source))

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and, for WordPiece, vocab.txt.

        `transformers` opens the folder and gives the same ids. Each file is replaced whole.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "tokenizer.json", self.core.to_str())
        if isinstance(self.core.model, models.WordPiece):
            lines = (self.core.id_to_token(i) or f"[hole{i}]" for i in range(self.vocab_size))
            _write(folder / "vocab.txt", "".join(piece + "\n" for piece in lines))
        config = {**self._settings, **_normalizer_settings(self.core)}
        config.setdefault("tokenizer_class", _usual_class(self.core))
        config |= {f"{role}_token": token for role, token in self._specials.items()}
        _write(folder / "tokenizer_config.json", json.dumps(config, indent=2, sort_keys=True))

    @property
    def vocab_size(self) -> int:
        """Rows an embedding needs: the largest id, plus one."""
        return self._vocab_size

    @property
    def pad(self) -> int:
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
        """Raises: TokenizerError if the vocabulary has no mask token."""
        return self._id("mask")

    def _id(self, role: str) -> int:
        if role not in self._specials:
            raise TokenizerError(_lacks(role, self.source))
        return int(self.core.token_to_id(self._specials[role]))  # type: ignore[arg-type]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that stand for no text: the five roles and whatever else is marked special."""
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
            "specials": self._specials,
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
        is taken as already split: `words` then numbers those.
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
    ) -> list[Encoding]:
        """`encode` for many texts, in parallel."""
        limit = self.max_length if max_length is None else max_length
        if truncate == "second" and pairs is None:
            raise DataError('truncate="second" needs a pair; use "first" for a single text')
        found = []
        for i, raw in enumerate(_encode(self.core, texts, pairs)):
            sequence = raw.sequence_ids
            kept = None
            if limit is not None and len(sequence) > limit:
                lengths = sequence.count(0), sequence.count(1)
                room = limit - len(sequence) + sum(lengths)
                where = f"text {i}: " if len(texts) > 1 else ""
                kept = _kept(sequence, _shorter(lengths, room, limit, truncate, where))
            found.append(_encoding(raw, sequence, kept))
        return found

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
            for i in self.special_ids:
                spec["model"]["vocab"][i][0] = f" {i}"  # white space is gone before the lattice
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
    ) -> list[Encoding]:
        """Overlapping windows over a long text, which together hold every token of it.

        `slide` says which of the two is cut into windows; each window has the specials and the
        whole of the other text. `truncated` is True where a window lacks part of the text.
        Units: max_length and overlap in tokens.
        Raises: DataError if a window has no room for more than the overlap.
        """
        if slide == "second" and pair is None:
            raise DataError('slide="second" needs a pair; use "first" for a single text')
        if overlap < 0:
            raise DataError(f"overlap is {overlap}; it is a number of tokens, 0 or more")
        raw = _encode(self.core, [text], None if pair is None else [pair])[0]
        sequence = raw.sequence_ids
        which = 0 if slide == "first" else 1
        length = sequence.count(which)
        room = max_length - len(sequence) + length
        if room <= overlap:
            raise DataError(
                f"no room for windows: of {max_length} tokens, {len(sequence) - length} go to the "
                f"specials and the other text, which leaves {max(room, 0)} for an overlap of "
                f"{overlap}; raise max_length, lower the overlap or shorten the other text"
            )
        spans = _spans(length, room, overlap)
        if len(spans) == 1:
            return [_encoding(raw, sequence, None)]
        return [_encoding(raw, sequence, _kept(sequence, {which: span})) for span in spans]


# ---- encoding


def _encode(
    core: tokenizers.Tokenizer,
    texts: Sequence[Text],
    pairs: Sequence[Text] | None,
    *,
    plain: bool = False,
) -> list[tokenizers.Encoding]:
    """Through Rust, without truncation; `plain` leaves out special tokens and offsets."""
    if isinstance(texts, str) or isinstance(pairs, str):
        raise DataError("a batch is a sequence of texts, not one string; put it in a list")
    if pairs is not None and len(pairs) != len(texts):
        raise DataError(f"{len(texts)} texts but {len(pairs)} pairs; give one pair to each text")
    if not texts:
        return []
    split = not isinstance(texts[0], str)
    columns = [_checked(column, split) for column in (texts, pairs) if column is not None]
    batch: list[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    run = core.encode_batch_fast if plain else core.encode_batch
    try:
        return run(batch, is_pretokenized=split, add_special_tokens=not plain)
    except TypeError:  # the only strings Rust cannot take are those that are not Unicode text
        for column in columns:
            _refuse_surrogates(column)
        raise


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


def _encoding(
    raw: tokenizers.Encoding, sequence: list[int | None], kept: NDArray[np.intp] | None
) -> Encoding:
    ids = np.array(raw.ids, dtype=np.int64)
    types = np.array(raw.type_ids, dtype=np.int64)
    offsets = np.array(raw.offsets, dtype=np.int64).reshape(-1, 2)
    words = raw.word_ids
    if kept is None:
        return Encoding(ids, types, offsets, words, sequence, False)
    return Encoding(
        ids[kept],
        types[kept],
        offsets[kept],
        [words[i] for i in kept],
        [sequence[i] for i in kept],
        True,
    )


# ---- folders


Opened = tuple[tokenizers.Tokenizer, dict[str, Any], Path]
"""A tokenizer, the settings beside it, and what to name in messages about it."""


def _open(path: Path) -> Opened:
    if not path.exists():
        raise TokenizerError(
            f"{path}: no such file or folder; name a folder with tokenizer.json or vocab.txt"
        )
    if path.is_file():
        return _open_file(path, {})
    settings = _read_settings(path)
    for name in ("tokenizer.json", "vocab.txt"):
        if (path / name).is_file():
            return _open_file(path / name, settings)
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        return _byte_level(path, settings), settings, path
    for sentencepiece in sorted(path.glob("*.model")):
        raise TokenizerError(_not_readable(sentencepiece))
    raise TokenizerError(
        f"{path}: no tokenizer here (neither tokenizer.json nor vocab.txt); copy the model's "
        "tokenizer files into this folder, or name the folder that holds them"
    )


def _open_file(path: Path, settings: dict[str, Any]) -> Opened:
    if path.suffix == ".txt":
        return _word_piece(path, settings), settings, path
    if path.suffix != ".json":
        raise TokenizerError(_not_readable(path))
    text = _read(path)
    try:
        core = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # what tokenizers raises has no class of its own
        raise TokenizerError(
            f"{path}: not a tokenizer that can be read ({error}); fetch or save it again"
        ) from None
    _apply(settings, core, path.parent)
    return core, settings, path


def _not_readable(path: Path) -> str:
    return (
        f"{path}: this kind of file is not read; open its folder once with transformers' "
        "AutoTokenizer, save_pretrained() it, and load the tokenizer.json written there"
    )


def _word_piece(path: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    pieces = _read(path).replace("\r\n", "\n").removesuffix("\n").split("\n")
    vocab: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        if piece in vocab:
            raise TokenizerError(
                f"{path}:{i + 1}: {piece!r} is already on line {vocab[piece] + 1}; rename one of "
                f"them to an unused name such as [unused-{i}], which keeps all other ids"
            )
        vocab[piece] = i
    named = (p for p in pieces if not (p.startswith("[") and p.endswith("]")))
    cased = any(piece != piece.lower() for piece in named)
    unk = _name(settings, "unk") or "[UNK]"
    if unk not in vocab:
        raise TokenizerError(_lacks("unk", str(path)))
    core = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unk))
    core.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    _apply(settings, core, path.parent)
    specials = _find_specials(core, settings, str(path))
    core.post_processor = template(core, specials["cls"], specials["sep"])
    extra = path.with_name("added_tokens.json")  # how older folders extend a vocabulary
    if extra.is_file():
        tokens = sorted(_read_json(extra).items(), key=lambda item: int(item[1]))
        core.add_tokens([token for token, _ in tokens])
        for token, i in tokens:
            if core.token_to_id(token) != i:
                raise TokenizerError(
                    f"{extra}: {token!r} has id {i}, but would get {core.token_to_id(token)}; "
                    "added tokens must follow the vocabulary without holes"
                )
    return core


def template(core: tokenizers.Tokenizer, cls: str, sep: str) -> processors.TemplateProcessing:
    """BERT's frame: [CLS] text [SEP], and pair [SEP] with type 1."""
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, core.token_to_id(token)) for token in (cls, sep)],
    )


def _byte_level(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """RoBERTa's older layout: vocab.json and merges.txt."""
    merges = [
        tuple(line.split(" "))
        for line in _read(folder / "merges.txt").split("\n")
        if line and not line.startswith("#version")
    ]
    vocab = _read_json(folder / "vocab.json")
    try:
        core = tokenizers.Tokenizer(models.BPE(vocab, merges))  # type: ignore[arg-type]
    except Exception as error:
        raise TokenizerError(
            f"{folder}: vocab.json and merges.txt do not fit each other ({error}); "
            "fetch both again from one model"
        ) from None
    prefix = _flag(settings, "add_prefix_space", False, folder)
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    core.decoder = decoders.ByteLevel()
    specials = _find_specials(core, settings, str(folder))
    cls, sep = ((specials[role], core.token_to_id(specials[role])) for role in ("cls", "sep"))
    trim = _flag(settings, "trim_offsets", True, folder)
    core.post_processor = processors.RobertaProcessing(sep, cls, trim, prefix)  # type: ignore[arg-type]
    return core


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path}: not UTF-8 text (byte {error.start}); fetch the file again"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise TokenizerError(f"{path}: damaged JSON ({error}); fetch the file again") from None
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: holds no JSON object; fetch the file again")
    return content


def _read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, its gaps filled from special_tokens_map.json."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= _read_json(folder / name)
    limit = settings.get("model_max_length")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise TokenizerError(
            f"{folder / 'tokenizer_config.json'}: model_max_length is {limit!r}, not a number"
        )
    return settings


def _flag(settings: Mapping[str, Any], key: str, default: Any, folder: Path) -> Any:
    value = settings.get(key, default)
    if not isinstance(value, bool | None):
        raise TokenizerError(
            f"{folder / 'tokenizer_config.json'}: {key} is {value!r}; write true or false"
        )
    return default if value is None and key != "strip_accents" else value


def _apply(settings: Mapping[str, Any], core: tokenizers.Tokenizer, folder: Path) -> None:
    """Let tokenizer_config.json decide about case, accents and Chinese characters.

    Where it is silent tokenizer.json stands; `transformers` 5 would lower-case then, which no
    cased model wants.
    """
    was = core.normalizer
    if not isinstance(was, normalizers.BertNormalizer):
        return
    if str(settings.get("tokenizer_class")) in AS_THE_FILE_SAYS:
        return
    core.normalizer = normalizers.BertNormalizer(
        clean_text=was.clean_text,
        handle_chinese_chars=_flag(
            settings, "tokenize_chinese_chars", was.handle_chinese_chars, folder
        ),
        strip_accents=_flag(settings, "strip_accents", was.strip_accents, folder),
        lowercase=_flag(settings, "do_lower_case", was.lowercase, folder),
    )


def _normalizer_settings(core: tokenizers.Tokenizer) -> dict[str, Any]:
    was = core.normalizer
    if not isinstance(was, normalizers.BertNormalizer):
        return {}
    return {
        "do_lower_case": was.lowercase,
        "strip_accents": was.strip_accents,
        "tokenize_chinese_chars": was.handle_chinese_chars,
    }


def _usual_class(core: tokenizers.Tokenizer) -> str:
    bert = isinstance(core.model, models.WordPiece) and isinstance(
        core.normalizer, normalizers.BertNormalizer
    )
    return "BertTokenizer" if bert else "PreTrainedTokenizerFast"


def _name(settings: Mapping[str, Any], role: str) -> str | None:
    """The token a folder names for a role: a string, or an object with its content."""
    named = settings.get(f"{role}_token")
    if isinstance(named, Mapping):
        named = named.get("content")
    return named if isinstance(named, str) else None


def _find_specials(
    core: tokenizers.Tokenizer, settings: Mapping[str, Any], source: str
) -> dict[str, str]:
    found = {}
    for role, usual in ROLES.items():
        named = _name(settings, role)
        for token in usual if named is None else (named,):
            if core.token_to_id(token) is not None:
                found[role] = token
                break
        else:
            if role != "mask":
                raise TokenizerError(_lacks(role, source, named))
    return found


def _lacks(role: str, source: str, named: str | None = None) -> str:
    wanted = " or ".join(ROLES[role]) if named is None else named
    return (
        f"{source}: the vocabulary has no {role} token ({wanted}); "
        f"add it, or name the one it uses as {role}_token in tokenizer_config.json"
    )


def _is_special(core: tokenizers.Tokenizer, token: str) -> bool:
    added = core.get_added_tokens_decoder().values()
    return any(t.content == token and t.special for t in added)


def _without_defaults(value: Any) -> Any:
    """Drop what is null or false, so that a newer library's new options change no fingerprint."""
    if isinstance(value, dict):
        kept = {k: _without_defaults(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not None and v is not False}
    return value


def _write(path: Path, text: str) -> None:
    """Replace a file whole: written beside, synced, renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
