"""Evaluation of frozen models, layer by layer, on word similarity and words in context.

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
    """Evaluate each layer of a model on word similarity or word senses.

    The model is not trained. Layer 0 is the embedding layer, which is the only layer of a file of
    word vectors. In a causal model, states depend only on previous words. The type of the file
    selects the evaluation: a .jsonl file or WiC's .data.txt contains words in two sentences
    (`word_in_context`). Any other file contains pairs of words with a score (`word_similarity`).

    Args:
        model: Model directory, hub id, directory of an ELMo, or file of word vectors (GloVe or
            word2vec text).
        file: File with two words and a score per line (WordSim-353), .jsonl file with rows {word,
            sentence1, sentence2, label} (WiC), or WiC's own .data.txt.
        train: Words in context from which the threshold of the cosine similarity is chosen. Only
            if `file` contains words in context.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.

    Returns:
        The results of `word_in_context` or `word_similarity`.

    Raises:
        ConfigError: If `train` is set for word similarity.
        DataError: If a row is invalid. The message names the file and line.
    """
    frozen = open_format(model).load_words(LoadSettings(precision, device))
    if suffix(file) == ".jsonl" or file.name.endswith(WIC_SUFFIX):
        return word_in_context(frozen, file, train)
    if train is not None:
        raise ConfigError("train is not supported for word similarity; remove train")
    return word_similarity(frozen, file)


def word_similarity(frozen: FrozenWords, file: Path) -> dict[str, Any]:
    """Compute the rank correlation between cosine similarities and human scores of word pairs.

    Each word is encoded as a separate text.

    Args:
        frozen: The model.
        file: File with word pairs and their scores.

    Returns:
        Spearman's correlation for each layer, the best layer, and the number of pairs. If pairs
        were skipped because a word has no vector, also their number, `missing`.

    Raises:
        DataError: If a row is invalid, or if there is no pair in which both words have a vector.
    """
    pairs = read_word_pairs(file)
    words = list(dict.fromkeys(word for *two, _ in pairs for word in two))
    row_of = {word: i for i, word in enumerate(words)}
    states = frozen.states(frozen.read(words, [(0, len(word)) for word in words]))
    first = states[:, np.array([row_of[word] for word, *_ in pairs])]
    second = states[:, np.array([row_of[word] for _, word, _ in pairs])]
    has_vectors = _has_vector(first) & _has_vector(second)
    if not has_vectors.any():
        raise DataError(
            f"{file}: there is no pair in which both words have a vector; use words in the "
            "language of the model"
        )
    scores = np.array([score for *_, score in pairs])[has_vectors]
    spearman = [
        metrics.regression(row, scores)["spearman"]
        for row in metrics.cosines(first[:, has_vectors], second[:, has_vectors])
    ]
    missing = {} if has_vectors.all() else {"missing": int((~has_vectors).sum())}
    best = int(np.argmax(spearman))
    return {"spearman": spearman, "best_layer": best, "pairs": len(scores), **missing}


def word_in_context(frozen: FrozenWords, file: Path, train: Path | None) -> dict[str, Any]:
    """Evaluate how well the similarity of a word's states in two texts indicates equal meanings.

    If the state of a word is the same in every text, the AUC is 0.5, which is chance level, unless
    the word occurs in two forms.

    Args:
        frozen: The model.
        file: Rows to evaluate.
        train: Rows from which the threshold for each layer is chosen.

    Returns:
        For each layer: `auc`, the probability that a pair with the same meaning has a higher cosine
        similarity than a pair with different meanings and, with `train`, `accuracy`, the accuracy
        with the best threshold. Also the best layer, and the numbers of evaluated and of skipped
        pairs.
    """
    cosines, same, missing = _in_context(frozen, file)
    record: dict[str, Any] = {"auc": [_auc(row, same) for row in cosines]}
    if train is not None:
        train_cosines, train_same, _ = _in_context(frozen, train)
        bounds = np.array([_threshold(row, train_same) for row in train_cosines])
        record["accuracy"] = ((cosines >= bounds[:, None]) == same).mean(1).tolist()
    best = int(np.argmax(record.get("accuracy", record["auc"])))
    return {**record, "best_layer": best, "pairs": len(same), "missing": missing}


def _in_context(
    frozen: FrozenWords, file: Path
) -> tuple[NDArray[np.float32], NDArray[np.bool_], int]:
    """Compute cosine similarities.

    Returns:
        The cosine similarities for each layer, whether the meaning is the same, and the number of
        skipped rows.
    """
    rows, missing = read_in_context(file)
    texts = [text for row in rows for text in row.texts]
    states = frozen.states(frozen.read(texts, [span for row in rows for span in row.spans]))
    first, second = states[:, ::2], states[:, 1::2]
    has_vectors = _has_vector(first) & _has_vector(second)
    same = np.array([row.same for row in rows], dtype=np.bool_)[has_vectors]
    if same.all() or not same.any():
        raise DataError(f"{file}: all rows have the same label; use rows with both labels")
    cosines = metrics.cosines(first[:, has_vectors], second[:, has_vectors])
    # Rounding errors between equal vectors must not count as differences.
    return cosines.round(6), same, missing + int((~has_vectors).sum())


def _has_vector(states: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return a boolean mask of the words that have a vector.

    Shapes:
        states: (layers + 1, S, D); returns (S,).
    """
    return np.asarray(~np.isnan(states).any((0, 2)))


def _auc(scores: NDArray[np.float32], same: NDArray[np.bool_]) -> float:
    above = scores[same][:, None] - scores[~same]
    return float((above > 0).mean() + (above == 0).mean() / 2)


def _threshold(scores: NDArray[np.float32], same: NDArray[np.bool_]) -> float:
    """Return the threshold with the best accuracy.

    It is infinity if predicting different meanings for all pairs is best.
    """
    order = np.argsort(-scores, kind="stable")
    ordered, balance = scores[order], np.cumsum(np.where(same[order], 1, -1))
    # Only the last of several equal scores can be a threshold.
    last = np.append(np.flatnonzero(np.diff(ordered) < 0), len(ordered) - 1)
    best = last[np.argmax(balance[last])]
    return float(ordered[best]) if balance[best] > 0 else math.inf
