"""Give a model words of its own field: new pieces, whose vectors start from their old pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from torch import Tensor

from bertkit.checkpoint.folder import load, resave
from bertkit.data.readers import documents, read_text
from bertkit.errors import ConfigError
from bertkit.models.model import empty
from bertkit.storage import refuse_used
from bertkit.text.extend import choose, extended, fertility
from bertkit.text.train import count_words

ROWS = ("encoder.embedding.tokens.weight", "heads.mlm.bias")
"""Weights with a row for each piece."""


def extend(
    model: str | Path,
    texts: Sequence[Path],
    /,
    *,
    out: Path,
    size: int | None = None,
    words: Path | Sequence[str] | None = None,
    min_frequency: int = 5,
) -> dict[str, Any]:
    """Give a model more words, which start from their old pieces.

    Every old id and
    vector stays; a new word begins as the mean of its old pieces, and wants `adapt` or fine-tuning.
    Raises: ConfigError when `out` is in use, for words already there, and for no words at all.

    Args:
        model: A model folder or hub id with a WordPiece vocabulary.
        texts: Files or folders of .txt or .jsonl, also .gz, of your field.
        out: The folder of the larger model, to be made.
        size: As many words: those that save most pieces on the text.
        words: Instead: a file with a word a line.
        min_frequency: How often a word must occur to be chosen.
    """
    refuse_used(out)
    if isinstance(words, Path):
        words = [word for line in read_text(words).splitlines() if (word := line.strip())]
    if (size is None) == (not words):
        raise ConfigError("words: name them, or say with size how many to choose from the texts")
    loaded = load(model)
    tokenizer = loaded.tokenizer
    counts = count_words(
        (document.text for document in documents(texts)),
        tokenizer.core.normalizer,
        tokenizer.core.pre_tokenizer,
        whole=False,
    )
    chosen = list(words or ()) or choose(tokenizer, counts, size or 0, min_frequency=min_frequency)
    if not chosen:
        raise ConfigError(
            f"no word of the texts that takes several pieces occurs {min_frequency} times; there "
            "is nothing to add"
        )
    larger, made = extended(tokenizer, chosen)
    config = loaded.model.config
    grown = empty(
        msgspec.structs.replace(config, vocab=max(config.vocab, larger.vocab_size)),
        tuple(loaded.model.heads),
        labels=loaded.labels,
    )
    weights = dict(loaded.model.state_dict())
    for name in ROWS:
        if name in weights:
            weights[name] = _grown(weights[name], grown.config.vocab, made)
    grown.to_empty(device="cpu")
    grown.load_state_dict(weights)
    resave(loaded, grown, out, tokenizer=larger)
    before, after = (fertility(t, counts) for t in (tokenizer, larger))
    return {
        "words": len(chosen),
        "pieces_a_word": {"before": round(before, 4), "after": round(after, 4)},
        "first": chosen[:20],
    }


def _grown(rows: Tensor, size: int, made: Mapping[int, Sequence[int]]) -> Tensor:
    """The same rows; new ones are the mean of those that a word was made of before."""
    out = rows.new_zeros(size, *rows.shape[1:])
    out[: len(rows)] = rows
    for place, old in made.items():
        out[place] = rows[list(old)].mean(0)
    return out
