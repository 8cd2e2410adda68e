"""Training of static word vectors (word2vec), and their evaluation on word similarity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertkit.console import say
from bertkit.data.paths import files
from bertkit.extensions.classic import evaluate_words as words
from bertkit.extensions.classic.skipgram import Skipgram, learn, read_text
from bertkit.extensions.classic.word_models import FrozenVectors
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.storage import check_unused


def train_vectors(
    texts: Sequence[Path], /, *, out: Path, settings: Skipgram | None = None
) -> Vectors:
    """Train static word vectors on texts with the skip-gram model.

    The texts are kept in memory, with four bytes per word. On one machine, the same files and
    settings always produce the same vectors. The output is written only after training.

    Args:
        texts: Files or directories with texts (.txt, .jsonl or .parquet, also .gz).
        out: Output file in the text format of word2vec, .txt or .txt.gz. Must not exist.
        settings: Training settings. Default: `Skipgram()`.

    Returns:
        The vectors.

    Raises:
        ConfigError: If `out` exists.
        DataError: If a file cannot be read, or fewer than two words are frequent enough.
        TrainingError: If training diverges.
    """
    settings = settings or Skipgram()
    check_unused(out)
    text = read_text(files(texts), settings.min_count)
    say(
        f"{len(text.ids):,} words of text; {len(text.words):,} distinct words occur at least "
        f"{settings.min_count} times"
    )
    vectors = Vectors(text.words, learn(text, settings))
    vectors.save(out)
    say(f"{out}: {len(vectors):,} words × {vectors.table.shape[1]}")
    return vectors


def word_similarity(vectors: Vectors, path: Path) -> dict[str, float]:
    """Compute the rank correlation between cosine similarities and human scores of word pairs.

    Args:
        vectors: The word vectors.
        path: File with word pairs and their scores (WordSim-353, SimLex-999).

    Returns:
        The correlation `spearman`, the number of `pairs` from which it was computed, and the number
        of pairs that are `missing` because a word has no vector.

    Raises:
        DataError: If a row is invalid, or if there is no pair in which both words have a vector.
    """
    scores = words.word_similarity(FrozenVectors(vectors), path)
    (spearman,), missing = scores["spearman"], scores.get("missing", 0)
    return {"spearman": spearman, "pairs": scores["pairs"], "missing": missing}
