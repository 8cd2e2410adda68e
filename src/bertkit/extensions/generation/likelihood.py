"""Zero-shot evaluation of generative models by the likelihood that they assign to texts.

See also `evaluate prompts`, which predicts labels from the probability of a word after a text.

Source: Radford et al. 2018, section 5, "Zero-shot Behaviors".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit import metrics
from bertkit.checkpoint.directory import Loaded
from bertkit.config import Count
from bertkit.console import say
from bertkit.data.labels import label_sort_key
from bertkit.data.multiple_choice import ChoiceQuestion, read_choices
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.prompts import evenly
from bertkit.extensions.generation.score import score_each
from bertkit.nn.precision import Inference
from bertkit.pipelines import pipeline
from bertkit.tasks.classify import Classify
from bertkit.tasks.examples import RowsLike, take
from bertkit.tasks.labeled_text import LabelExample
from bertkit.tasks.task import Reading

Ids = list[int]


class ChoicesScore(msgspec.Struct, frozen=True):
    """Accuracy of predicting the most probable choice of each question."""

    accuracy: float
    """Accuracy if choices are compared by their mean log-probability per token."""
    summed: float
    """Accuracy if choices are compared by their total log-probability."""
    chance: float
    """Accuracy of random guessing."""
    truncated: int
    """Number of questions whose text was truncated at the start."""
    rows: int


class AcceptabilityScore(msgspec.Struct, frozen=True):
    """Scores of predicting one of two labels from the likelihood of a sentence."""

    matthews: float
    """Matthews correlation coefficient."""
    accuracy: float
    threshold: float
    """Mean log-probability per token from which on the second label is predicted."""
    rows: int


def evaluate_likelihood(
    model: str | Path | Loaded,
    examples: Path | Sequence[ChoiceQuestion] | Sequence[LabelExample],
    /,
    *,
    train: RowsLike | None = None,
    rows: Count | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
    reading: Reading | None = None,
) -> ChoicesScore | AcceptabilityScore:
    """Evaluate a model by the likelihood of choices or labeled sentences.

    Without `train`, the examples are questions with choices, as for `finetune choose`. The
    prediction is the choice that has the highest mean log-probability per token after the text. If
    the text contains a blank `_` followed by words, the blank is replaced with each choice, and the
    words after it are scored instead (Winograd).

    With `train`, each example is a sentence with one of two labels. The second label is predicted
    if the mean log-probability per token reaches a threshold. The threshold is optimized on
    `train`.

    Args:
        model: Model directory, GGUF file or hub id of a decoder-only model.
        examples: Questions with choices or, with --train, sentences with one of two labels.
        train: Labeled sentences on which the threshold is optimized.
        rows: Number of examples to evaluate, evenly spaced. Default: all.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
        reading: Columns and format of the examples.

    Returns:
        The scores.

    Raises:
        ConfigError: If the model has an encoder.
        DataError: If the examples are not questions with choices, or the training sentences do not
            have exactly two labels.
    """
    writer = pipeline("generate", model, precision=precision, device=device)
    if writer.reads:
        raise ConfigError("model: has an encoder; use a decoder-only model such as SmolLM2")
    if train is not None:
        learned = take(Classify, train, reading, "train").examples
        scored = take(Classify, examples, reading, "dev").examples
        return _acceptability(writer, learned, evenly(scored, rows))
    if reading not in (None, Reading()):
        raise ConfigError(
            "reading: questions with choices have fixed fields; remove the column options"
        )
    if isinstance(examples, Path):
        questions, summary = read_choices(examples, True)
        say(summary)
        return _choices(writer, evenly(questions, rows))
    return _choices(writer, evenly([q for q in examples if isinstance(q, ChoiceQuestion)], rows))


# ---- Choices


def _choices(writer: Generate, questions: Sequence[ChoiceQuestion]) -> ChoicesScore:
    """Compute the accuracy on questions with choices."""
    pairs = [pair for question in questions for pair in _contexts(question)]
    sources = [question.where for question in questions for _ in question.choices]
    scored = iter(_likelihoods(writer, pairs, sources))
    means, sums, truncated = [], [], 0
    for question in questions:
        scores = [next(scored) for _ in question.choices]
        means.append(int(np.argmax([score.mean for score in scores])) == question.answer)
        sums.append(int(np.argmax([score.total for score in scores])) == question.answer)
        truncated += any(score.truncated for score in scores)
    chance = float(np.mean([1 / len(question.choices) for question in questions]))
    accuracies = float(np.mean(means)), float(np.mean(sums))
    return ChoicesScore(*accuracies, chance, truncated, len(questions))


BLANK = re.compile(r"(?<![\w_])_(?![\w_])")
"""Pattern of the blank that is replaced with a choice."""


def _contexts(question: ChoiceQuestion) -> Iterator[tuple[str, str]]:
    """Yield, for each choice, the context and the text after it whose likelihood is compared."""
    text = f"{question.text}\n{question.stem}" if question.stem else question.text
    before, *rest = BLANK.split(text)
    substituted = len(rest) == 1 and any(letter.isalpha() for letter in rest[0])
    for choice in question.choices:
        yield (before + choice, rest[0]) if substituted else (text, f" {choice.strip()}")


# ---- Acceptability


def _acceptability(
    writer: Generate, train: Sequence[LabelExample], dev: Sequence[LabelExample]
) -> AcceptabilityScore:
    """Optimize the threshold on `train`, and compute the scores on `dev`."""
    labels = sorted({str(example.label) for example in train}, key=label_sort_key)
    if len(labels) != 2:
        raise DataError(f"train: must contain exactly two labels, got {len(labels)}")
    for example in (*train, *dev):
        if example.pair is not None:
            raise DataError(f"{example.where}: a second text is not supported; remove the text")
        if example.label not in labels:
            raise DataError(f"{example.where}: label {example.label!r} is not in the training file")
    pairs, sources = zip(*((("", x.text), x.where) for x in (*train, *dev)), strict=True)
    means = np.array([score.mean for score in _likelihoods(writer, pairs, sources)])
    likely = np.array([example.label == labels[1] for example in train])
    threshold = best_threshold(means[: len(train)], likely)
    predicted = [labels[int(mean >= threshold)] for mean in means[len(train) :]]
    actual = [str(example.label) for example in dev]
    scores = metrics.classification(predicted, actual, labels)
    return AcceptabilityScore(scores["matthews"], scores["accuracy"], threshold, len(dev))


def best_threshold(scores: NDArray[np.float64], likely: NDArray[np.bool_]) -> float:
    """Find the threshold that separates likely from unlikely sentences best.

    Sentences with at least this score are predicted to be likely. The threshold maximizes the
    Matthews correlation of the predictions with `likely`. It is the midpoint between two adjacent
    scores, or lower than all scores. If several thresholds are equally good, it is the lowest.

    Args:
        scores: Score of each sentence.
        likely: Whether each sentence has the label of likely sentences.

    Shapes:
        scores, likely: (R,).
    """
    order = np.argsort(scores)
    ordered, positives = scores[order], likely[order]
    # For each possible threshold: the number of lower scores, and how many of them are positive.
    splits = np.append(0, np.flatnonzero(np.diff(ordered) > 0) + 1)
    below = np.append(0, np.cumsum(positives))[splits]
    positive, total = positives.sum(), len(positives)
    tp, fn = positive - below, below
    tn = splits - below
    fp = total - positive - tn
    scale = np.sqrt(1.0 * (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    correlation = np.where(scale > 0, (1.0 * tp * tn - 1.0 * fp * fn) / np.maximum(scale, 1), 0)
    best = splits[int(correlation.argmax())]
    below_all = ordered[0] - 2.0
    return float(((ordered[best - 1] if best else below_all) + ordered[best]) / 2)


# ---- Scores


class _Likelihood(NamedTuple):
    """Log-probability of a text after its context: the total, and the mean per token."""

    total: float
    mean: float
    truncated: bool
    """Whether the context was truncated at its start."""


def _likelihoods(
    writer: Generate, texts: Sequence[tuple[str, str]], sources: Sequence[str]
) -> list[_Likelihood]:
    """Compute the likelihood of the second text in each pair, given the first.

    Raises:
        DataError: If a second text has no tokens to score or is too long for the model.
    """
    tokenizer = writer.tokenizer
    pairs: list[tuple[Ids, Ids]] = []
    truncated = []
    begin = list(tokenizer.begin)
    contexts, endings = (tokenizer.ids(list(side)) for side in zip(*texts, strict=True))
    for source, context, ending in zip(sources, contexts, endings, strict=True):
        ids = [*begin, *context.tolist(), *ending.tolist()]
        # The model predicts no probability for a first token that no token precedes.
        scored = min(len(ending), len(ids) - 1)
        if not 0 < scored < writer.stepper.length:
            raise DataError(
                f"{source}: the text to score must have 1 to {writer.stepper.length - 1} tokens, "
                f"got {len(ending)}; remove the row"
            )
        last = ids[-writer.stepper.length :]
        truncated.append(len(last) < len(ids))
        pairs.append((last[:-scored], last[-scored:]))
    totals = score_each(writer.stepper, pairs).tolist()
    return [
        _Likelihood(total, total / len(ending), is_truncated)
        for total, (_, ending), is_truncated in zip(totals, pairs, truncated, strict=True)
    ]
