"""What the layers of a model know of words, as it is: nothing is learned.

Sources: Finkelstein et al. 2002 (WordSim-353), Hill et al. 2015 (SimLex-999), Pilehvar and
Camacho-Collados 2019 (words in context).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit import metrics
from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.data.paths import suffix
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.classic.word_pairs import WIC_SUFFIX, read_in_context, read_word_pairs
from bertkit.nn.precision import Precision
from bertkit.pipelines.frozen_words import FrozenWords


def evaluate_words(
    model: str | Path | Loaded,
    file: Path,
    /,
    *,
    train: Path | None = None,
    precision: Precision = "fp32",
    device: str = "auto",
) -> dict[str, Any]:
    """Evaluate each layer on word similarity and words in context.

    Layer 0 is the embeddings; a file of word vectors has no other. Of a causal model each word
    knows what stands before it alone.

    A .jsonl file, or WiC's .data.txt, holds words in two sentences (`word_in_context`), any other
    pairs of words with a score (`word_similarity`). Raises: ConfigError for `train` with the
    latter, DataError naming file and line.

    Args:
        model: A model folder or hub id, the folder of an ELMo, or a file of word vectors (GloVe or
            word2vec text).
        file: Two words and a score a line (WordSim-353), or .jsonl rows {word, sentence1,
            sentence2, label} (WiC), or WiC's own .data.txt.
        train: Rows in context to choose the cosine by that tells them apart.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    frozen = open_format(model).load_words(LoadSettings(precision, device))
    if suffix(file) == ".jsonl" or file.name.endswith(WIC_SUFFIX):
        return word_in_context(frozen, file, train)
    if train is not None:
        raise ConfigError("train: cosines of words are ranked, and nothing is chosen; leave it out")
    return word_similarity(frozen, file)


def word_similarity(frozen: FrozenWords, file: Path) -> dict[str, Any]:
    """How well cosines rank pairs of words that people have scored; each word stands alone.

    Returns: Spearman's correlation by layer, and how many pairs are `missing`, if there are any: a
    word of theirs has no vector.
    Raises: DataError naming file and line, or where no pair is left.
    """
    pairs = read_word_pairs(file)
    words = list(dict.fromkeys(word for *two, _ in pairs for word in two))
    place = {word: i for i, word in enumerate(words)}
    states = frozen.states(frozen.read(words, [(0, len(word)) for word in words]))
    first = states[:, np.array([place[word] for word, *_ in pairs])]
    second = states[:, np.array([place[word] for _, word, _ in pairs])]
    known = _known(first) & _known(second)
    if not known.any():
        raise DataError(
            f"{file}: no pair whose words both have a vector; are they of one language?"
        )
    scores = np.array([score for *_, score in pairs])[known]
    spearman = [
        metrics.regression(row, scores)["spearman"]
        for row in metrics.cosines(first[:, known], second[:, known])
    ]
    missing = {} if known.all() else {"missing": int((~known).sum())}
    best = int(np.argmax(spearman))
    return {"spearman": spearman, "best_layer": best, "pairs": len(scores), **missing}


def word_in_context(frozen: FrozenWords, file: Path, train: Path | None) -> dict[str, Any]:
    """Whether a word means the same in two sentences, by the cosine of its states there.

    Returns by layer: `auc`, how often a pair that means the same has the higher cosine than one
    that does not; with `train` also `accuracy`, by the cosine that tells its rows apart best. A
    vector that is the same in every text has one cosine for all, and an auc of 0.5, which is
    chance, but where the word stands in two forms.
    """
    near, same, missing = _in_context(frozen, file)
    record: dict[str, Any] = {"auc": [_auc(row, same) for row in near]}
    if train is not None:
        seen, known, _ = _in_context(frozen, train)
        bounds = np.array([_bound(row, known) for row in seen])
        record["accuracy"] = ((near >= bounds[:, None]) == same).mean(1).tolist()
    best = int(np.argmax(record.get("accuracy", record["auc"])))
    return {**record, "best_layer": best, "pairs": len(same), "missing": missing}


def _in_context(
    frozen: FrozenWords, file: Path
) -> tuple[NDArray[np.float32], NDArray[np.bool_], int]:
    """The cosines of each row's two words by layer, whether they mean the same, and how many rows
    are left out.
    """
    rows, missing = read_in_context(file)
    texts = [text for row in rows for text in row.texts]
    states = frozen.states(frozen.read(texts, [span for row in rows for span in row.spans]))
    first, second = states[:, ::2], states[:, 1::2]
    known = _known(first) & _known(second)
    same = np.array([row.same for row in rows], dtype=np.bool_)[known]
    if same.all() or not same.any():
        raise DataError(f"{file}: its rows are of one label; there is nothing to tell apart")
    near = metrics.cosines(first[:, known], second[:, known])
    # what rounding makes of equal vectors is no difference
    return near.round(6), same, missing + int((~known).sum())


def _known(states: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which words have a vector. Shapes: (layers + 1, S, D) -> (S,)."""
    return np.asarray(~np.isnan(states).any((0, 2)))


def _auc(scores: NDArray[np.float32], same: NDArray[np.bool_]) -> float:
    above = scores[same][:, None] - scores[~same]
    return float((above > 0).mean() + (above == 0).mean() / 2)


def _bound(scores: NDArray[np.float32], same: NDArray[np.bool_]) -> float:
    """The score from which on most are told apart rightly, as the same; inf where none is best."""
    order = np.argsort(-scores, kind="stable")
    ordered, right = scores[order], np.cumsum(np.where(same[order], 1, -1))
    last = np.append(np.flatnonzero(np.diff(ordered) < 0), len(ordered) - 1)  # of equal scores
    best = last[np.argmax(right[last])]
    return float(ordered[best]) if right[best] > 0 else math.inf
