"""What a model that writes knows without having learned a task: how likely it finds texts.

Source: Radford et al. 2018, section 5, "Zero-shot Behaviors". Labels by a word behind the text are
`evaluate prompts` with no examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit import metrics
from bertkit.checkpoint.directory import Loaded
from bertkit.config import Count
from bertkit.console import say
from bertkit.data.labels import natural
from bertkit.data.multiple_choice import ChoiceQuestion, read_choices
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.score import score_each
from bertkit.nn.precision import Inference
from bertkit.pipelines import pipeline
from bertkit.tasks.classify import Classify, LabelExample
from bertkit.tasks.examples import RowsLike, take_examples
from bertkit.tasks.task import Reading

Ids = list[int]


class ChoicesScore(msgspec.Struct, frozen=True):
    """How often the right choice is the likeliest."""

    accuracy: float
    """By the mean log-probability of a token."""
    summed: float
    """By the log-probability of the whole choice."""
    chance: float
    """What guessing gets."""
    truncated: int
    """Questions whose text lost its beginning, to fit into the model."""
    rows: int


class AcceptabilityScore(msgspec.Struct, frozen=True):
    """How well the likelihood of sentences divides those of two labels."""

    matthews: float
    accuracy: float
    threshold: float
    """The mean log-probability of a token from which a sentence has the second label."""
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
    """Evaluate choices or sentence pairs by the likelihood of a model.

    Without `train` the examples are questions with choices, as for `finetune choose`: the answer is
    the choice with the highest mean log-probability behind its text. Where the text has a place `_`
    with words behind it, each choice is put there, and the rest is scored (Winograd). With `train`
    they are sentences of two labels: the second is given from a mean log-probability on, which
    tells those of `train` apart best.
    Raises: ConfigError for a model that does not write; DataError for what fits neither.

    Args:
        model: A folder, GGUF file or hub id of a model that writes.
        examples: Questions with choices; with --train sentences with one of two labels.
        train: Labelled sentences on which the threshold is chosen.
        rows: Number of examples, evenly spaced; by default all.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    writer = pipeline("generate", model, precision=precision, device=device)
    if writer.reads:
        raise ConfigError("model: reads a text and writes another; take one such as SmolLM2")
    if train is not None:
        learned, scored = take_examples(Classify, train, examples, reading)
        return _acceptability(writer, learned.examples, _some(scored.examples, rows))
    if reading not in (None, Reading()):
        raise ConfigError("text, label: questions with choices need no columns; leave them out")
    if isinstance(examples, Path):
        questions, said = read_choices(examples, True)
        say(said)
        return _choices(writer, _some(questions, rows))
    return _choices(writer, _some([q for q in examples if isinstance(q, ChoiceQuestion)], rows))


R = TypeVar("R")


def _some(examples: Sequence[R], rows: int | None) -> Sequence[R]:
    if rows is None or rows >= len(examples):
        return examples
    return [examples[i] for i in np.linspace(0, len(examples) - 1, rows).astype(int)]


# ---- choices


def _choices(writer: Generate, questions: Sequence[ChoiceQuestion]) -> ChoicesScore:
    asked = [pair for question in questions for pair in _asked(question)]
    where = [question.where for question in questions for _ in question.choices]
    scored = iter(_scores(writer, asked, where))
    means, sums, cut = [], [], 0
    for question in questions:
        own = [next(scored) for _ in question.choices]
        means.append(int(np.argmax([one.mean for one in own])) == question.answer)
        sums.append(int(np.argmax([one.total for one in own])) == question.answer)
        cut += any(one.truncated for one in own)
    chance = float(np.mean([1 / len(question.choices) for question in questions]))
    return ChoicesScore(float(np.mean(means)), float(np.mean(sums)), chance, cut, len(questions))


PLACE = re.compile(r"(?<![\w_])_(?![\w_])")
"""Where a choice is put."""


def _asked(question: ChoiceQuestion) -> Iterator[tuple[str, str]]:
    """For each choice what stands before, and what is scored."""
    text = f"{question.text}\n{question.stem}" if question.stem else question.text
    before, *behind = PLACE.split(text)
    substituted = len(behind) == 1 and any(letter.isalpha() for letter in behind[0])
    for choice in question.choices:
        yield (before + choice, behind[0]) if substituted else (text, f" {choice.strip()}")


# ---- acceptability


def _acceptability(
    writer: Generate, train: Sequence[LabelExample], dev: Sequence[LabelExample]
) -> AcceptabilityScore:
    labels = sorted({str(example.label) for example in train}, key=natural)
    if len(labels) != 2:
        raise DataError(f"train: {len(labels)} labels; likelihood tells two apart")
    for example in (*train, *dev):
        if example.pair is not None:
            raise DataError(f"{example.where}: has a second text; likelihood is that of one")
        if example.label not in labels:
            raise DataError(f"{example.where}: label {example.label!r} is not in the training file")
    asked, where = zip(*((("", one.text), one.where) for one in (*train, *dev)), strict=True)
    scored = _scores(writer, asked, where)
    means = np.array([one.mean for one in scored])
    likely = np.array([example.label == labels[1] for example in train])
    threshold = best_threshold(means[: len(train)], likely)
    given = [labels[int(mean >= threshold)] for mean in means[len(train) :]]
    actual = [str(example.label) for example in dev]
    scores = metrics.classification(given, actual, labels)
    return AcceptabilityScore(scores["matthews"], scores["accuracy"], threshold, len(dev))


def best_threshold(scores: NDArray[np.float64], likely: NDArray[np.bool_]) -> float:
    """From where on `likely` is said with the highest Matthews correlation; between two scores or
    below all, and the lowest of equals. Shapes: (R,) both.
    """
    order = np.argsort(scores)
    ordered, right = scores[order], likely[order]
    cuts = np.append(0, np.flatnonzero(np.diff(ordered) > 0) + 1)  # as many stay below
    below = np.append(0, np.cumsum(right))[cuts]  # of those that are likely
    positive, total = right.sum(), len(right)
    tp, fn = positive - below, below
    tn = cuts - below
    fp = total - positive - tn
    spread = np.sqrt(1.0 * (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    correlation = np.where(spread > 0, (1.0 * tp * tn - 1.0 * fp * fn) / np.maximum(spread, 1), 0)
    cut = cuts[int(correlation.argmax())]
    below_all = ordered[0] - 2.0
    return float(((ordered[cut - 1] if cut else below_all) + ordered[cut]) / 2)


# ---- scores


class _Likelihood(NamedTuple):
    """Of a text behind another: its log-probability in all, and of a token."""

    total: float
    mean: float
    truncated: bool
    """Whether what stands before lost its beginning."""


def _scores(
    writer: Generate, texts: Sequence[tuple[str, str]], where: Sequence[str]
) -> list[_Likelihood]:
    """Of each second text behind its first. Raises: DataError for one that fills the model."""
    tokenizer = writer.tokenizer
    asked: list[tuple[Ids, Ids]] = []
    cut = []
    begin = list(tokenizer.begin)
    firsts, seconds = (tokenizer.ids(list(side)) for side in zip(*texts, strict=True))
    for place, first, second in zip(where, firsts, seconds, strict=True):
        whole = [*begin, *first.tolist(), *second.tolist()]
        # where nothing stands before a text, its first token has no chance
        scored = min(len(second), len(whole) - 1)
        if not 0 < scored < writer.stepper.length:
            raise DataError(
                f"{place}: {len(second)} tokens to be scored, and the model scores 1 to "
                f"{writer.stepper.length - 1}; leave it out"
            )
        kept = whole[-writer.stepper.length :]
        cut.append(len(kept) < len(whole))
        asked.append((kept[:-scored], kept[-scored:]))
    totals = score_each(writer.stepper, asked).tolist()
    return [
        _Likelihood(total, total / len(scored), truncated)
        for total, (_, scored), truncated in zip(totals, asked, cut, strict=True)
    ]
