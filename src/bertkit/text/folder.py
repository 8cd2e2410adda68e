"""Tokenizer files as the ecosystem has them, as objects of the `tokenizers` library."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertkit.errors import BertkitError, TokenizerError
from bertkit.storage import SETTINGS as MOST
from bertkit.storage import VOCABULARY, read_bytes, read_json
from bertkit.text.marian import Numbering, Side, open_marian
from bertkit.text.specials import find_specials, lacks, named_token, required

SETTINGS = (
    "tokenizer_class",
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "keep_accents",
    "add_prefix_space",
    "split_by_punct",
    "trim_offsets",
    "model_max_length",
    "source_lang",
    "target_lang",
    "separate_vocabs",
    "chat_template",
)
"""The keys of tokenizer_config.json that are read and kept; code is never taken from one."""

AS_THE_FILE_SAYS = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of `transformers` that take tokenizer.json as it is; others rebuild its normalizer."""


class Opened(NamedTuple):
    """A tokenizer, the settings beside it, and what to name in messages about it."""

    core: tokenizers.Tokenizer
    settings: dict[str, Any]
    source: Path
    numbering: Numbering | None = None


WORD_END = "</w>"
"""What GPT's vocabulary marks the last piece of a word by."""

MOST_PIECES = 1 << 22
"""Of a vocabulary, and of its merges."""


@contextlib.contextmanager
def usable(source: str) -> Iterator[None]:
    """Whatever the `tokenizers` library raises, panics of its Rust too, as a TokenizerError."""
    try:
        yield
    except BertkitError:
        raise
    except BaseException as error:  # a panic is no Exception, and neither has a class to import
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(
            f"{source}: not a tokenizer that can be read ({error}); fetch or save it again"
        ) from None


def open_tokenizer(path: Path, side: Side = "source") -> Opened:
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
        return Opened(_pair_merges(path, settings), settings, path)
    if (path / "source.spm").is_file():
        core, numbering = open_marian(path, settings, side)
        return Opened(core, settings, path, numbering)
    for sentencepiece in sorted(path.glob("*.model")):
        raise TokenizerError(_not_readable(sentencepiece))
    raise TokenizerError(
        f"{path}: no tokenizer here (neither tokenizer.json nor vocab.txt); copy the model's "
        "tokenizer files into this folder, or name the folder that holds them"
    )


def _open_file(path: Path, settings: dict[str, Any]) -> Opened:
    if path.suffix == ".txt":
        return Opened(_word_piece(path, settings), settings, path)
    if path.suffix != ".json":
        raise TokenizerError(_not_readable(path))
    text = _read(path)
    with usable(str(path)):
        core = tokenizers.Tokenizer.from_str(text)
    _apply(settings, core, path.parent)
    return Opened(core, settings, path)


def _not_readable(path: Path) -> str:
    return (
        f"{path}: this kind of file is not read; open its folder once with transformers' "
        "AutoTokenizer, save_pretrained() it, and load the tokenizer.json written there"
    )


def _word_piece(path: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    pieces = _lines(path)
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
    unk = named_token(settings, "unk") or "[UNK]"
    if unk not in vocab:
        raise TokenizerError(lacks("unk", str(path)))
    core = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unk))
    core.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    _apply(settings, core, path.parent)
    specials = find_specials(core, settings, str(path))
    frame = [required(specials, role, str(path)) for role in ("cls", "sep")]
    core.post_processor = template(core, *frame)
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


def _pair_merges(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The older layout of BPE, vocab.json and merges.txt: of bytes, or of words as GPT has it."""
    merges = [
        tuple(line.split(" "))
        for line in _lines(folder / "merges.txt")
        if line and not line.startswith("#version")
    ]
    vocab = _read_json(folder / "vocab.json", VOCABULARY)
    # a vocabulary of bytes has each of them, a space too
    words = "Ġ" not in vocab and any(piece.endswith(WORD_END) for piece in vocab)
    with usable(f"{folder / 'vocab.json'} with merges.txt"):
        return (_word_level if words else _byte_level)(folder, settings, vocab, merges)


def _word_level(
    folder: Path, settings: Mapping[str, Any], vocab: dict[str, int], merges: Sequence[Any]
) -> tokenizers.Tokenizer:
    """GPT's: lower-cased words, the last piece of each marked. Radford et al. 2018, section 4.1."""
    unk = named_token(settings, "unk") or "<unk>"
    if unk not in vocab:
        raise TokenizerError(lacks("unk", str(folder)))
    core = tokenizers.Tokenizer(
        models.BPE(vocab, list(merges), unk_token=unk, end_of_word_suffix=WORD_END)
    )
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.BPEDecoder(suffix=WORD_END)
    return core


def _byte_level(
    folder: Path, settings: Mapping[str, Any], vocab: dict[str, int], merges: Sequence[Any]
) -> tokenizers.Tokenizer:
    """GPT-2's and RoBERTa's; with [CLS] and [SEP] of some name a text is framed by them."""
    core = tokenizers.Tokenizer(models.BPE(vocab, list(merges)))
    prefix = _flag(settings, "add_prefix_space", False, folder)
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    core.decoder = decoders.ByteLevel()
    specials = find_specials(core, settings, str(folder))
    framed = "cls" in specials and "sep" in specials
    trim = _flag(settings, "trim_offsets", framed, folder)
    if not framed:
        core.post_processor = processors.ByteLevel(trim_offsets=trim)
        return core
    cls, sep = ((specials[role], core.token_to_id(specials[role])) for role in ("cls", "sep"))
    core.post_processor = processors.RobertaProcessing(sep, cls, trim, prefix)  # type: ignore[arg-type]
    return core


def _read(path: Path) -> str:
    try:
        return read_bytes(path, TokenizerError, most=VOCABULARY).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path}: not UTF-8 text (byte {error.start}); fetch the file again"
        ) from None


def _lines(path: Path) -> list[str]:
    text = _read(path).replace("\r\n", "\n").removesuffix("\n")
    if text.count("\n") >= MOST_PIECES:
        raise TokenizerError(f"{path}: more than {MOST_PIECES:,} lines; fetch the file again")
    return text.split("\n")


def _read_json(path: Path, most: int = MOST) -> dict[str, Any]:
    content = read_json(path, TokenizerError, "fetch the file again", most=most)
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: holds no JSON object; fetch the file again")
    return content


def _read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, its gaps filled from special_tokens_map.json."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= _read_json(folder / name)
    if (folder / "chat_template.jinja").is_file():  # where transformers 5 writes it
        settings["chat_template"] = _read(folder / "chat_template.jinja")
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


def normalizer_settings(core: tokenizers.Tokenizer) -> dict[str, Any]:
    was = core.normalizer
    if not isinstance(was, normalizers.BertNormalizer):
        return {}
    return {
        "do_lower_case": was.lowercase,
        "strip_accents": was.strip_accents,
        "tokenize_chinese_chars": was.handle_chinese_chars,
    }


def usual_class(core: tokenizers.Tokenizer) -> str:
    bert = isinstance(core.model, models.WordPiece) and isinstance(
        core.normalizer, normalizers.BertNormalizer
    )
    return "BertTokenizer" if bert else "PreTrainedTokenizerFast"


def word_starts(core: tokenizers.Tokenizer, pieces: Sequence[str], source: str) -> list[bool]:
    """For each piece, whether it begins a word.

    Raises: TokenizerError if the pieces do not show it.
    """
    model, spec = core.model, str(core.pre_tokenizer)
    if isinstance(model, models.WordPiece):
        prefix = model.continuing_subword_prefix
        return [not piece.startswith(prefix) or piece == prefix for piece in pieces]
    if "ByteLevel" in spec:
        return [piece.startswith(("Ġ", "Ċ", "ĉ", "č")) for piece in pieces]
    if "Metaspace" in spec:
        return [piece.startswith("▁") for piece in pieces]
    raise TokenizerError(
        f"{source}: its pieces do not show where words begin; mask tokens, not words"
    )


def fingerprint(
    core: tokenizers.Tokenizer, specials: Mapping[str, str], ids: Mapping[str, int] | None
) -> str:
    """SHA-256 over everything that decides ids; `ids` are those of pieces, if not those of core."""
    spec = json.loads(core.to_str())
    normalizer = spec["normalizer"] or {}
    if normalizer.get("type") == "BertNormalizer" and normalizer["strip_accents"] is None:
        normalizer["strip_accents"] = normalizer["lowercase"]
    template = [core.encode("", pair) for pair in (None, "")]
    canon = {
        "model": spec["model"],
        "normalizer": normalizer,
        "pre_tokenizer": spec["pre_tokenizer"],
        "added": sorted((t["id"], t["content"], t["special"]) for t in spec["added_tokens"]),
        # bos and eos are left out: they decide no ids, and older fingerprints had none
        "specials": {r: t for r, t in specials.items() if r not in ("bos", "eos")},
        "template": [[e.ids, e.type_ids] for e in template],
    }
    if ids is not None:
        canon["ids"] = dict(ids)
    text = json.dumps(_without_defaults(canon), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_defaults(value: Any) -> Any:
    """Drop what is null or false, so that a newer library's new options change no fingerprint."""
    if isinstance(value, dict):
        kept = {k: _without_defaults(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v is not None and v is not False}
    return value
