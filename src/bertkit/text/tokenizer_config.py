"""Settings of a tokenizer directory, and their application to a `tokenizers.Tokenizer`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from bertkit.console import say
from bertkit.errors import TokenizerError
from bertkit.storage import SETTINGS as MOST
from bertkit.storage import VOCABULARY, read_bytes, read_json
from bertkit.text.file_limits import check_added
from bertkit.text.special_tokens import ROLES, named_token
from bertkit.text.tokenizer_classes import (
    CLASS_OF_MODEL,
    CLASSES,
    CONFIG,
    KEYS,
    TokenizerClass,
    find_class,
    omits_types,
)

SPECIAL_TOKENS = (
    *(f"{role}_token" for role in ROLES),
    "additional_special_tokens",
    "extra_special_tokens",
    "model_specific_special_tokens",
)
"""Keys of special_tokens_map.json. Other keys that end with `_token` specify additional tokens."""

MAX_SENTINELS = 10_000
"""Maximum number of sentinel tokens of a T5 tokenizer."""


def read_settings(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json, special_tokens_map.json, and chat_template.jinja.

    As in transformers, special_tokens_map.json overrides tokenizer_config.json, unless
    tokenizer_config.json contains `added_tokens_decoder`.

    Raises:
        TokenizerError: If a file is invalid, or a setting is not supported.
    """
    path, names = folder / CONFIG, folder / "special_tokens_map.json"
    settings = read_dict(path) if path.is_file() else {}
    if "added_tokens_decoder" not in settings and names.is_file():
        settings |= _read_special_tokens(names)
    # transformers 5 saves the chat template in this file.
    if (folder / "chat_template.jinja").is_file():
        settings["chat_template"] = read_text(folder / "chat_template.jinja")
    config = read_dict(folder / "config.json") if (folder / "config.json").is_file() else {}
    if settings.get("tokenizer_class") is None:
        model = CLASS_OF_MODEL.get(str(config.get("model_type")))
        named = config.get("tokenizer_class") or model
        settings |= {} if named is None else {"tokenizer_class": named}
    # Before transformers 5, all classes returned segments. A model must get what it was trained on.
    if str(config.get("transformers_version")).startswith("5.") and omits_types(settings):
        settings["model_input_names"] = ["input_ids", "attention_mask"]
    # Before transformers 2, the setting had this name.
    if "max_len" in settings:
        settings.setdefault("model_max_length", settings["max_len"])
    try:
        KEYS.check(settings)
    except ValueError as error:
        raise TokenizerError(f"{path}: {error}; use a directory without this setting") from None
    limit, side = settings.get("model_max_length"), settings.get("truncation_side")
    sentinels = settings.get("extra_ids", 0)
    if not isinstance(sentinels, int) or not 0 <= sentinels <= MAX_SENTINELS:
        raise TokenizerError(
            f"{path}: extra_ids must be at most {MAX_SENTINELS:,}, got {sentinels!r}"
        )
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise TokenizerError(f"{path}: model_max_length must be a number, got {limit!r}")
    if side not in ("left", "right", None):
        raise TokenizerError(f"{path}: truncation_side must be 'left' or 'right', got {side!r}")
    return settings


def _read_special_tokens(path: Path) -> dict[str, Any]:
    """Read special_tokens_map.json.

    Raises:
        TokenizerError: If the file contains a setting of tokenizer_config.json. In transformers,
            such a setting would have an effect.
    """
    content = read_dict(path)
    known = {*KEYS.applied, *KEYS.irrelevant, *KEYS.neutral} - {*SPECIAL_TOKENS}
    if settings := known & {*content}:
        raise TokenizerError(f"{path}: {min(settings)} is not a special token; move it to {CONFIG}")
    return content


def read_text(path: Path) -> str:
    """Read a text file of limited size."""
    try:
        return read_bytes(path, TokenizerError, most=VOCABULARY).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path}: not UTF-8 text (byte {error.start}); download the file again"
        ) from None


def read_dict(path: Path, most: int = MOST) -> dict[str, Any]:
    """Read a JSON object from a file of limited size."""
    content = read_json(path, TokenizerError, "download the file again", most=most)
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: not a JSON object; download the file again")
    return content


def read_flag(settings: Mapping[str, Any], key: str, default: Any, folder: Path) -> Any:
    """Return the value of a boolean setting, or its default."""
    value = settings.get(key, default)
    if not isinstance(value, bool | None):
        raise TokenizerError(f"{folder / CONFIG}: {key} must be true or false, got {value!r}")
    return default if value is None and key != "strip_accents" else value


# ---- Application of settings


def apply_settings(
    settings: Mapping[str, Any], core: tokenizers.Tokenizer, folder: Path, *, built: bool = False
) -> None:
    """Apply the settings of a directory to the tokenizer of its tokenizer.json.

    As in the classes of transformers, settings of a WordPiece normalizer and of byte-level BPE
    replace the settings in tokenizer.json. All other settings must agree with tokenizer.json. If a
    setting is missing, the setting in tokenizer.json applies. `transformers` 5 would instead
    lowercase texts, even for a cased model.

    Args:
        settings: Content of tokenizer_config.json.
        core: The tokenizer, which is modified.
        folder: The directory, for error messages.
        built: Whether bertkit built `core` from the settings, because there is no tokenizer.json.

    Raises:
        TokenizerError: If a setting contradicts tokenizer.json.
    """
    named = find_class(settings)
    if named.rebuilds:
        _apply_normalizer(settings, core, named, folder)
    if named.rebuilds:
        _check_roles(settings, core, folder)
    if named.rebuilds and not built:
        _apply_byte_level(settings, core, named, folder)
        _check_agreement(settings, core, named, folder)
        if settings.get("tokenizer_class") is not None:
            _warn_of_other_parts(core, named, folder)
    _add_tokens(settings, core, named, folder, built=built)


def _apply_normalizer(
    settings: Mapping[str, Any], core: tokenizers.Tokenizer, named: TokenizerClass, folder: Path
) -> None:
    """Apply the settings for case, accents, and Chinese characters to a BERT normalizer."""
    was = core.normalizer
    if not isinstance(was, normalizers.BertNormalizer) or "strip_accents" not in named.reads:
        return
    core.normalizer = normalizers.BertNormalizer(
        clean_text=was.clean_text,
        handle_chinese_chars=read_flag(
            settings, "tokenize_chinese_chars", was.handle_chinese_chars, folder
        ),
        strip_accents=read_flag(settings, "strip_accents", was.strip_accents, folder),
        lowercase=read_flag(settings, "do_lower_case", was.lowercase, folder),
    )


def _apply_byte_level(
    settings: Mapping[str, Any], core: tokenizers.Tokenizer, named: TokenizerClass, folder: Path
) -> None:
    """Apply `add_prefix_space` and `trim_offsets` to byte-level BPE."""
    before, after = core.pre_tokenizer, core.post_processor
    if not isinstance(before, pre_tokenizers.ByteLevel) or "add_prefix_space" not in named.reads:
        return
    prefix = read_flag(settings, "add_prefix_space", before.add_prefix_space, folder)
    before.add_prefix_space = prefix
    if isinstance(after, processors.RobertaProcessing):
        after.add_prefix_space = prefix
        after.trim_offsets = read_flag(settings, "trim_offsets", after.trim_offsets, folder)


def _check_agreement(
    settings: Mapping[str, Any], core: tokenizers.Tokenizer, named: TokenizerClass, folder: Path
) -> None:
    """Check that the settings that bertkit does not apply agree with tokenizer.json.

    Raises:
        TokenizerError: If a setting contradicts tokenizer.json.
    """
    for key, values in _behavior(core, settings).items():
        value = settings.get(key, values[0])
        # A setting that is null means the default, except for add_prefix_space.
        is_default = value is None and key != "add_prefix_space"
        if key in named.reads and not is_default and value not in values:
            raise _contradiction(folder, key, value, f"{values[0]!r}")
    tokens = core.encode("").tokens
    for role, index in zip(named.adds, (0, -1), strict=True):
        token = None if role is None else named_token(settings, role)
        missing = settings.get(f"{role}_token", "") is None
        if missing or (token is not None and (not tokens or tokens[index] != token)):
            raise _contradiction(folder, f"{role}_token", token, "another token")
    if isinstance(core.model, models.Unigram) and settings.get("unk_token", "") is None:
        raise _contradiction(folder, "unk_token", None, "an unknown token")
    unknown = named_token(settings, "unk")
    if unknown is not None and (actual := _unknown_token(core, named)) not in (None, unknown):
        raise _contradiction(folder, "unk_token", unknown, repr(actual))


def _warn_of_other_parts(core: tokenizers.Tokenizer, named: TokenizerClass, folder: Path) -> None:
    """Print a warning if a part of tokenizer.json differs from the part that the class builds."""
    if named.parts is None:
        return
    usual, splits, pair = map(list, named.parts)
    found = [{*dict(_steps(part))} for part in (core.normalizer, core.pre_tokenizer)]
    # A character map of SentencePiece is optional.
    is_usual = found[0] <= {*usual} and (found[0] or "BertNormalizer" not in usual)
    types = [core.encode("", text).type_ids for text in (None, "")]
    model, sizes = core.model, ("##", 100)
    if isinstance(model, models.WordPiece):
        sizes = model.continuing_subword_prefix, model.max_input_chars_per_word
    parts = {
        "model": sizes != ("##", 100),
        "normalizer": not is_usual,
        "pre_tokenizer": found[1] != {*splits},
        "post_processor": pair and types != [[0, 0], pair],
    }
    other = [part for part, is_other in parts.items() if is_other]
    if other:
        say(
            f"{folder / 'tokenizer.json'}: warning: bertkit uses its {' and '.join(other)}, but "
            "transformers 5 replaces them; set tokenizer_class to PreTrainedTokenizerFast in "
            f"{CONFIG} to use them there, too"
        )


def _unknown_token(core: tokenizers.Tokenizer, named: TokenizerClass) -> str | None:
    """Return the unknown token with which the setting must agree, or None if any is accepted."""
    model = core.model
    if isinstance(model, models.Unigram):
        if named not in (CLASSES["DebertaV2Tokenizer"], CLASSES["CamembertTokenizer"]):
            return None  # The unknown token of the other classes is fixed.
        token: str | None = core.id_to_token(model.tokenize("\U0010ffff")[0].id)
        return token
    return None if isinstance(model, models.WordLevel) else model.unk_token


def _check_roles(settings: Mapping[str, Any], core: tokenizers.Tokenizer, folder: Path) -> None:
    """Check that BOS, EOS, and mask tokens are added tokens.

    If they are not, the classes of transformers add them, and split texts at them. The check is
    only for Unigram, and for BPE with a suffix at the end of words.
    """
    model = core.model
    if isinstance(model, models.BPE) and not model.end_of_word_suffix:
        return
    if not isinstance(model, models.Unigram | models.BPE):
        return
    added = {token.content for token in core.get_added_tokens_decoder().values()}
    for role in ("bos", "eos", "mask"):
        token = named_token(settings, role)
        if token is not None and token not in added:
            raise _contradiction(folder, f"{role}_token", token, "no such added token")


def _contradiction(folder: Path, key: str, value: object, actual: str) -> TokenizerError:
    return TokenizerError(
        f"{folder / CONFIG}: {key} = {value!r} contradicts tokenizer.json, which has {actual}; "
        "save the tokenizer again with transformers' save_pretrained"
    )


def _behavior(
    core: tokenizers.Tokenizer, settings: Mapping[str, Any]
) -> dict[str, tuple[object, ...]]:
    """Return, for each setting, the values that agree with the normalizer and the pre-tokenizer."""
    values: dict[str, tuple[object, ...]] = {}
    normalizer, steps = core.normalizer, dict(_steps(core.pre_tokenizer))
    if not isinstance(normalizer, normalizers.BertNormalizer):
        lower, stripped = ("A", "é") if normalizer is None else map(normalizer.normalize_str, "Aé")
        values["do_lower_case"] = (lower != "A",)
        values["keep_accents"] = (stripped != "e",)
    values["split_by_punct"] = ("Punctuation" in steps,)
    if "ByteLevel" in steps:
        values["add_prefix_space"] = (steps["ByteLevel"]["add_prefix_space"], None)
    elif "Metaspace" in steps:
        scheme = steps["Metaspace"]["prepend_scheme"]
        deberta = "split_by_punct" in find_class(settings).reads
        values["add_prefix_space"] = (scheme == "always" if deberta else scheme != "never",)
        if scheme != "never":
            values["legacy"] = (scheme == "always",)
    return values


def _steps(part: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the settings of each step of a normalizer or pre-tokenizer, by type."""
    state = {} if part is None else json.loads(part.__getstate__())
    steps = state.get("pretokenizers", state.get("normalizers", [state]))
    yield from ((step["type"], step) for step in steps if step)


def _add_tokens(
    settings: Mapping[str, Any],
    core: tokenizers.Tokenizer,
    named: TokenizerClass,
    folder: Path,
    *,
    built: bool,
) -> None:
    """Add the additional tokens that a directory specifies to the tokenizer, as in transformers."""
    known = core.get_added_tokens_decoder()
    decoder = settings.get("added_tokens_decoder")
    if decoder is not None:
        listed = {int(i): tokenizers.AddedToken(**token) for i, token in decoder.items()}
        check_added((token.content for token in listed.values()), str(folder / CONFIG))
        missing = {token.content for token in known.values()}
        missing -= {token.content for token in listed.values()}
        if named.rebuilds and missing and not built:
            raise _contradiction(folder, "added_tokens_decoder", "...", f"also {min(missing)!r}")
        for i, token in sorted(listed.items()):
            if repr(known.get(i)) != repr(token):
                core.add_tokens([token])
            if core.token_to_id(token.content) != i:
                actual = core.token_to_id(token.content)
                raise _misplaced(folder / CONFIG, token.content, i, actual)
    elif (folder / "added_tokens.json").is_file():
        _add_older_tokens(folder / "added_tokens.json", core)
    known_texts = {token.content for token in core.get_added_tokens_decoder().values()}
    further = list(_further_tokens(settings, named, core))
    check_added((token.content for token in further), str(folder / CONFIG))
    for token in further:
        if token.content not in known_texts:
            core.add_special_tokens([token])


def _add_older_tokens(path: Path, core: tokenizers.Tokenizer) -> None:
    """Add the tokens of added_tokens.json, which extends the vocabulary in older directories."""
    tokens = read_dict(path)
    check_added(tokens, str(path))
    for token, i in sorted(tokens.items(), key=lambda item: int(item[1])):
        if core.token_to_id(token) is None:
            core.add_tokens([token])
        if core.token_to_id(token) != i:
            raise _misplaced(path, token, i, core.token_to_id(token))


def _misplaced(path: Path, token: str, expected: object, actual: object) -> TokenizerError:
    return TokenizerError(
        f"{path}: {token!r} has id {expected}, but the next free id is {actual}; "
        "use consecutive ids after the vocabulary"
    )


def _further_tokens(
    settings: Mapping[str, Any], named: TokenizerClass, core: tokenizers.Tokenizer
) -> Iterator[tokenizers.AddedToken]:
    """Yield the special tokens of a directory that have no role, or have flags such as `lstrip`."""
    roles = {f"{role}_token" for role in ROLES}
    known = core.get_vocab()
    further: list[Any] = [
        value
        for key, value in settings.items()
        if key.endswith("_token")
        and (key not in roles or (isinstance(value, dict) and value["content"] in known))
    ]
    for key in ("model_specific_special_tokens", "extra_special_tokens"):
        value = settings.get(key) or []
        further += value.values() if isinstance(value, Mapping) else value
    if not settings.get("extra_special_tokens"):
        further += settings.get("additional_special_tokens") or []
    if named is CLASSES["T5Tokenizer"]:
        further += [f"<extra_id_{i}>" for i in range(settings.get("extra_ids") or 0)]
    for token in further:
        flags = {} if isinstance(token, str) else dict(token) if isinstance(token, dict) else None
        if flags is not None:
            content = token if isinstance(token, str) else flags.pop("content")
            flags = {key: flags[key] for key in flags if key not in ("__type", "special")}
            yield tokenizers.AddedToken(content, special=True, **flags)
