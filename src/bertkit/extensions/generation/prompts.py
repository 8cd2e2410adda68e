"""Few-shot classification with prompts that contain a few labeled examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, pstdev
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.config import Count, Seed
from bertkit.data.labels import join_labels
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.score import score
from bertkit.nn.precision import Inference
from bertkit.pipelines import pipeline
from bertkit.storage import check_unused, write_text
from bertkit.tasks.classify import Classify
from bertkit.tasks.examples import RowsLike, take
from bertkit.tasks.labeled_text import LabelExample
from bertkit.view.chart import curves, write_svg

TEMPLATE = "Text: {text}\nLabel: {label}\n\n"
EMPTY_TEXT = "N/A"
"""Text without content, which is used for calibration."""


class PromptScore(msgspec.Struct, frozen=True):
    """Accuracy of a model with `shots` examples in the prompt.

    The examples are sampled several times. Accuracies are means over these samples.
    """

    shots: int
    accuracy: float
    deviation: float
    """Standard deviation of the accuracy over the samples."""
    calibrated: float
    """Accuracy after the score of each label for a text without content is subtracted from its
    score for the evaluated text (Zhao et al. 2021)."""
    calibrated_deviation: float
    """Standard deviation of the calibrated accuracy over the samples."""
    majority: float
    """Accuracy of always predicting the most frequent label."""
    rows: int


def evaluate_prompts(
    model: str | Path | Loaded,
    /,
    *,
    train: RowsLike,
    dev: RowsLike,
    template: str = TEMPLATE,
    words: Sequence[str] = (),
    shots: Sequence[int] = (0, 1, 4),
    repeats: Count = 3,
    rows: Count | None = None,
    out: Path | None = None,
    seed: Seed = 0,
    precision: Inference = "fp32",
    device: str = "auto",
) -> list[PromptScore]:
    r"""Evaluate classification by prompts with a few labeled examples.

    The examples are sampled from train, one label after another. The score of a label is the
    log-probability of its word after the text (Brown et al. 2020, section 2).

    Args:
        model: Model directory, GGUF file or hub id of a decoder-only model.
        train: Labeled texts from which the examples are sampled.
        dev: Labeled texts to evaluate the model on.
        template: Template for each example, with {text} and {label}; \n is a line break.
        words: Word that stands for a label, as LABEL=WORD. Default: the label. Repeatable.
        shots: Number of examples in the prompt. Repeatable.
        repeats: Number of times that the examples are sampled for each number above 0.
        rows: Number of texts from dev to evaluate, evenly spaced. Default: all.
        out: Output directory for a chart of the accuracy by number of examples, and for its values.
            Must not exist.
        seed: Random seed for sampling the examples.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.

    Returns:
        For each number of examples, the mean accuracy and its standard deviation, with and without
        calibration.

    Raises:
        ConfigError: If the model has an encoder, the template has no {text} or does not end with
            {label}, or `out` exists.
        DataError: If a label of dev does not occur in train, or a prompt is too long.
    """
    if out is not None:
        check_unused(out)
    before, suffix = _split(template.replace("\\n", "\n"))
    writer = pipeline("generate", model, precision=precision, device=device)
    if writer.reads:
        raise ConfigError("model: has an encoder; use a decoder-only model such as SmolLM2")
    learned = take(Classify, train, None, "train")
    scored = take(Classify, dev, None, "dev")
    labels = sorted({example.label for example in learned.examples})
    _check_labels(scored.examples, labels)
    words_by_label = _read_words(words, labels)
    # The space before a word is tokenized together with the word.
    space = before[len(before.rstrip(" ")) :]
    before = before.rstrip(" ")
    queries = evenly(scored.examples, rows)
    gold = np.array([labels.index(query.label) for query in queries])
    majority = float(np.bincount(gold).max() / len(gold))

    def format_example(text: str, label: str) -> str:
        return before.replace("{text}", text) + space + words_by_label[label] + suffix

    tokens = [writer.tokenizer.ids([space + words_by_label[x]])[0].tolist() for x in labels]
    results = []
    for count in sorted(set(shots)):
        plain, calibrated = [], []
        for draw in range(repeats if count else 1):
            examples = _sample(learned.examples, labels, count, seed, draw)
            prompt = "".join(format_example(x.text, x.label or "") for x in examples)
            texts = [before.replace("{text}", query.text) for query in queries]
            empty = before.replace("{text}", EMPTY_TEXT)
            logprobs = _label_logprobs(writer, prompt, [*texts, empty], tokens)
            plain.append(float((logprobs[:-1].argmax(1) == gold).mean()))
            calibrated.append(float(((logprobs[:-1] - logprobs[-1]).argmax(1) == gold).mean()))
        scores = mean(plain), pstdev(plain), mean(calibrated), pstdev(calibrated)
        results.append(PromptScore(count, *scores, majority, len(queries)))
    if out is not None:
        _write(out, results)
    return results


def _check_labels(examples: Sequence[LabelExample], labels: Sequence[str]) -> None:
    """Raise DataError if an example has a label that is not in `labels`."""
    for example in examples:
        if example.label not in labels:
            raise DataError(f"{example.where}: no row of train has the label {example.label!r}")


R = TypeVar("R")


def evenly(examples: Sequence[R], count: int | None) -> Sequence[R]:
    """Return `count` evenly spaced examples, or all examples if there are no more than `count`."""
    if count is None or count >= len(examples):
        return examples
    return [examples[i] for i in np.linspace(0, len(examples) - 1, count).astype(int)]


def _split(template: str) -> tuple[str, str]:
    before, label, suffix = template.partition("{label}")
    if "{text}" not in before or not label or suffix.strip():
        raise ConfigError(
            f"template: must contain {{text}} and end with {{label}} (whitespace may follow), got "
            f"{template!r}"
        )
    return before, suffix


def _read_words(words: Sequence[str], labels: Sequence[str]) -> Mapping[str, str]:
    """Return the word for each label, given options of the form LABEL=WORD."""
    words_by_label = {label: label for label in labels}
    for option in words:
        label, equals, word = option.partition("=")
        if not equals or label not in words_by_label or not word.strip():
            raise ConfigError(
                f"words: expected LABEL=WORD, where LABEL is one of {join_labels(labels)}, got "
                f"{option!r}"
            )
        words_by_label[label] = word.strip()
    return words_by_label


def _sample(
    examples: Sequence[LabelExample], labels: Sequence[str], count: int, seed: int, draw: int
) -> list[LabelExample]:
    """Sample `count` examples, one label after another, and shuffle them."""
    rng = np.random.default_rng([seed, draw])
    order = [examples[i] for i in rng.permutation(len(examples))]
    by_label = [[x for x in order if x.label == label] for label in rng.permutation(labels)]
    rounds = [x for i in range(count) for group in by_label for x in group[i : i + 1]]
    chosen = rounds[:count]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def _label_logprobs(
    writer: Generate, prompt: str, texts: Sequence[str], labels: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Compute the log-probability of each label after the prompt and each text.

    Shapes:
        Returns (T, L) for T texts and L labels.
    """
    tokenizer = writer.tokenizer
    before = tokenizer.added[0] if prompt else tokenizer.begin
    begin = [*before, *tokenizer.ids([prompt])[0].tolist()] if prompt else list(before)
    queries = [ids.tolist() for ids in tokenizer.ids(list(texts))]
    try:
        if begin:
            return score(writer.stepper, np.array(begin), queries, labels)
        # The model predicts no probability for a first token that no token precedes.
        rows = [score(writer.stepper, np.array(text[:1]), [text[1:]], labels) for text in queries]
        return np.concatenate(rows)
    except DataError as error:
        raise DataError(f"shots: {error}") from None


def _write(out: Path, results: Sequence[PromptScore]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    lines = {
        "uncalibrated": [(float(result.shots), result.accuracy) for result in results],
        "calibrated": [(float(result.shots), result.calibrated) for result in results],
        "most frequent label": [(float(result.shots), result.majority) for result in results],
    }
    chart = curves(lines, x="examples", y="accuracy", dotted=list(lines))
    write_svg(out / "accuracy.svg", chart)
    write_text(out / "accuracy.json", msgspec.json.encode(results).decode())
