"""Scores of answers against labels, as fractions from 0 to 1 (correlations: from -1)."""

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
    """A score to choose by: one that is no number is worth least."""
    return -math.inf if math.isnan(score) else score


def classification(
    predicted: Sequence[str], actual: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """accuracy, F1 and Matthews correlation.

    `labels` are all there are. F1 is that of the second when there are two (GLUE's "1"), else the
    mean over those that occur (macro). Matthews is Gorodkin's R_K, 0 where one side is constant.
    """
    places = {label: place for place, label in enumerate(dict.fromkeys([*actual, *predicted]))}
    confusion = np.zeros((len(places), len(places)))
    np.add.at(confusion, ([places[a] for a in actual], [places[p] for p in predicted]), 1)
    of_actual, of_predicted = confusion.sum(1), confusion.sum(0)
    count, right = confusion.sum(), confusion.trace()
    f1 = 2 * confusion.diagonal() / (of_actual + of_predicted)
    if len(labels) == 2:
        f1 = f1[[places[labels[1]]]] if labels[1] in places else np.zeros(1)
    covariance = count * right - of_actual @ of_predicted
    variances = (count**2 - of_actual @ of_actual) * (count**2 - of_predicted @ of_predicted)
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
        The scores of scikit-learn. The ROC AUC of rows with one label is 0.5, and the average
        precision of rows without a positive label is 0.
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
    """Compute the fraction of pairs in which the positive row has the higher score."""
    count = int(positive.sum())
    pairs = count * (len(positive) - count)
    if not pairs:
        return 0.5
    ranks = _ranks(np.asarray(scores, dtype=np.float64))
    return float((ranks[positive].sum() - count * (count + 1) / 2) / pairs)


def average_precision(scores: ArrayLike, positive: NDArray[np.bool_]) -> float:
    """Compute the mean precision at each positive row; rows with equal scores share a rank."""
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, kind="stable")
    ordered, right = values[order], np.cumsum(positive[order])
    last = np.append(np.flatnonzero(np.diff(ordered) < 0), len(ordered) - 1)  # of equal scores
    gained = np.diff(right[last], prepend=0)
    return float((gained * right[last] / (last + 1)).sum() / max(int(right[-1]), 1))


def regression(predicted: ArrayLike, actual: ArrayLike) -> dict[str, float]:
    """Pearson's and Spearman's correlation; 0 where either side is constant."""
    x, y = np.asarray(predicted, dtype=np.float64), np.asarray(actual, dtype=np.float64)
    if len(x) < 2 or np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return {"pearson": 0.0, "spearman": 0.0}
    return {"pearson": _correlation(x, y), "spearman": _correlation(_ranks(x), _ranks(y))}


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    x, y = _deviations(x), _deviations(y)
    # in this order: exactly 1 for x and x
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _deviations(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """From the mean, in units of the largest: squares of tiny and of huge numbers are none."""
    vector = vector - vector.mean()
    return np.asarray(vector / np.abs(vector).max())


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])


def multi_label(
    predicted: Sequence[Collection[str]], actual: Sequence[Collection[str]]
) -> dict[str, float]:
    """F1 over all decisions (micro), its mean over labels (macro), and how often a set is exact."""
    pairs = [(set(p), set(a)) for p, a in zip(predicted, actual, strict=True)]
    right = Counter(label for p, a in pairs for label in p & a)
    decided = Counter(label for p, a in pairs for label in [*p, *a])
    each = [2 * right[label] / decided[label] for label in sorted(decided)]
    return {
        "f1_micro": _ratio(2 * right.total(), decided.total()),
        "f1_macro": float(np.mean(each)) if each else 0.0,
        "exact": _ratio(sum(p == a for p, a in pairs), len(pairs)),
    }


def entities(
    predicted: Sequence[Collection[tuple[int, int, str]]],
    actual: Sequence[Collection[tuple[int, int, str]]],
) -> dict[str, float]:
    """precision, recall and F1 over the entities (start, end, type) of all sentences together.

    An entity counts only with both ends and its type right, as in CoNLL-2003's conlleval.
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
    """Exact match and F1 over words with the best of several right answers.

    Case, punctuation, articles and white space do not count. Where no gold answer has a word, the
    question has no answer, and only an empty prediction is right. Source: the evaluation script
    of SQuAD 2.0 (Rajpurkar et al. 2018), which for answered questions agrees with that of 1.1.
    """
    answer = _squad_words(predicted)
    wanted = [words for words in map(_squad_words, golds) if words] or [[]]
    return float(answer in wanted), max(_squad_overlap(answer, words) for words in wanted)


def _squad_overlap(answer: list[str], wanted: list[str]) -> float:
    if not (answer and wanted):
        return float(answer == wanted)
    return 2 * (Counter(answer) & Counter(wanted)).total() / (len(answer) + len(wanted))


def squad(predicted: Sequence[str], golds: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact and f1, each the mean of `squad_f1` over the questions.

    A question whose golds are none or "" has no answer. Where there are such and others, also
    has_answer_exact, has_answer_f1 and no_answer_f1 (which is no_answer_exact as well).
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
    """rouge1, rouge2 and rougeL: F1 with the best reference of each text, mean over texts.

    Words are runs of a-z and 0-9 in small letters, unstemmed. Source: Lin, "ROUGE" (2004), 2 and
    3.1, in the form of Google's rouge-score.
    """
    rows = []
    for text, several in zip(predicted, references, strict=True):
        words = rouge_words(text)
        each = [_rouge_f1(words, rouge_words(reference)) for reference in several]
        rows.append(np.max(each, axis=0))
    one, two, longest = np.mean(rows, axis=0).tolist()
    return {"rouge1": one, "rouge2": two, "rougeL": longest}


def rouge_words(text: str) -> list[str]:
    """The words that ROUGE counts."""
    return re.findall(r"[a-z0-9]+", text.lower())


def _rouge_f1(predicted: list[str], wanted: list[str]) -> tuple[float, float, float]:
    words = Counter(predicted) & Counter(wanted)
    pairs = Counter(pairwise(predicted)) & Counter(pairwise(wanted))
    total = len(predicted) + len(wanted)
    return (
        _ratio(2 * words.total(), total),
        _ratio(2 * pairs.total(), max(len(predicted) - 1, 0) + max(len(wanted) - 1, 0)),
        _ratio(2 * _longest_common(predicted, wanted), total),
    )


def _longest_common(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence.

    A row of the usual table as the bits of an integer: Hyyrö, "Bit-parallel LCS-length
    computation revisited" (2004).
    """
    places: dict[str, int] = {}
    for i, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << i
    everywhere = (1 << len(one)) - 1
    row = everywhere  # a zero where the length grows
    for word in other:
        match = row & places.get(word, 0)
        row = ((row + match) | (row - match)) & everywhere
    return len(one) - row.bit_count()


def ranking(ranks: Sequence[int], *, of: int) -> dict[str, float]:
    """recall@1, @2 and @5 (those below `of`) and the mean reciprocal rank.

    `ranks` holds the place of the right candidate among `of`, 1 for the first.
    """
    places = np.asarray(ranks)
    recalls = {f"recall@{k}": float((places <= k).mean()) for k in (1, 2, 5) if k < of}
    return {**recalls, "mrr": float((1 / places).mean())}


def random_mrr(candidates: int) -> float:
    """Return the expected reciprocal rank of the right candidate in a random order."""
    return float(np.mean(1 / np.arange(1, candidates + 1)))


def cosines(vectors: NDArray[np.float32], exact: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each vector with the other of its place; 0 where one has no length.

    Shapes: two of (..., D) -> (...).
    """
    norms = np.linalg.norm(vectors, axis=-1) * np.linalg.norm(exact, axis=-1)
    return np.asarray((vectors * exact).sum(-1) / np.maximum(norms, 1e-12))


def spread(each: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation of a score over seeds, and each."""
    sd = float(np.std(each, ddof=1)) if len(each) > 1 else 0.0
    return {"mean": float(np.mean(each)), "sd": sd, "each": list(each)}


def plus_minus(score: Mapping[str, Any]) -> str:
    """What `spread` gives, as people write it."""
    return f"{score['mean']:.3f}" + (f" ± {score['sd']:.3f}" if score["sd"] else "")
