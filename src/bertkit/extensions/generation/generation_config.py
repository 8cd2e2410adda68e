"""Generation settings of a model directory: `generation_config.json`, or the keys in older
`config.json` files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from bertkit.checkpoint.pooling_files import read_object
from bertkit.config import decode
from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.generation.decoding import Decoding
from bertkit.published_keys import KeyTable

FILE = "generation_config.json"

DECODING = {
    "num_beams": "beams",
    "num_return_sequences": "best",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "no_repeat_ngram_size": "no_repeat",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}
"""Settings of transformers and of `Decoding`; an n-gram size of 0 is None."""

SAMPLING = {
    "temperature": ("temperature", 1.0),
    "top_k": ("top_k", 50),
    "top_p": ("top_p", 1.0),
    "min_p": ("min_p", 0.0),
}
"""Settings that transformers uses if do_sample is true, with its defaults; a top_k of 0 is None."""

MERGED = ("decoder_start_token_id", "eos_token_id")
"""Settings that `config.json` may contain although there is a `generation_config.json`."""

TOKENS = (
    "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens",
    "begin_suppress_tokens",
)  # fmt: skip
_NO_TEXT = "changes what generate() returns beside the text"
_MEMORY = "changes time and memory, but no text"
_ASSISTANT = "speculative decoding changes no text"

KEYS = KeyTable(
    applied=(
        *DECODING, *SAMPLING, *MERGED, *TOKENS, "do_sample", "max_length", "min_length",
    ),
    irrelevant={
        "bos_token_id": "the tokenizer adds its BOS token to prompts",
        "pad_token_id": "bertkit packs sequences and has no padding",
        "remove_invalid_values": "it changes only NaN and infinite logits",
        "transformers_version": "metadata",
        "_from_model_config": "metadata",
        **dict.fromkeys(
            ("output_attentions", "output_hidden_states", "output_scores", "output_logits",
             "return_dict_in_generate"), _NO_TEXT,
        ),
        **dict.fromkeys(
            ("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory",
             "prefill_chunk_size", "compile_config", "disable_compile",
             "continuous_batching_config"), _MEMORY,
        ),
        **dict.fromkeys(
            ("use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
             "assistant_confidence_threshold", "prompt_lookup_num_tokens",
             "max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind",
             "target_lookbehind", "assistant_ensemble_weight", "speculation_type"), _ASSISTANT,
        ),
    },
    neutral={
        "max_time": (None,),
        "stop_strings": (None, []),
        "encoder_repetition_penalty": (1.0, None),
        "encoder_no_repeat_ngram_size": (0, None),
        "renormalize_logits": (False, None),
        "exponential_decay_length_penalty": (None,),
        "sequence_bias": (None, []),
        "token_healing": (False, None),
        "guidance_scale": (None, 1.0),
        "watermarking_config": (None,),
        "penalty_alpha": (None, 0.0),
        "dola_layers": (None,),
        "diversity_penalty": (0.0, None),
        "num_beam_groups": (1, None),
        "constraints": (None, []),
        "force_words_ids": (None, []),
    },
)  # fmt: skip
"""Every field of transformers' GenerationConfig."""

SAMPLED: dict[str, tuple[Any, ...]] = {
    "typical_p": (1.0, None),
    "epsilon_cutoff": (0.0, None),
    "eta_cutoff": (0.0, None),
    "top_h": (None, 1.0),
}
"""Fields without effect unless do_sample is true."""

FIELDS = (*KEYS.applied, *KEYS.irrelevant, *KEYS.neutral, *SAMPLED)


@dataclass(frozen=True)
class Generation:
    """Generation settings of a model directory."""

    start: int | None = None
    """The token that a decoder's text begins with, which is no part of it."""
    ends: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()
    """Tokens that are never written."""
    phrases: tuple[tuple[int, ...], ...] = ()
    """Sequences of several tokens that are never written."""
    begin_forbidden: tuple[int, ...] = ()
    """Tokens that no text begins with."""
    first: int | None = None
    """The token that every text has first (BART)."""
    last: int | None = None
    """The token that a text of the greatest length has last (BART)."""
    min_length: int = 0
    """Minimum number of tokens, including the prompt or the decoder's first token."""
    max_length: int | None = None
    """Maximum number of tokens, including the prompt or the decoder's first token."""
    decoding: Decoding = field(default_factory=Decoding)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings by the names of transformers, without those that are null."""
    unsupported: str = ""
    """Message about settings that bertkit does not support, if any."""

    @property
    def has_settings(self) -> bool:
        """Whether there are settings besides the ids of the first and the last token."""
        return bool(self.settings.keys() - set(MERGED))


def read_valid_generation(folder: Path, config: Mapping[str, Any], vocab: int) -> Generation:
    """Read the generation settings of a model with a vocabulary of this size.

    Raises:
        CheckpointError: If a value has the wrong type.
    """
    generation = read_generation(folder, config)
    ids = (generation.start, generation.first, generation.last)
    others = (*generation.forbidden, *generation.begin_forbidden, *chain(*generation.phrases))
    most = max((i for i in (*ids, *others) if i is not None), default=0)
    unsupported = generation.unsupported
    if most >= vocab and not unsupported:
        unsupported = (
            f"{folder}: the generation settings name token {most}, and the vocabulary has "
            f"{vocab:,} tokens; fetch the directory again"
        )
    ends = tuple(i for i in generation.ends if i < vocab)
    return replace(generation, ends=ends, unsupported=unsupported)


def read_generation(folder: Path, config: Mapping[str, Any]) -> Generation:
    """Read the generation settings of a model directory.

    Like transformers, `config.json` counts only if there is no `generation_config.json`, except for
    the ids of the first and the last token. A `max_length` of 20, the default of transformers,
    counts as none. Settings that bertkit does not support are no error until a text is generated.

    Raises:
        CheckpointError: If a value has the wrong type.
    """
    path = folder / FILE
    place = path if path.exists() else folder / "config.json"
    content = read_object(path) if path.exists() else config
    ids = {key: config.get(key) for key in MERGED}
    both = {**ids, **{key: content[key] for key in FIELDS if content.get(key) is not None}}
    settings = {key: value for key, value in both.items() if value is not None}
    words = [tuple(_ids(word, "bad_words_ids", place)) for word in _words(settings, place)]
    ends = tuple(_ids(settings.get("eos_token_id"), "eos_token_id", place))
    single = [word[0] for word in words if len(word) == 1 and word[0] not in ends]
    suppressed = _ids(settings.get("suppress_tokens"), "suppress_tokens", place)
    last = _ids(settings.get("forced_eos_token_id"), "forced_eos_token_id", place)
    length = _number(settings, "max_length", place)
    return Generation(
        start=_number(settings, "decoder_start_token_id", place),
        ends=ends,
        forbidden=tuple(dict.fromkeys([*single, *suppressed])),
        phrases=tuple(word for word in words if len(word) > 1),
        begin_forbidden=tuple(
            _ids(settings.get("begin_suppress_tokens"), "begin_suppress_tokens", place)
        ),
        first=_number(settings, "forced_bos_token_id", place),
        last=min(last, default=None),
        min_length=0
        if "min_new_tokens" in settings
        else _number(settings, "min_length", place) or 0,
        max_length=None if length == DEFAULT_LENGTH else length,
        decoding=_decoding(settings, place),
        settings=settings,
        unsupported=_unsupported(settings, place),
    )


DEFAULT_LENGTH = 20


def _decoding(settings: Mapping[str, Any], place: Path) -> Decoding:
    names = dict(DECODING)
    if settings.get("early_stopping") == "never":  # see `_unsupported`
        del names["early_stopping"]
    chosen = {ours: settings[theirs] for theirs, ours in names.items() if theirs in settings}
    if _samples(settings):
        chosen |= {ours: settings.get(key, usual) for key, (ours, usual) in SAMPLING.items()}
    for name in ("no_repeat", "top_k"):
        if chosen.get(name) == 0:
            del chosen[name]
    try:
        return decode(Decoding, chosen)
    except ConfigError as error:
        raise CheckpointError(f"{place}: {error}") from None


def _samples(settings: Mapping[str, Any]) -> bool:
    """Return whether texts are sampled. Beams with sampling are not supported."""
    return bool(settings.get("do_sample")) and settings.get("num_beams", 1) == 1


def _unsupported(settings: Mapping[str, Any], place: Path) -> str:
    """Return a message about the settings that bertkit does not support, or an empty string."""
    messages = []
    neutral = dict(KEYS.neutral)
    if settings.get("do_sample"):
        neutral |= SAMPLED
        if not _samples(settings):
            messages.append(f"do_sample = true with num_beams = {settings['num_beams']}")
    if settings.get("early_stopping") == "never":
        messages.append("early_stopping = 'never'")
    messages += KeyTable(neutral=neutral).unsupported(settings)
    if not messages:
        return ""
    return (
        f"{place}: {', '.join(messages)}: not supported by bertkit; remove it from the file to "
        "generate texts"
    )


def _words(settings: Mapping[str, Any], place: Path) -> list[list[Any]]:
    words = settings.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) and word for word in words):
        raise CheckpointError(f"{place}: bad_words_ids must be a list of lists of token ids")
    return words


def _number(settings: Mapping[str, Any], name: str, place: Path) -> int | None:
    value = settings.get(name)
    return None if value is None else _ids([value], name, place)[0]


def _ids(value: Any, name: str, place: Path) -> list[int]:
    """Return a token id or a list of them as a list."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    for one in values:
        if not isinstance(one, int) or isinstance(one, bool) or one < 0:
            raise CheckpointError(f"{place}: {name} must be an integer of at least 0, got {one!r}")
    return values
