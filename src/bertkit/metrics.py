"""Metrics of predictions. Values are between 0 and 1, and correlations between -1 and 1."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def worth(score: float) -> float:
    """Convert a score for comparisons: NaN becomes negative infinity, so it is never the best."""
    return -math.inf if math.isnan(score) else score


def classification(
    predicted: Sequence[str], actual: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """Compute accuracy, F1 and Matthews correlation.

    Args:
        predicted: The predicted labels.
        actual: The expected labels.
        labels: All labels. If there are two, `f1` is the F1 of the second label (GLUE's "1").
            Otherwise, it is the mean F1 of all labels that occur (macro F1).

    Returns:
        The scores. The Matthews correlation is Gorodkin's R_K. It is 0 if all predicted labels or
        all expected labels are the same.
    """
    indices = {label: index for index, label in enumerate(dict.fromkeys([*actual, *predicted]))}
    confusion = np.zeros((len(indices), len(indices)))
    np.add.at(confusion, ([indices[a] for a in actual], [indices[p] for p in predicted]), 1)
    num_actual, num_predicted = confusion.sum(1), confusion.sum(0)
    count, right = confusion.sum(), confusion.trace()
    f1 = 2 * confusion.diagonal() / (num_actual + num_predicted)
    if len(labels) == 2:
        f1 = f1[[indices[labels[1]]]] if labels[1] in indices else np.zeros(1)
    covariance = count * right - num_actual @ num_predicted
    variances = (count**2 - num_actual @ num_actual) * (count**2 - num_predicted @ num_predicted)
    return {
        "accuracy": float(_ratio(right, count)),
        "f1": float(f1.mean()) if len(f1) else 0.0,
        "matthews": float(_ratio(covariance, np.sqrt(variances))),
    }


BINARY = ("balanced_accuracy", "roc_auc", "average_precision")


def binary(
    predicted: Sequence[str], probabilities: ArrayLike, actual: Sequence[str], positive: str
) -> dict[str, float]:
    """Compute balanced accuracy, and the ROC AUC and average precision of the positive label.

    Args:
        predicted: The predicted labels.
        probabilities: Probability of the positive label in each row.
        actual: The expected labels.
        positive: Name of the positive label.

    Returns:
        The same scores as in scikit-learn. If all rows have the same expected label, the ROC AUC
        is 0.5. If no row has the positive label, the average precision is 0.
    """
    expected = np.array([label == positive for label in actual])
    right = np.array([p == a for p, a in zip(predicted, actual, strict=True)])
    recalls = [right[expected == side].mean() for side in (False, True) if (expected == side).any()]
    return {
        "balanced_accuracy": float(np.mean(recalls)),
        "roc_auc": roc_auc(probabilities, expected),
        "average_precision": average_precision(probabilities, expected),
    }


def roc_auc(scores: ArrayLike, positive: NDArray[np.bool_]) -> float:
    """Compute the ROC AUC: how often a positive row has a higher score than a negative row.

    A pair with equal scores counts as one half.
    """
    count = int(positive.sum())
    pairs = count * (len(positive) - count)
    if not pairs:
        return 0.5
    ranks = _ranks(np.asarray(scores, dtype=np.float64))
    return float((ranks[positive].sum() - count * (count + 1) / 2) / pairs)


def average_precision(scores: ArrayLike, positive: NDArray[np.bool_]) -> float:
    """Compute the mean of the precision at the rank of each positive row.

    Rows with equal scores share the last of their ranks.
    """
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, kind="stable")
    ordered, right = values[order], np.cumsum(positive[order])
    # Index of the last row with each score.
    last = np.append(np.flatnonzero(np.diff(ordered) < 0), len(ordered) - 1)
    gained = np.diff(right[last], prepend=0)
    return float((gained * right[last] / (last + 1)).sum() / max(int(right[-1]), 1))


def regression(predicted: ArrayLike, actual: ArrayLike) -> dict[str, float]:
    """Compute the Pearson and Spearman correlations of predicted and expected values.

    The correlations are 0 if all predicted values or all expected values are equal.

    Args:
        predicted: The predicted values.
        actual: The expected values.
    """
    x, y = np.asarray(predicted, dtype=np.float64), np.asarray(actual, dtype=np.float64)
    if len(x) < 2 or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return {"pearson": 0.0, "spearman": 0.0}
    return {"pearson": _correlation(x, y), "spearman": _correlation(_ranks(x), _ranks(y))}


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    x, y = _deviations(x), _deviations(y)
    # With this order of operations, the correlation of x with itself is exactly 1.
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _deviations(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the deviations from the mean, divided by the largest absolute deviation.

    The division prevents the squares of tiny or huge deviations from underflowing or overflowing.
    """
    vector = vector - vector.mean()
    return np.asarray(vector / np.abs(vector).max())


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value, starting at 1. Equal values get the mean of their ranks."""
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[indices])


def multi_label(
    predicted: Sequence[Collection[str]], actual: Sequence[Collection[str]]
) -> dict[str, float]:
    """Compute micro F1, macro F1, and the fraction of texts whose labels are all correct.

    Macro F1 is the mean F1 of all labels that are expected or predicted at least once.

    Args:
        predicted: The predicted labels of each text.
        actual: The expected labels of each text.
    """
    pairs = [(set(p), set(a)) for p, a in zip(predicted, actual, strict=True)]
    right = Counter(label for p, a in pairs for label in p & a)
    decided = Counter(label for p, a in pairs for label in [*p, *a])
    scores = [2 * right[label] / decided[label] for label in sorted(decided)]
    return {
        "f1_micro": _ratio(2 * right.total(), decided.total()),
        "f1_macro": float(np.mean(scores)) if scores else 0.0,
        "exact": _ratio(sum(p == a for p, a in pairs), len(pairs)),
    }


def entities(
    predicted: Sequence[Collection[tuple[int, int, str]]],
    actual: Sequence[Collection[tuple[int, int, str]]],
) -> dict[str, float]:
    """Compute precision, recall and F1 over the entities (start, end, type) of all sentences.

    An entity is correct only if its start, end, and type are correct, as in CoNLL-2003's conlleval.

    Args:
        predicted: The predicted entities of each sentence.
        actual: The expected entities of each sentence.
    """
    pairs = [(set(p), set(a)) for p, a in zip(predicted, actual, strict=True)]
    right = sum(len(p & a) for p, a in pairs)
    precision = _ratio(right, sum(len(p) for p, _ in pairs))
    recall = _ratio(right, sum(len(a) for _, a in pairs))
    return {
        "precision": precision,
        "recall": recall,
        "f1": _ratio(2 * precision * recall, precision + recall),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _squad_words(answer: str) -> list[str]:
    return _ARTICLE.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split()


def squad_f1(predicted: str, golds: Sequence[str]) -> tuple[float, float]:
    """Compute exact match and word F1 of an answer, each for the best-matching correct answer.

    Case, punctuation, articles and white space are ignored. If no correct answer contains a word,
    the question has no answer, and only an empty prediction is correct. Source: the evaluation
    script of SQuAD 2.0 (Rajpurkar et al. 2018). For questions with an answer, it computes the same
    scores as the script of SQuAD 1.1.

    Args:
        predicted: The predicted answer.
        golds: The correct answers.
    """
    answer = _squad_words(predicted)
    targets = [words for words in map(_squad_words, golds) if words] or [[]]
    return float(answer in targets), max(_squad_overlap(answer, words) for words in targets)


def _squad_overlap(answer: list[str], target: list[str]) -> float:
    if not (answer and target):
        return float(answer == target)
    return 2 * (Counter(answer) & Counter(target)).total() / (len(answer) + len(target))


def squad(predicted: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute `exact` and `f1`, the means of `squad_f1` over the questions.

    A question has no answer if its list of correct answers is empty or contains only "". If only
    some questions have an answer, the result also contains `has_answer_exact`, `has_answer_f1` and
    `no_answer_f1` (which equals the exact match).

    Args:
        predicted: The predicted answer of each question.
        golds: The correct answers of each question.
    """
    scores = np.array([squad_f1(p, g) for p, g in zip(predicted, golds, strict=True)])
    answered = np.array([any(g) for g in golds])
    exact, f1 = scores.mean(axis=0).tolist()
    scored = {"exact": exact, "f1": f1}
    if answered.any() and not answered.all():
        scored["has_answer_exact"], scored["has_answer_f1"] = scores[answered].mean(axis=0).tolist()
        scored["no_answer_f1"] = float(scores[~answered, 1].mean())
    return scored


def rouge(predicted: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute rouge1, rouge2 and rougeL, each as the F1 averaged over texts.

    If a text has several references, the highest F1 counts. Texts are converted to lower case, and
    words are sequences of a-z and 0-9. Words are not stemmed. Source: Lin, "ROUGE" (2004), sections
    2 and 3.1, as implemented in Google's rouge-score.

    Args:
        predicted: The predicted texts.
        references: The references of each text.
    """
    rows = []
    for text, text_references in zip(predicted, references, strict=True):
        words = rouge_words(text)
        scores = [_rouge_f1(words, rouge_words(reference)) for reference in text_references]
        rows.append(np.max(scores, axis=0))
    rouge1, rouge2, rouge_l = np.mean(rows, axis=0).tolist()
    return {"rouge1": rouge1, "rouge2": rouge2, "rougeL": rouge_l}


def rouge_words(text: str) -> list[str]:
    """Split a text into the words that ROUGE counts."""
    return re.findall(r"[a-z0-9]+", text.lower())


def _rouge_f1(predicted: list[str], target: list[str]) -> tuple[float, float, float]:
    words = Counter(predicted) & Counter(target)
    pairs = Counter(pairwise(predicted)) & Counter(pairwise(target))
    total = len(predicted) + len(target)
    return (
        _ratio(2 * words.total(), total),
        _ratio(2 * pairs.total(), max(len(predicted) - 1, 0) + max(len(target) - 1, 0)),
        _ratio(2 * _longest_common(predicted, target), total),
    )


def _longest_common(first: list[str], second: list[str]) -> int:
    """Return the length of the longest common subsequence.

    Each row of the dynamic programming table is stored as the bits of an integer (Hyyrö,
    "Bit-parallel LCS-length computation revisited", 2004).
    """
    positions: dict[str, int] = {}
    for i, word in enumerate(first):
        positions[word] = positions.get(word, 0) | 1 << i
    all_ones = (1 << len(first)) - 1
    # A zero bit marks a position at which the length increases.
    row = all_ones
    for word in second:
        match = row & positions.get(word, 0)
        row = ((row + match) | (row - match)) & all_ones
    return len(first) - row.bit_count()


def ranking(ranks: Sequence[int], *, of: int) -> dict[str, float]:
    """Compute recall@1, recall@2, recall@5 and the mean reciprocal rank.

    Args:
        ranks: Rank of the correct candidate in each list, starting at 1.
        of: Number of candidates per list. Recall is computed only for ranks below it.
    """
    positions = np.asarray(ranks)
    recalls = {f"recall@{k}": float((positions <= k).mean()) for k in (1, 2, 5) if k < of}
    return {**recalls, "mrr": float((1 / positions).mean())}


def random_mrr(candidates: int) -> float:
    """Return the expected reciprocal rank of the correct candidate if the order is random."""
    return float(np.mean(1 / np.arange(1, candidates + 1)))


def cosines(vectors: NDArray[np.float32], exact: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute the cosine similarity of corresponding vectors, which is 0 if a vector is zero.

    Shapes:
        vectors, exact: (..., D); returns (...).
    """
    norms = np.linalg.norm(vectors, axis=-1) * np.linalg.norm(exact, axis=-1)
    return np.asarray((vectors * exact).sum(-1) / np.maximum(norms, 1e-12))


def mean_and_sd(scores: Sequence[float]) -> dict[str, Any]:
    """Return the mean, the sample standard deviation, and the list of the scores of all seeds."""
    sd = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
    return {"mean": float(np.mean(scores)), "sd": sd, "each": list(scores)}


def plus_minus(score: Mapping[str, Any]) -> str:
    """Format the result of `mean_and_sd` as text, such as "0.912 ± 0.004"."""
    return f"{score['mean']:.3f}" + (f" ± {score['sd']:.3f}" if score["sd"] else "")
