"""Reader of the generation settings of a model directory.

The settings are stored in `generation_config.json`, or in `config.json` for older models.
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
    "num_beams": "num_beams",
    "num_return_sequences": "num_return_sequences",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}
"""Names of settings in transformers, and the corresponding names in `Decoding`. The value 0 of
no_repeat_ngram_size becomes None."""

SAMPLING = {
    "temperature": ("temperature", 1.0),
    "top_k": ("top_k", 50),
    "top_p": ("top_p", 1.0),
    "min_p": ("min_p", 0.0),
}
"""Settings that transformers uses only if do_sample is true. Each has its name in `Decoding` and
its default in transformers. The value 0 of top_k becomes None."""

MERGED = ("decoder_start_token_id", "eos_token_id")
"""Settings that are read from `config.json` even if the directory has a `generation_config.json`
without them."""

TOKENS = (
    "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens",
    "begin_suppress_tokens",
)  # fmt: skip
_NO_TEXT = "changes only the other return values of generate()"
_MEMORY = "changes only time and memory"
_ASSISTANT = "speculative decoding does not change the text"

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
"""Fields of GenerationConfig in transformers, without the fields in `SAMPLED`."""

SAMPLED: dict[str, tuple[Any, ...]] = {
    "typical_p": (1.0, None),
    "epsilon_cutoff": (0.0, None),
    "eta_cutoff": (0.0, None),
    "top_h": (None,),
}
"""Fields that have no effect unless do_sample is true, and their values that change nothing."""

FIELDS = (*KEYS.applied, *KEYS.irrelevant, *KEYS.neutral, *SAMPLED)


@dataclass(frozen=True)
class Generation:
    """Generation settings of a model directory."""

    start: int | None = None
    """Token that starts the decoder's input. It is not part of the generated text."""
    ends: tuple[int, ...] = ()
    """EOS tokens."""
    forbidden: tuple[int, ...] = ()
    """Tokens that are never generated."""
    phrases: tuple[tuple[int, ...], ...] = ()
    """Sequences of several tokens that are never generated."""
    begin_forbidden: tuple[int, ...] = ()
    """Tokens that are never the first token of a text."""
    first: int | None = None
    """Token that every text must begin with, such as BOS for BART."""
    last: int | None = None
    """Token that ends a text that reaches the maximum length, such as EOS for BART."""
    min_length: int = 0
    """Minimum number of tokens, including the prompt or the decoder's first token."""
    max_length: int | None = None
    """Maximum number of tokens, including the prompt or the decoder's first token."""
    decoding: Decoding = field(default_factory=Decoding)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings with their names in transformers, without null values."""
    unsupported: str = ""
    """Error message about settings that bertkit does not support, or an empty string."""

    @property
    def has_settings(self) -> bool:
        """Whether there are any settings except the ids of the decoder's start and EOS tokens."""
        return bool(self.settings.keys() - set(MERGED))


def read_generation(folder: Path, config: Mapping[str, Any], vocab: int) -> Generation:
    """Read the generation settings of a model directory.

    As in transformers, `config.json` is used only if there is no `generation_config.json`. The ids
    of the decoder's start token and the EOS token may come from `config.json` in any case. A
    `max_length` of 20, the default of transformers, is ignored. Unsupported settings cause an error
    only when a text is generated.

    Args:
        folder: The model directory.
        config: The content of `config.json`.
        vocab: Size of the vocabulary.

    Raises:
        CheckpointError: If a value has the wrong type.
    """
    path = folder / FILE
    source = path if path.exists() else folder / "config.json"
    content = read_object(path) if path.exists() else config
    ids = {key: config.get(key) for key in MERGED}
    both = {**ids, **{key: content[key] for key in FIELDS if content.get(key) is not None}}
    return generation_of(both, str(source), vocab)


def generation_of(values: Mapping[str, Any], source: str, vocab: int) -> Generation:
    """Convert the generation settings of transformers.

    Args:
        values: Names in transformers and their values. The value None selects the default.
        source: Path of the file that contains the values, for error messages.
        vocab: Size of the vocabulary.

    Raises:
        CheckpointError: If a value has the wrong type.
    """
    settings = {key: value for key, value in values.items() if value is not None}
    words = [tuple(_ids(word, "bad_words_ids", source)) for word in _words(settings, source)]
    ends = tuple(_ids(settings.get("eos_token_id"), "eos_token_id", source))
    single = [word[0] for word in words if len(word) == 1 and word[0] not in ends]
    suppressed = _ids(settings.get("suppress_tokens"), "suppress_tokens", source)
    last = _ids(settings.get("forced_eos_token_id"), "forced_eos_token_id", source)
    length = _number(settings, "max_length", source)
    generation = Generation(
        start=_number(settings, "decoder_start_token_id", source),
        ends=ends,
        forbidden=tuple(dict.fromkeys([*single, *suppressed])),
        phrases=tuple(word for word in words if len(word) > 1),
        begin_forbidden=tuple(
            _ids(settings.get("begin_suppress_tokens"), "begin_suppress_tokens", source)
        ),
        first=_number(settings, "forced_bos_token_id", source),
        last=min(last, default=None),
        min_length=0
        if "min_new_tokens" in settings
        else _number(settings, "min_length", source) or 0,
        max_length=None if length == DEFAULT_LENGTH else length,
        decoding=_decoding(settings, source),
        settings=settings,
        unsupported=_unsupported(settings, source),
    )
    ids = (generation.start, generation.first, generation.last)
    forbidden = (*generation.forbidden, *generation.begin_forbidden, *chain(*generation.phrases))
    highest = max((i for i in (*ids, *forbidden) if i is not None), default=0)
    unsupported = generation.unsupported
    if highest >= vocab and not unsupported:
        unsupported = (
            f"{source}: the generation settings contain token id {highest}, but the vocabulary has "
            f"{vocab:,} tokens; download the model directory again"
        )
    ends = tuple(i for i in ends if i < vocab)
    return replace(generation, ends=ends, unsupported=unsupported)


DEFAULT_LENGTH = 20


def _decoding(settings: Mapping[str, Any], source: str) -> Decoding:
    names = dict(DECODING)
    # `_unsupported` returns a message about this value.
    if settings.get("early_stopping") == "never":
        del names["early_stopping"]
    decoding = {name: settings[key] for key, name in names.items() if key in settings}
    if _samples(settings):
        decoding |= {name: settings.get(key, default) for key, (name, default) in SAMPLING.items()}
    for name in ("no_repeat_ngram_size", "top_k"):
        if decoding.get(name) == 0:
            del decoding[name]
    try:
        return decode(Decoding, decoding)
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error}") from None


def _samples(settings: Mapping[str, Any]) -> bool:
    """Return whether texts are sampled. Sampling with beam search is not supported."""
    return bool(settings.get("do_sample")) and settings.get("num_beams", 1) == 1


def _unsupported(settings: Mapping[str, Any], source: str) -> str:
    """Return an error message about unsupported settings, or an empty string."""
    messages = []
    neutral = dict(KEYS.neutral)
    if settings.get("do_sample"):
        neutral |= SAMPLED
        if not _samples(settings):
            beams = settings["num_beams"]
            messages.append(f"do_sample = true with num_beams = {beams} (set num_beams = 1)")
    if settings.get("early_stopping") == "never":
        messages.append("early_stopping = 'never'")
    messages += KeyTable(neutral=neutral).unsupported(settings)
    if not messages:
        return ""
    return (
        f"{source}: {', '.join(messages)}: not supported by bertkit; remove these settings to "
        "generate texts"
    )


def _words(settings: Mapping[str, Any], source: str) -> list[list[Any]]:
    words = settings.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) and word for word in words):
        raise CheckpointError(f"{source}: bad_words_ids must be a list of lists of token ids")
    return words


def _number(settings: Mapping[str, Any], name: str, source: str) -> int | None:
    value = settings.get(name)
    return None if value is None else _ids([value], name, source)[0]


def _ids(value: Any, name: str, source: str) -> list[int]:
    """Return the value of a setting, one token id or a list of token ids, as a list."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    for i in values:
        if not isinstance(i, int) or isinstance(i, bool) or i < 0:
            raise CheckpointError(f"{source}: {name} must be an integer of at least 0, got {i!r}")
    return values
