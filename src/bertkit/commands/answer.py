"""Commands that ask a model, and score what it answers."""

from __future__ import annotations

import json
from pathlib import Path

from cyclopts import App

from bertkit.console import lines, print_json
from bertkit.errors import ConfigError
from bertkit.nn.precision import Inference
from bertkit.pipelines import answering, pipeline
from bertkit.recipes.evaluate import evaluate as evaluating
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import Reading
from bertkit.text.long import Long

evaluate = App(name="evaluate")
evaluate.command(
    "bertkit.commands.search:judge",
    name="retrieval",
    help="Score a search; prints JSON.",
)
evaluate.command(
    "bertkit.commands.learn:words",
    name="words",
    help="Score what layers know of words; prints JSON.",
)


@evaluate.default
def score(
    model: str,
    file: Path,
    /,
    *,
    task: str | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    header: bool | None = None,
    separator: str | None = None,
    errors: Path | None = None,
    precision: Inference = "fp32",
) -> None:
    """Score a fine-tuned model on a labelled file; prints JSON.

    Parameters
    ----------
    task
        module:Class, for a task from outside the package.
    text
        Column of the text; told by its name and said otherwise, as are the others.
    separator
        What divides columns; by default a tab, or in .csv a comma; `space` cuts a line after its
        first word.
    errors
        A folder, to be made, for the worst answers: errors.html and errors.jsonl.
    """
    ready = answering(model, task, precision=precision)
    reading = Reading(text=text, pair=pair, label=label, header=header, separator=separator)
    examples = read_examples(type(ready.task), file, reading)
    print(json.dumps(evaluating(ready, examples, errors=errors)))


def predict(
    model: str,
    text: list[str] | None = None,
    /,
    *,
    pair: list[str] | None = None,
    file: Path | None = None,
    task: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    header: bool | None = None,
    separator: str | None = None,
    long: Long | None = None,
    precision: Inference = "fp32",
) -> None:
    """Answers to texts: arguments, a file's rows, or the lines of stdin. One line of JSON each.

    Parameters
    ----------
    pair
        What goes with the text: the second of a pair, a question's context, each choice.
    file
        Examples as for training, without their labels; which column is what is said.
    task
        module:Class, for a task from outside the package.
    long
        What to do with texts longer than the model; by default what the task does.
    """
    if file is not None and (text or pair):
        raise ConfigError("--file: its rows are answered; leave out other texts, or the file")
    reading = Reading(text=text_column, pair=pair_column, header=header, separator=separator)
    if file is None and reading != Reading():
        raise ConfigError("--text-column, --pair-column, --header, --separator: go with --file")
    ready = answering(model, task, precision=precision)
    if file is not None:
        examples = read_examples(type(ready.task), file, reading, labelled=False)
        for answer in ready.answers(examples, long=long):
            print_json(answer)
        return
    for answer in ready(((line, pair) if pair else line for line in text or lines()), long=long):
        print_json(answer)


def fill_mask(model: str, text: list[str] | None = None, /, *, top: int = 10) -> None:
    """The likeliest pieces for each [MASK] of a text."""
    texts = text or list(lines())
    for answers in pipeline("fill-mask", model)(texts, top=top):
        print_json(answers)


def next_sentence(model: str, a: str, b: str, /) -> None:
    """How likely sentence B follows sentence A."""
    print_json(pipeline("next-sentence", model)([a], [b])[0])
