"""Tokenizer classes of transformers, and the keys of tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import TokenizerError
from bertkit.published_keys import KeyTable
from bertkit.text.special_tokens import ROLES

CONFIG = "tokenizer_config.json"

SETTINGS = (
    "tokenizer_class",
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "keep_accents",
    "add_prefix_space",
    "split_by_punct",
    "trim_offsets",
    "legacy",
    "unk_id",
    "model_max_length",
    "model_input_names",
    "truncation_side",
    "clean_up_tokenization_spaces",
    "source_lang",
    "target_lang",
    "separate_vocabs",
    "chat_template",
)
"""Keys of tokenizer_config.json that `Tokenizer.save` writes."""

_METADATA = "metadata of the file"
_PADDING = "bertkit packs sequences and has no padding"
_CALL = "default argument of calls, which from_pretrained in transformers does not use"
_FILES = "bertkit reads the files of the directory"
_CHAT = "bertkit does not parse responses with it"

KEYS = KeyTable(
    applied=(
        *SETTINGS,
        *(f"{role}_token" for role in ROLES),
        "additional_special_tokens",
        "extra_special_tokens",
        "model_specific_special_tokens",
        "added_tokens_decoder",
        "extra_ids",
        "add_bos_token",
        "add_eos_token",
        "max_len",
    ),
    irrelevant={
        **dict.fromkeys(("name_or_path", "processor_class", "verbose", "backend"), _METADATA),
        **dict.fromkeys(("files_loaded", "is_local", "local_files_only"), _METADATA),
        **dict.fromkeys(("padding_side", "pad_to_multiple_of", "pad_token_type_id"), _PADDING),
        **dict.fromkeys(("max_length", "stride", "truncation_strategy"), _CALL),
        **dict.fromkeys(("vocab_file", "merges_file", "tokenizer_file", "gguf_file"), _FILES),
        **dict.fromkeys(("source_spm", "target_spm", "target_vocab_file"), _FILES),
        **dict.fromkeys(("response_template", "response_schema"), _CHAT),
        "chat_control_tokens": "bertkit encodes special tokens in messages as ordinary text",
        "auto_map": "bertkit runs no code of a directory",
        "errors": "the tokenizers library always replaces invalid bytes",
        "use_default_system_prompt": "transformers has no default system prompt",
        "do_basic_tokenize": "only tokenizers without the tokenizers library read it",
        "never_split": "only tokenizers without the tokenizers library read it",
    },
    neutral={
        "split_special_tokens": (False, None),
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": (False, None),
        "sp_model_kwargs": (None, {}),
        "fix_mistral_regex": (None, False),
        "init_inputs": ([], None),
        "vocab": (None,),
        "merges": (None,),
        "tokenizer_object": (None,),
        "post_processor": (None,),
        "tokenizer_padding": (None,),
        "tokenizer_truncation": (None,),
        "_json_truncation": (None,),
        "_json_padding": (None,),
        "_spm_precompiled_charsmap": (None,),
    },
)
"""Keys of tokenizer_config.json and of special_tokens_map.json. Other keys that end with `_token`
specify additional special tokens."""


@dataclass(frozen=True)
class TokenizerClass:
    """Tokenizer class of transformers.

    Attributes:
        reads: Settings from which the class builds its normalizer and pre-tokenizer.
        adds: Roles of the tokens that the class adds before and after a text. A role is None if the
            class adds no token, or adds the token that tokenizer.json specifies.
        file: Vocabulary file from which bertkit can build the tokenizer if there is no
            tokenizer.json.
        tokens: Special tokens of a tokenizer that is built from `file`, by role. A directory may
            specify others.
        rebuilds: Whether the class rebuilds the tokenizer even if there is a tokenizer.json.
        parts: Types of the normalizers and of the pre-tokenizers that the class builds, and the
            segments of the special tokens that it adds to a pair of texts. The segments are empty
            if the class uses the post-processor of tokenizer.json.
    """

    reads: tuple[str, ...] = ()
    adds: tuple[str | None, str | None] = (None, None)
    file: str | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)
    rebuilds: bool = True
    parts: tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]] | None = None


_NORMALIZER = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_SEPARATED = ("cls", "sep")
_BERT = {role: f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
_ROBERTA = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "pad": "<pad>"}
_ROBERTA |= {"unk": "<unk>", "mask": "<mask>"}
_END_OF_TEXT = dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>")

_WORDPIECE = ("BertNormalizer",), ("BertPreTokenizer",)
_UNIGRAM = ("Precompiled", "Replace", "Strip"), ("WhitespaceSplit", "Metaspace")
_NO_TYPES = (0, 0, 0, 0)

CLASSES = {
    "BertTokenizer": TokenizerClass(
        _NORMALIZER, _SEPARATED, "vocab.txt", _BERT, parts=(*_WORDPIECE, (0, 0, 1))
    ),
    "MPNetTokenizer": TokenizerClass(
        _NORMALIZER,
        _SEPARATED,
        "vocab.txt",
        _ROBERTA | {"unk": "[UNK]"},
        parts=(*_WORDPIECE, _NO_TYPES),
    ),
    "RobertaTokenizer": TokenizerClass(
        ("add_prefix_space", "trim_offsets"),
        _SEPARATED,
        "merges.txt",
        _ROBERTA,
        parts=((), ("ByteLevel",), _NO_TYPES),
    ),
    "GPT2Tokenizer": TokenizerClass(("add_prefix_space",), file="merges.txt", tokens=_END_OF_TEXT),
    "OpenAIGPTTokenizer": TokenizerClass(file="merges.txt", tokens={"unk": "<unk>"}),
    "MarianTokenizer": TokenizerClass(file="source.spm"),
    "AlbertTokenizer": TokenizerClass(
        ("do_lower_case", "keep_accents", "add_prefix_space"),
        parts=((*_UNIGRAM[0], "NFKD", "StripAccents", "Lowercase"), _UNIGRAM[1], ()),
    ),
    "CamembertTokenizer": TokenizerClass(
        ("add_prefix_space",), ("bos", "eos"), parts=(*_UNIGRAM, _NO_TYPES)
    ),
    "DebertaV2Tokenizer": TokenizerClass(
        ("do_lower_case", "split_by_punct", "add_prefix_space"), _SEPARATED, "spm.model"
    ),
    "LlamaTokenizer": TokenizerClass(("add_prefix_space", "legacy")),
    "T5Tokenizer": TokenizerClass(adds=(None, "eos")),
    "XLMRobertaTokenizer": TokenizerClass(
        ("add_prefix_space",),
        ("bos", "eos"),
        "sentencepiece.bpe.model",
        parts=(*_UNIGRAM, _NO_TYPES),
    ),
    "PreTrainedTokenizerFast": TokenizerClass(rebuilds=False),
    "TokenizersBackend": TokenizerClass(rebuilds=False),
}
"""Names of classes without "Fast" -> the classes. Other classes are assumed to use all settings."""

_ALIASES = {
    "BartTokenizer": "RobertaTokenizer",
    "DistilBertTokenizer": "BertTokenizer",
    "ElectraTokenizer": "BertTokenizer",
    "PreTrainedTokenizer": "PreTrainedTokenizerFast",
}
OTHER = TokenizerClass(tuple(dict.fromkeys(key for c in CLASSES.values() for key in c.reads)))

CLASS_OF_MODEL = {
    "albert": "AlbertTokenizer",
    "bart": "RobertaTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "BertTokenizer",
    "gpt2": "GPT2Tokenizer",
    "modernbert": "PreTrainedTokenizerFast",
    "mpnet": "MPNetTokenizer",
    "nomic_bert": "BertTokenizer",
    "openai-gpt": "OpenAIGPTTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""`model_type` -> the tokenizer class, for directories that do not specify a class."""

TYPED = ("BertTokenizer", "ElectraTokenizer", "DebertaV2Tokenizer")
"""Classes of transformers 5 that return segments by default."""


def find_class(settings: Mapping[str, Any]) -> TokenizerClass:
    """Return the tokenizer class that the settings specify. The default is BERT's class."""
    name = settings.get("tokenizer_class")
    return CLASSES["BertTokenizer"] if name is None else CLASSES.get(_plain_name(name), OTHER)


def omits_types(settings: Mapping[str, Any]) -> bool:
    """Return whether transformers 5 returns no segments, because no setting requests them."""
    name = str(settings.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast")
    return settings.get("model_input_names") is None and name not in TYPED


def _plain_name(name: object) -> str:
    """Return the name of a class without "Fast", after replacing an alias."""
    plain = str(name).removesuffix("Fast")
    return _ALIASES.get(plain, plain)


def name_class(settings: Mapping[str, Any], folder: Path, file: str) -> str | None:
    """Return the name of the class for a directory without tokenizer.json, or None if unknown.

    Raises:
        TokenizerError: If bertkit cannot build the class from `file`.
    """
    name = settings.get("tokenizer_class")
    if name is None:
        return None
    plain = _plain_name(name)
    if plain not in CLASSES or CLASSES[plain].file != file:
        supported = ", ".join(known for known, found in CLASSES.items() if found.file == file)
        raise TokenizerError(
            f"{folder}: tokenizer_class {name!r} is not supported with {file} (only {supported}); "
            "save the tokenizer as tokenizer.json with transformers' save_pretrained"
        )
    return plain
