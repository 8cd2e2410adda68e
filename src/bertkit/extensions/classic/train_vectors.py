"""Learn static word vectors from raw text (word2vec), and score them against human judgement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertkit.console import say
from bertkit.data.paths import files
from bertkit.extensions.classic import evaluate_words as words
from bertkit.extensions.classic.skipgram import Skipgram, learn, read_text
from bertkit.extensions.classic.word_models import FrozenVectors
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.storage import refuse_used


def train_vectors(
    texts: Sequence[Path], /, *, out: Path, settings: Skipgram | None = None
) -> Vectors:
    """Train static word vectors on text (skip-gram).

    The text is held in memory, four bytes a word. The same files, settings and machine give the
    same file.
    Raises: ConfigError when `out` exists; DataError when a text cannot be read or no word is
    frequent enough; TrainingError when the vectors diverge. Nothing is written then.

    Args:
        texts: Files or folders of .txt, .jsonl or .parquet, also .gz.
        out: The file to be made, in word2vec's text format: .txt, or .txt.gz.
    """
    settings = settings or Skipgram()
    refuse_used(out)
    text = read_text(files(texts), settings.min_count)
    say(
        f"{len(text.ids):,} words of text; {len(text.words):,} different ones occur "
        f"{settings.min_count} times or more"
    )
    vectors = Vectors(text.words, learn(text, settings))
    vectors.save(out)
    say(f"{out}: {len(vectors):,} words × {vectors.table.shape[1]}")
    return vectors


def word_similarity(vectors: Vectors, path: Path) -> dict[str, float]:
    """How well cosines rank pairs of words that people have scored (WordSim-353, SimLex-999).

    Returns: `spearman`, the `pairs` it was computed from, and the `missing` ones, in which a word
    has no vector; these are left out.
    Raises: DataError naming file and line, or where no pair is left.
    """
    scores = words.word_similarity(FrozenVectors(vectors), path)
    (spearman,), missing = scores["spearman"], scores.get("missing", 0)
    return {"spearman": spearman, "pairs": scores["pairs"], "missing": missing}
