"""More words for a WordPiece vocabulary: no id changes, and each new word is one piece."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import models

from bertkit.errors import ConfigError
from bertkit.text.tokenizer import Tokenizer

UNUSED = re.compile(r"\[unused\d+\]")
"""Pieces that BERT's vocabularies keep free; new words take their places first."""


def pieces(tokenizer: Tokenizer, word: str) -> list[int]:
    """The ids of a word as `text.vocabulary_training.count_words` gives it."""
    return [token.id for token in tokenizer.core.model.tokenize(word)]


def fertility(tokenizer: Tokenizer, counts: Mapping[str, int]) -> float:
    """Pieces a word, on the average of a text with these words."""
    total = sum(count * len(pieces(tokenizer, word)) for word, count in counts.items())
    return total / sum(counts.values())


def choose(
    tokenizer: Tokenizer, counts: Mapping[str, int], size: int, *, min_frequency: int = 5
) -> list[str]:
    """The words that save most pieces where each becomes one: frequency × (pieces - 1).

    Equals in the order of their letters. Words that hold an unknown character are passed over.
    """
    saved = {}
    for word, count in counts.items():
        ids = pieces(tokenizer, word)
        if count >= min_frequency and len(ids) > 1 and tokenizer.unk not in ids:
            saved[word] = count * (len(ids) - 1)
    return sorted(saved, key=lambda word: (-saved[word], word))[:size]


def extended(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[Tokenizer, dict[int, list[int]]]:
    """The vocabulary with these words as pieces; for each new id, the ids it was made of before.

    Words are normalized as text is. Raises: ConfigError for a vocabulary that is no WordPiece, a
    word that is a piece already or twice in the list, and for what is more or less than one word.
    """
    core = tokenizer.core
    if not isinstance(core.model, models.WordPiece):
        raise ConfigError(
            f"{tokenizer.source}: only WordPiece vocabularies can be extended; others are learned "
            "anew with `bertkit tokenizer train`"
        )
    spec = json.loads(core.to_str())
    vocab: dict[str, int] = spec["model"]["vocab"]
    free = sorted((i, piece) for piece, i in vocab.items() if UNUSED.fullmatch(piece))
    last = tokenizer.vocab_size
    made: dict[int, list[int]] = {}
    for given in words:
        word = core.normalizer.normalize_str(given) if core.normalizer else given
        parts = [part for part, _ in core.pre_tokenizer.pre_tokenize_str(word)]
        if len(parts) != 1:
            raise ConfigError(f"words: {given!r} is {len(parts)} words; give one at a time")
        if parts[0] in vocab:
            raise ConfigError(f"words: {given!r} is a piece already; leave it out")
        if free:
            place, unused = free.pop(0)
            del vocab[unused]
            spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] != unused]
        else:
            place, last = last, last + 1
        vocab[parts[0]] = place
        made[place] = pieces(tokenizer, parts[0])
    return tokenizer.remade(tokenizers.Tokenizer.from_str(json.dumps(spec))), made
