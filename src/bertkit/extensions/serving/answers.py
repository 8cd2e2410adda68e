"""Figures that show predictions on the page "Ask".

`web.Panel` describes the arguments of these functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError
from bertkit.extensions.serving.served import require_finite
from bertkit.pipelines import MaskAnswer
from bertkit.tasks.answer import QuestionAnswer
from bertkit.tasks.choose import ChoiceAnswer
from bertkit.tasks.tag import TagAnswer
from bertkit.view.figures import Beside, Cell, Figure, Marked, Share, Table


def lines_of(text: str) -> list[str]:
    """Return the nonempty lines of the second form field.

    Args:
        text: Text that the user entered in the field.

    Raises:
        DataError: If all lines are empty.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError("the second field is empty; enter one item per line")
    return lines


def labels(answered: Sequence[Any], text: str, other: str) -> Figure:
    """Show the probability of each label, or the value that a regression model predicts."""
    ranked = sorted(answered[0].scores.items(), key=lambda pair: -pair[1])
    number = not all(0 <= score <= 1 for _, score in ranked)
    rows = [(name, score if number else Share(score)) for name, score in ranked]
    table = Table("Labels", rows, ("label", "number" if number else "probability"))
    return Figure("Labels", "The prediction of the model.", [table])


def entities(answered: Sequence[TagAnswer], text: str, other: str) -> Figure:
    """Show the text with its entities marked, and a table of the entities."""
    (answer,) = answered
    marked = Marked(text, [(e.start, e.end, e.type) for e in answer.entities])
    rows = [(e.text, e.type, Share(e.score)) for e in answer.entities]
    if not rows:
        return Figure("Entities", "The model found no entities.", [marked])
    table = Table("Entities", rows, ("entity", "type", "score"))
    return Figure("Entities", "The entities and their types.", [marked, table])


def answer(answered: Sequence[QuestionAnswer], text: str, other: str) -> Figure:
    """Show the passage with the answer marked, and a table of the most probable answers."""
    (best,) = answered
    ranges = [(best.start, best.end, "")] if best.answer else []
    caption = (
        "The answer is marked in the passage." if ranges else "The passage contains no answer."
    )
    rows = [(span.text, Share(span.score)) for span in best.best]
    table = Table("Best answers", rows, ("answer", "probability"))
    return Figure("Answer", caption, [Marked(other, ranges), table])


def choices(answered: Sequence[ChoiceAnswer], text: str, other: str) -> Figure:
    """Show the probability of each choice, with the most probable choice marked."""
    rows: list[tuple[Cell, Cell]] = []
    for index, (choice, score) in enumerate(zip(lines_of(other), answered[0].scores, strict=True)):
        ranges = [(0, len(choice), "")] if index == answered[0].index else []
        rows.append((Marked(choice, ranges), Share(score)))
    table = Table("Choices", rows, ("choice", "probability"))
    return Figure("Choices", "The probability of each choice.", [table])


def record(answered: Sequence[Any], text: str, other: str) -> Figure:
    """Show any prediction as a table, with one row per field, or per element if it is a list."""
    value = msgspec.to_builtins(answered[0])
    rows, names = list[list[Cell]](), ["field", "value"]
    if isinstance(value, dict):
        rows = [[name, _cell(part)] for name, part in value.items()]
    elif isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        rows, names = [[_cell(cell) for cell in part.values()] for part in value], list(value[0])
    else:
        rows = [["", _cell(value)]]
    return Figure("Prediction", "The fields of the prediction.", [Table("Prediction", rows, names)])


def _cell(value: Any) -> Cell:
    """Return numbers and text unchanged, and any other value as JSON."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number or isinstance(value, str) else msgspec.json.encode(value).decode()


def candidates(answers: Mapping[str, list[MaskAnswer]]) -> list[Figure]:
    """Show the most probable tokens for each mask, with a table for each model side by side.

    Args:
        answers: Predictions by model name.
    """
    caption = "The most probable tokens, in one table per model."
    figures = []
    for index in range(min(len(masks) for masks in answers.values())):
        tables = [
            Table(
                f"Tokens of {name}",
                [(c.token, Share(c.score)) for c in masks[index].candidates],
                (name, "probability"),
            )
            for name, masks in answers.items()
        ]
        figures.append(Figure(f"Mask {index + 1}", caption, [Beside("candidates", tables)]))
    return figures


def similar(answered: Sequence[NDArray[np.float32]], text: str, other: str) -> Figure:
    """Show the cosine similarity of each other text to the first text, most similar first."""
    vectors = require_finite(np.stack(answered))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = zip(lines_of(other), (units[1:] @ units[0]).tolist(), strict=True)
    rows = [(line, Share(cosine)) for line, cosine in sorted(pairs, key=lambda pair: -pair[1])]
    table = Table("Similar texts", rows, ("text", "cosine"))
    return Figure("Similar texts", "The cosine similarity of each text to the first text.", [table])


def order(answered: Sequence[float], text: str, other: str) -> Figure:
    """Show the passages and their scores, best first."""
    lines, scores = lines_of(other), np.array(answered, np.float64)
    sigmoid = 1.0 / (1.0 + np.exp(-scores))
    best = np.argsort(-scores, kind="stable").tolist()
    rows = [(lines[index], Share(float(sigmoid[index]))) for index in best]
    table = Table("Passages", rows, ("passage", "score"))
    return Figure("Passages", "The relevance of each passage to the query, from 0 to 1.", [table])
