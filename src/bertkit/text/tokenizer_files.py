"""Tokenizer files of Hugging Face models, loaded as objects of the `tokenizers` library."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertkit.errors import BertkitError, TokenizerError
from bertkit.registry import Registry
from bertkit.storage import VOCABULARY
from bertkit.text.file_limits import check_json, check_tokens
from bertkit.text.special_tokens import ROLES, find_specials, lacks, named_token, required
from bertkit.text.tokenizer_classes import CLASSES, name_class
from bertkit.text.tokenizer_config import (
    apply_settings,
    read_dict,
    read_flag,
    read_settings,
    read_text,
)

Language = Literal["source", "target"]
"""Texts that a tokenizer of a translation model is for: source texts or target texts."""


@dataclass(frozen=True)
class Numbering:
    """Ids of tokens, if they differ from the ids in the tokenizer of the `tokenizers` library.

    Tokens that are not listed are unknown.
    """

    ids: Mapping[str, int]
    files: Mapping[str, bytes] = field(repr=False)
    """Files of the tokenizer, which are saved unchanged."""

    @cached_property
    def tokens(self) -> dict[int, str]:
        """Token of each id."""
        return {i: token for token, i in self.ids.items()}


class Opened(NamedTuple):
    """Opened tokenizer, with the settings of its directory and its path for error messages."""

    core: tokenizers.Tokenizer
    settings: dict[str, Any]
    source: Path
    numbering: Numbering | None = None


class TokenizerFormat(NamedTuple):
    """Format of tokenizer files that an extension adds."""

    file: str
    """Name of a file that each directory of this format contains."""
    open: Callable[[Path, dict[str, Any], Language], Opened]
    train: Any = None
    """Function that trains a vocabulary, or None. Its arguments are texts, an output directory, and
    `size`.
    """


TOKENIZERS: Mapping[str, TokenizerFormat] = Registry("tokenizers", {})
"""Name -> format of tokenizer files. The `use` of a vocabulary is the name of its format."""

WORD_END = "</w>"
"""Suffix of the last token of a word in GPT's vocabulary."""

MAX_VOCAB = 1 << 22
"""Maximum number of tokens in a vocabulary, and of merges."""


@contextlib.contextmanager
def usable(source: str) -> Iterator[None]:
    """Convert exceptions of the `tokenizers` library, including Rust panics, to TokenizerError."""
    try:
        yield
    except BertkitError:
        raise
    except BaseException as error:
        # PanicException is not a subclass of Exception, and cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(
            f"{source}: invalid tokenizer ({error}); download or save the tokenizer again"
        ) from None


def open_tokenizer(path: Path, side: Language = "source") -> Opened:
    """Load a tokenizer file, or the tokenizer of a directory.

    Args:
        path: The file or directory.
        side: Whether to load the tokenizer for source or for target texts, if a translation model
            has two tokenizers.

    Raises:
        TokenizerError: If there is no tokenizer, or a file is damaged.
    """
    if not path.exists():
        raise TokenizerError(f"{path} not found; use a directory with tokenizer.json or vocab.txt")
    if path.is_file():
        return _open_file(path, {})
    settings = read_settings(path)
    if (path / "tokenizer.json").is_file():
        return _open_file(path / "tokenizer.json", settings)
    if (path / "vocab.txt").is_file():
        named = name_class(settings, path, "vocab.txt")
        return _open_file(path / "vocab.txt", _with_tokens(settings, named), named)
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        named = name_class(settings, path, "merges.txt")
        settings = _with_tokens(settings, named)
        return Opened(_pair_merges(path, settings, named), settings, path)
    for other in TOKENIZERS.values():
        if (path / other.file).is_file():
            name_class(settings, path, other.file)
            return other.open(path, settings, side)
    for sentencepiece in sorted(path.glob("*.model")):
        raise TokenizerError(_unsupported(sentencepiece))
    raise TokenizerError(
        f"{path}: no tokenizer.json or vocab.txt; copy the model's tokenizer files into this "
        "directory, or use the directory that contains them"
    )


def _open_file(path: Path, settings: dict[str, Any], named: str | None = None) -> Opened:
    if path.suffix == ".txt":
        return Opened(_wordpiece(path, settings, named), settings, path)
    if path.suffix != ".json":
        raise TokenizerError(_unsupported(path))
    text = read_text(path)
    with usable(str(path)):
        check_json(text, str(path))
        core = tokenizers.Tokenizer.from_str(text)
        truncation = core.truncation
        if truncation is not None and settings.get("truncation_side") is None:
            settings = {**settings, "truncation_side": truncation["direction"]}
        core.no_truncation()
        core.no_padding()
        if getattr(core.model, "dropout", None):
            # With BPE dropout, which is for training, each call would return other tokens.
            core.model.dropout = None
        apply_settings(settings, core, path.parent)
    return Opened(core, settings, path)


def _with_tokens(settings: dict[str, Any], named: str | None) -> dict[str, Any]:
    """Return the settings, with the special tokens of a class for roles that have no token."""
    if named is None:
        return settings
    tokens = {f"{role}_token": CLASSES[named].tokens.get(role) for role in ROLES}
    return {**tokens, **settings}


def _unsupported(path: Path) -> str:
    return (
        f"{path}: unsupported tokenizer file; load its directory with transformers' "
        "AutoTokenizer, run save_pretrained(), and use the tokenizer.json that it writes"
    )


def _wordpiece(path: Path, settings: Mapping[str, Any], named: str | None) -> tokenizers.Tokenizer:
    """Build the tokenizer of BERT or MPNet from a vocab.txt."""
    tokens = _lines(path)
    check_tokens(tokens, str(path))
    vocab: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token in vocab:
            raise TokenizerError(
                f"{path}:{i + 1}: duplicate of line {vocab[token] + 1}: {token!r}; rename one of "
                f"them, for example to [unused-{i}], to keep all other ids"
            )
        vocab[token] = i
    words = (p for p in vocab if not (p.startswith("[") and p.endswith("]")))
    cased = any(token != token.lower() for token in words)
    unk = named_token(settings, "unk") or "[UNK]"
    if unk not in vocab:
        raise TokenizerError(lacks("unk", str(path)))
    core = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unk))
    core.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    apply_settings(settings, core, path.parent, built=True)
    specials = find_specials(core, settings, str(path))
    cls, sep = (required(specials, role, str(path)) for role in ("cls", "sep"))
    if named == "MPNetTokenizer":
        core.post_processor = _roberta_processor(core, cls, sep, trim=True, prefix=False)
    else:
        core.post_processor = template(core, cls, sep)
    return core


def _roberta_processor(
    core: tokenizers.Tokenizer, cls: str, sep: str, *, trim: bool, prefix: bool
) -> processors.RobertaProcessing:
    """Return a processor that adds special tokens: <s> text </s> or <s> text </s></s> pair </s>."""
    first, last = ((token, core.token_to_id(token)) for token in (cls, sep))
    return processors.RobertaProcessing(last, first, trim, prefix)  # type: ignore[arg-type]


def template(core: tokenizers.Tokenizer, cls: str, sep: str) -> processors.TemplateProcessing:
    """Return a processor that adds BERT's special tokens to a text or to a pair of texts.

    The result is [CLS] text [SEP] or [CLS] text [SEP] pair [SEP]. The last two have type 1.
    """
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, core.token_to_id(token)) for token in (cls, sep)],
    )


def _pair_merges(
    folder: Path, settings: Mapping[str, Any], named: str | None
) -> tokenizers.Tokenizer:
    """Build a BPE tokenizer from the older files vocab.json and merges.txt.

    If the directory does not specify a class, the class depends on the vocabulary. If tokens have
    the suffix for the end of a word and there is no token for the space, it is the class of GPT.
    Otherwise, the vocabulary is byte-level BPE.
    """
    merges = [
        tuple(line.split(" "))
        for line in _lines(folder / "merges.txt")
        if line and not line.startswith("#version")
    ]
    vocab = read_dict(folder / "vocab.json", VOCABULARY)
    check_tokens(chain(vocab, *merges), str(folder / "vocab.json"))
    if named is None and "Ġ" not in vocab and any(token.endswith(WORD_END) for token in vocab):
        named = "OpenAIGPTTokenizer"
    with usable(f"{folder / 'vocab.json'} with merges.txt"):
        if named == "OpenAIGPTTokenizer":
            core = _word_level(folder, settings, vocab, merges)
        else:
            core = _byte_level(folder, settings, vocab, merges)
            _add_ends(core, settings, folder, named)
        apply_settings({**settings, "tokenizer_class": named}, core, folder, built=True)
    return core


def _word_level(
    folder: Path, settings: Mapping[str, Any], vocab: dict[str, int], merges: Sequence[Any]
) -> tokenizers.Tokenizer:
    """Build the tokenizer of GPT. It lowercases words, and the last token of a word has a suffix.

    Source: Radford et al. 2018, section 4.1.
    """
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
    """Build the byte-level BPE tokenizer of GPT-2 and RoBERTa."""
    core = tokenizers.Tokenizer(models.BPE(vocab, list(merges)))
    prefix = read_flag(settings, "add_prefix_space", False, folder)
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    core.decoder = decoders.ByteLevel()
    return core


def _add_ends(
    core: tokenizers.Tokenizer, settings: Mapping[str, Any], folder: Path, named: str | None
) -> None:
    """Make a tokenizer add the special tokens of RoBERTa, or the BOS and EOS tokens of GPT-2.

    GPT-2's settings determine whether it adds BOS and EOS tokens. If the class is unknown, a
    vocabulary that has tokens for the roles cls and sep is treated as RoBERTa's.
    """
    specials = find_specials(core, settings, str(folder))
    if named == "RobertaTokenizer" or (named is None and {"cls", "sep"} <= specials.keys()):
        cls, sep = (required(specials, role, str(folder)) for role in ("cls", "sep"))
        trim = read_flag(settings, "trim_offsets", True, folder)
        prefix = read_flag(settings, "add_prefix_space", False, folder)
        core.post_processor = _roberta_processor(core, cls, sep, trim=trim, prefix=prefix)
        return
    bos, eos = (
        required(specials, role, str(folder))
        if read_flag(settings, f"add_{role}_token", False, folder)
        else ""
        for role in ("bos", "eos")
    )
    if not bos and not eos:
        trim = read_flag(settings, "trim_offsets", False, folder)
        core.post_processor = processors.ByteLevel(trim_offsets=trim)
        return
    single = " ".join(part for part in (bos, "$A", eos) if part)
    core.post_processor = processors.TemplateProcessing(
        single=single,
        pair=f"{single} {single.replace('$A', '$B')}",
        special_tokens=[(token, core.token_to_id(token)) for token in {bos, eos} - {""}],
    )


def _lines(path: Path) -> list[str]:
    text = read_text(path).replace("\r\n", "\n").removesuffix("\n")
    if text.count("\n") >= MAX_VOCAB:
        raise TokenizerError(f"{path}: more than {MAX_VOCAB:,} lines; download the file again")
    return text.split("\n")


def normalizer_settings(core: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the settings of a BERT normalizer, or an empty dict for any other normalizer."""
    current = core.normalizer
    if not isinstance(current, normalizers.BertNormalizer):
        return {}
    return {
        "do_lower_case": current.lowercase,
        "strip_accents": current.strip_accents,
        "tokenize_chinese_chars": current.handle_chinese_chars,
    }


def lowercase(core: tokenizers.Tokenizer) -> dict[str, Any]:
    """Make a tokenizer lowercase texts first, and return the settings that this changes.

    Accents are kept, unless the normalizer already removes them.
    """
    current = core.normalizer
    if isinstance(current, normalizers.BertNormalizer):
        strip = current.lowercase if current.strip_accents is None else current.strip_accents
        current.strip_accents, current.lowercase = strip, True
        return {"do_lower_case": True, "strip_accents": strip}
    steps: list[Any] = [] if current is None else [current]
    if isinstance(current, normalizers.Sequence):
        steps = list(current)  # type: ignore[call-overload]
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        core.normalizer = normalizers.Sequence([normalizers.Lowercase(), *steps])
    # With another class, transformers would rebuild the normalizer.
    return {"tokenizer_class": "PreTrainedTokenizerFast"}


def default_class(core: tokenizers.Tokenizer) -> str:
    """Return the class in transformers for a tokenizer whose settings do not specify a class."""
    bert = isinstance(core.model, models.WordPiece) and isinstance(
        core.normalizer, normalizers.BertNormalizer
    )
    return "BertTokenizer" if bert else "PreTrainedTokenizerFast"


def word_starts(core: tokenizers.Tokenizer, tokens: Sequence[str], source: str) -> list[bool]:
    """Return whether each token begins a word.

    Args:
        core: The tokenizer.
        tokens: The tokens.
        source: Path of the tokenizer, for error messages.

    Raises:
        TokenizerError: If the tokens do not show where words begin.
    """
    model, spec = core.model, str(core.pre_tokenizer)
    if isinstance(model, models.WordPiece):
        prefix = model.continuing_subword_prefix
        return [not token.startswith(prefix) or token == prefix for token in tokens]
    if "ByteLevel" in spec:
        return [token.startswith(("Ġ", "Ċ", "ĉ", "č")) for token in tokens]
    if "Metaspace" in spec:
        return [token.startswith("▁") for token in tokens]
    raise TokenizerError(
        f"{source}: the tokens do not show where words begin; mask tokens instead of words"
    )


def fingerprint(
    core: tokenizers.Tokenizer, specials: Mapping[str, str], ids: Mapping[str, int] | None
) -> str:
    """Return the SHA-256 of everything that affects ids.

    Args:
        core: The tokenizer.
        specials: Special token of each role.
        ids: Ids of tokens, if they differ from the ids in `core`.
    """
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
        # The roles BOS and EOS are omitted, because they do not affect ids. Older fingerprints also
        # do not contain them.
        "specials": {r: t for r, t in specials.items() if r not in ("bos", "eos")},
        "template": [[e.ids, e.type_ids] for e in template],
    }
    if ids is not None:
        canon["ids"] = dict(ids)
    text = json.dumps(_without_defaults(canon), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_defaults(value: Any) -> Any:
    """Remove null and false values, so that new options of the library do not change the hash."""
    if isinstance(value, dict):
        nonnull = {k: _without_defaults(v) for k, v in value.items()}
        return {k: v for k, v in nonnull.items() if v is not None and v is not False}
    return value
