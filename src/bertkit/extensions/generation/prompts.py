"""Labels by prompting: a template, a few examples, and which label the model finds likeliest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, pstdev

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.config import Count, Seed
from bertkit.data.labels import listed
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.score import score
from bertkit.nn.precision import Inference
from bertkit.pipelines import pipeline
from bertkit.storage import refuse_used, write_text
from bertkit.tasks.classify import Classify, LabelExample
from bertkit.tasks.examples import RowsLike, take_examples
from bertkit.view.chart import curves, write_svg

TEMPLATE = "Text: {text}\nLabel: {label}\n\n"
EMPTY_TEXT = "N/A"
"""A text that says nothing, by which answers are calibrated."""


class PromptScore(msgspec.Struct, frozen=True):
    """Accuracy with so many examples in the prompt: means over the draws of examples."""

    shots: int
    accuracy: float
    deviation: float
    """Standard deviation over the draws."""
    calibrated: float
    """With each label's probability behind a text that says nothing taken off: Zhao et al. 2021."""
    calibrated_deviation: float
    commonest: float
    """Accuracy of always saying the commonest label."""
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
    draws: Count = 3,
    rows: Count | None = None,
    out: Path | None = None,
    seed: Seed = 0,
    precision: Inference = "fp32",
    device: str = "auto",
) -> list[PromptScore]:
    """Evaluate labels predicted from prompts with k examples.

    Examples are sampled from train, one label after the other. The score of a label is the
    log-probability of its word after the text (Brown et al. 2020, section 2).

    Args:
        model: A folder, GGUF file or hub id of a model that writes.
        train: Labelled texts to draw examples from.
        dev: Labelled texts to score on.
        template: How an example is written, with {text} and {label}; \\n is a line break.
        words: What stands for a label, as LABEL=WORD; by default the label itself. May be repeated.
        shots: Examples in the prompt; may be repeated.
        draws: Draws of examples for each k above 0.
        rows: Rows of dev that are scored, evenly spaced; by default all.
        out: Folder for a chart of accuracy by k, and the numbers.
        seed: Random seed of the examples.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.

    Returns:
        For each k the mean accuracy and its standard deviation, with calibration and without.

    Raises:
        ConfigError: If the template has no {text}, or does not end with {label}, or `out` exists.
        DataError: If train lacks a label of dev, or a prompt is too long.
    """
    if out is not None:
        refuse_used(out)
    before, behind = _split(template.replace("\\n", "\n"))
    writer = pipeline("generate", model, precision=precision, device=device)
    if writer.reads:
        raise ConfigError("model: reads a text and writes another; take one such as SmolLM2")
    learned, scored = take_examples(Classify, train, dev, None)
    labels = sorted({one.label for one in learned.examples})
    _check_labels(scored.examples, labels)
    spoken = _spoken(words, labels)
    space = before[len(before.rstrip(" ")) :]  # a word begins with its space
    before = before.rstrip(" ")
    asked = _evenly(scored.examples, rows)
    gold = np.array([labels.index(one.label) for one in asked])
    commonest = float(np.bincount(gold).max() / len(gold))

    def example(text: str, label: str) -> str:
        return before.replace("{text}", text) + space + spoken[label] + behind

    tokens = [writer.tokenizer.ids([space + spoken[label]])[0].tolist() for label in labels]
    results = []
    for count in sorted(set(shots)):
        plain, calibrated = [], []
        for draw in range(draws if count else 1):
            shown = _drawn(learned.examples, labels, count, seed, draw)
            prompt = "".join(example(one.text, one.label or "") for one in shown)
            texts = [before.replace("{text}", one.text) for one in asked]
            empty = before.replace("{text}", EMPTY_TEXT)
            chances = _chances(writer, prompt, [*texts, empty], tokens)
            plain.append(float((chances[:-1].argmax(1) == gold).mean()))
            calibrated.append(float(((chances[:-1] - chances[-1]).argmax(1) == gold).mean()))
        scores = mean(plain), pstdev(plain), mean(calibrated), pstdev(calibrated)
        results.append(PromptScore(count, *scores, commonest, len(asked)))
    if out is not None:
        _write(out, results)
    return results


def _check_labels(examples: Sequence[LabelExample], labels: Sequence[str]) -> None:
    """Raise DataError if an example has another label."""
    for example in examples:
        if example.label not in labels:
            raise DataError(f"{example.where}: no row of train has the label {example.label!r}")


def _evenly(examples: Sequence[LabelExample], count: int | None) -> list[LabelExample]:
    """Return evenly spaced examples, or all."""
    if count is None or count >= len(examples):
        return list(examples)
    return [examples[i] for i in np.linspace(0, len(examples) - 1, count).astype(int)]


def _split(template: str) -> tuple[str, str]:
    before, label, behind = template.partition("{label}")
    if "{text}" not in before or not label or behind.strip():
        raise ConfigError(
            f"template: {template!r} must have {{text}}, and then {{label}} with nothing but white "
            "space behind"
        )
    return before, behind


def _spoken(words: Sequence[str], labels: Sequence[str]) -> Mapping[str, str]:
    said = {label: label for label in labels}
    for one in words:
        label, equals, word = one.partition("=")
        if not equals or label not in said or not word.strip():
            raise ConfigError(f"words: {one!r} is no LABEL=WORD; labels are {listed(labels)}")
        said[label] = word.strip()
    return said


def _drawn(
    examples: Sequence[LabelExample], labels: Sequence[str], count: int, seed: int, draw: int
) -> list[LabelExample]:
    """`count` examples, each label in turn, in an order of their own."""
    rng = np.random.default_rng([seed, draw])
    order = [examples[i] for i in rng.permutation(len(examples))]
    by_label = [[one for one in order if one.label == label] for label in rng.permutation(labels)]
    turns = [one for turn in range(count) for each in by_label for one in each[turn : turn + 1]]
    chosen = turns[:count]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def _chances(
    writer: Generate, prompt: str, texts: Sequence[str], labels: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """The log-probability of each label behind the prompt and each text. Shapes: (T, L)."""
    tokenizer = writer.tokenizer
    before = tokenizer.added[0] if prompt else tokenizer.begin
    begin = [*before, *tokenizer.ids([prompt])[0].tolist()] if prompt else list(before)
    asked = [ids.tolist() for ids in tokenizer.ids(list(texts))]
    try:
        if begin:
            return score(writer.stepper, np.array(begin), asked, labels)
        # nothing stands before a text: its first token has no chance
        each = [score(writer.stepper, np.array(text[:1]), [text[1:]], labels) for text in asked]
        return np.concatenate(each)
    except DataError as error:
        raise DataError(f"shots: {error}") from None


def _write(out: Path, results: Sequence[PromptScore]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    lines = {
        "as it is": [(float(one.shots), one.accuracy) for one in results],
        "calibrated": [(float(one.shots), one.calibrated) for one in results],
        "commonest label": [(float(one.shots), one.commonest) for one in results],
    }
    chart = curves(lines, x="examples", y="accuracy", dotted=list(lines))
    write_svg(out / "accuracy.svg", chart)
    write_text(out / "accuracy.json", msgspec.json.encode(results).decode())
