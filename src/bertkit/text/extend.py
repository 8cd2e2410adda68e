"""Extension of WordPiece vocabularies by new words. Existing ids do not change."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import models

from bertkit.errors import ConfigError
from bertkit.text.tokenizer import Tokenizer

UNUSED = re.compile(r"\[unused\d+\]")
"""Reserved tokens in BERT's vocabularies. New words get the ids of these tokens first."""


def subword_ids(tokenizer: Tokenizer, word: str) -> list[int]:
    """Return the token ids of a word that `count_words` in `vocabulary_training` returned."""
    return [token.id for token in tokenizer.core.model.tokenize(word)]


def fertility(tokenizer: Tokenizer, counts: Mapping[str, int]) -> float:
    """Return the average number of tokens per word, for a text with these word counts."""
    total = sum(count * len(subword_ids(tokenizer, word)) for word, count in counts.items())
    return total / sum(counts.values())


def choose(
    tokenizer: Tokenizer, counts: Mapping[str, int], size: int, *, min_frequency: int = 5
) -> list[str]:
    """Select the words that reduce the number of tokens most if they are added to the vocabulary.

    A new word reduces the number of tokens by its frequency × (its current number of tokens - 1).
    Words with equal reductions are sorted alphabetically. Words with an unknown character are
    skipped.

    Args:
        tokenizer: The tokenizer.
        counts: Frequency of each word.
        size: Maximum number of words to select.
        min_frequency: Minimum frequency of a word.
    """
    saved = {}
    for word, count in counts.items():
        ids = subword_ids(tokenizer, word)
        if count >= min_frequency and len(ids) > 1 and tokenizer.unk not in ids:
            saved[word] = count * (len(ids) - 1)
    return sorted(saved, key=lambda word: (-saved[word], word))[:size]


def extended(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[Tokenizer, dict[int, list[int]]]:
    """Add words to a WordPiece vocabulary.

    The words are first normalized like texts.

    Args:
        tokenizer: The tokenizer.
        words: The new words.

    Returns:
        The new tokenizer, and a mapping from each new id to the previous token ids of its word.

    Raises:
        ConfigError: If the vocabulary is not WordPiece, or an entry is not a single new word.
    """
    core = tokenizer.core
    if not isinstance(core.model, models.WordPiece):
        raise ConfigError(
            f"{tokenizer.source}: only WordPiece vocabularies can be extended; train a new "
            "vocabulary with `bertkit tokenizer train`"
        )
    spec = json.loads(core.to_str())
    vocab: dict[str, int] = spec["model"]["vocab"]
    free = sorted((i, token) for token, i in vocab.items() if UNUSED.fullmatch(token))
    last = tokenizer.vocab_size
    old_ids: dict[int, list[int]] = {}
    for text in words:
        word = core.normalizer.normalize_str(text) if core.normalizer else text
        parts = [part for part, _ in core.pre_tokenizer.pre_tokenize_str(word)]
        if len(parts) != 1:
            raise ConfigError(f"words: expected one word, got {text!r} ({len(parts)} words)")
        if parts[0] in vocab:
            raise ConfigError(f"words: {text!r} is already in the vocabulary; remove the word")
        if free:
            index, unused = free.pop(0)
            del vocab[unused]
            spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] != unused]
        else:
            index, last = last, last + 1
        vocab[parts[0]] = index
        old_ids[index] = subword_ids(tokenizer, parts[0])
    return tokenizer.remade(tokenizers.Tokenizer.from_str(json.dumps(spec))), old_ids
