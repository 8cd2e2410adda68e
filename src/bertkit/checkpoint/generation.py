"""How a folder's model writes: `generation_config.json`, read as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.checkpoint.pooling import read_object
from bertkit.config import decode
from bertkit.errors import CheckpointError, ConfigError
from bertkit.models.decoding import Decoding

FILE = "generation_config.json"

DECODING = {
    "num_beams": "beams",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "no_repeat_ngram_size": "no_repeat",
}
"""Their settings of how words are chosen -> ours; 0 stands for none."""


@dataclass(frozen=True)
class Generation:
    """What a model's texts begin and end with, and how it was meant to write them."""

    start: int | None = None
    """The token that a decoder's text begins with, which is no part of it."""
    ends: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()
    """Tokens that are never written."""
    first: int | None = None
    """The token that every text has first (BART)."""
    decoding: Decoding = field(default_factory=Decoding)


def read_generation(folder: Path, config: Mapping[str, Any]) -> Generation:
    """From its file, and from `config.json` in folders that have none.

    A longest text is not read from there: it cuts texts of many folders after 20 tokens.
    Raises: CheckpointError for what is no setting of this kind.
    """
    path = folder / FILE
    said = {**config, **(read_object(path) if path.exists() else {})}
    place = path if path.exists() else folder / "config.json"
    ends = said.get("eos_token_id")
    words = said.get("bad_words_ids") or []
    if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
        raise CheckpointError(f"{place}: bad_words_ids is no list of lists of ids")
    chosen = {ours: said[theirs] for theirs, ours in DECODING.items() if said.get(theirs)}
    try:
        decoding = decode(Decoding, chosen)
    except ConfigError as error:
        raise CheckpointError(f"{place}: {error}") from None
    return Generation(
        start=_id(said, "decoder_start_token_id", place),
        ends=tuple(
            _number(one, "eos_token_id", place)
            for one in (ends if isinstance(ends, list) else [] if ends is None else [ends])
        ),
        forbidden=tuple(
            _number(word[0], "bad_words_ids", place) for word in words if len(word) == 1
        ),
        first=_id(said, "forced_bos_token_id", place),
        decoding=decoding,
    )


def _id(said: Mapping[str, Any], name: str, place: Path) -> int | None:
    value = said.get(name)
    return None if value is None else _number(value, name, place)


def _number(value: Any, name: str, place: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CheckpointError(f"{place}: {name} = {value!r} is no id of a token")
    return value
