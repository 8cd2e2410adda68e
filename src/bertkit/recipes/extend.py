"""Extension of a model's vocabulary or position embeddings.

New embeddings are computed from the existing embeddings of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from bertkit.checkpoint.directory import load, resave
from bertkit.data.document_readers import documents, read_text
from bertkit.errors import ConfigError
from bertkit.models.surgery import with_positions, with_vocabulary
from bertkit.storage import check_unused
from bertkit.text.extend import choose, extended, fertility
from bertkit.text.vocabulary_training import count_words


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
    """Add words to the vocabulary of a model.

    Existing ids and embeddings do not change. The embedding of a new word is the mean of the
    embeddings of the subwords that it was split into before. Continue pretraining or fine-tune the
    model afterwards.

    Args:
        model: Model directory or hub id, with a WordPiece vocabulary.
        texts: Texts of your domain: .txt, .jsonl or .parquet files, also with .gz, or directories
            of them.
        out: Output directory of the larger model. Must not exist.
        size: Number of words to add. The words that save the most tokens in the texts are added.
        words: File that contains the words to add, one per line. Set either words or size.
        min_frequency: Minimum number of times that an added word occurs in the texts.

    Returns:
        The number of added words, the mean number of tokens per word before and after, and the
        first 20 added words.

    Raises:
        ConfigError: If out exists, a word is already in the vocabulary, or there are no words to
            add.
    """
    check_unused(out)
    if isinstance(words, Path):
        words = [word for line in read_text(words).splitlines() if (word := line.strip())]
    if (size is None) == (not words):
        raise ConfigError("set either words, or size (the number of words to add)")
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
            f"the tokenizer splits no word that occurs at least {min_frequency} times in the "
            "texts; reduce min_frequency, or use other texts"
        )
    larger, subwords = extended(tokenizer, chosen)
    size = max(loaded.model.config.vocab, larger.vocab_size)
    model_with_words = with_vocabulary(loaded.model, size, subwords)
    resave(loaded, model_with_words, out, tokenizer=larger)
    before, after = (fertility(t, counts) for t in (tokenizer, larger))
    return {
        "words": len(chosen),
        "tokens_per_word": {"before": round(before, 4), "after": round(after, 4)},
        "first": chosen[:20],
    }


def extend_positions(
    model: str | Path, /, *, length: int, out: Path, method: Literal["tile", "interpolate"] = "tile"
) -> dict[str, Any]:
    """Add position embeddings to a model, so that it reads longer texts.

    Continue pretraining on long texts afterwards.

    Args:
        model: Model directory or hub id.
        length: New maximum number of tokens of a sequence.
        out: Output directory of the new model. Must not exist.
        method: tile repeats the position embeddings, so that outputs for short texts do not change;
            interpolate stretches them.

    Returns:
        Number of positions before and after.

    Raises:
        ConfigError: If the model has no learned position embeddings, or already has `length` or
            more of them.

    Source:
        Beltagy et al. 2020, section 5.
    """
    check_unused(out)
    loaded = load(model)
    longer = with_positions(loaded.model, length, method)
    resave(loaded, longer, out, length=length)
    return {"positions": {"before": loaded.model.config.max_positions, "after": length}}
