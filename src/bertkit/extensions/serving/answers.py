"""Figures of the predictions of pipelines, from the fields of a panel; see `web.Panel`."""

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
    """Return the lines of the second field, without empty lines.

    Raises:
        DataError: If there are none.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError("the second box is empty; write a line for each")
    return lines


def labels(answered: Sequence[Any], text: str, other: str) -> Figure:
    """Return the probability of each label, or the number that a regression predicts."""
    ranked = sorted(answered[0].scores.items(), key=lambda pair: -pair[1])
    number = not all(0 <= score <= 1 for _, score in ranked)
    rows = [(name, score if number else Share(score)) for name, score in ranked]
    table = Table("Labels", rows, ("label", "number" if number else "probability"))
    return Figure("Labels", "What the model says of the text.", [table])


def entities(answered: Sequence[TagAnswer], text: str, other: str) -> Figure:
    """Return the text with its entities marked, and a table of them."""
    (answer,) = answered
    marked = Marked(text, [(one.start, one.end, one.type) for one in answer.entities])
    rows = [(one.text, one.type, Share(one.score)) for one in answer.entities]
    if not rows:
        return Figure("Entities", "The model finds no entity in it.", [marked])
    table = Table("Entities", rows, ("entity", "type", "how sure"))
    return Figure("Entities", "Each entity with its type.", [marked, table])


def answer(answered: Sequence[QuestionAnswer], text: str, other: str) -> Figure:
    """Return the passage with the answer marked, and the most probable answers."""
    (best,) = answered
    ranges = [(best.start, best.end, "")] if best.answer else []
    says = "The answer stands in the passage." if ranges else "The passage does not answer it."
    rows = [(one.text, Share(one.score)) for one in best.best]
    table = Table("The best answers", rows, ("answer", "probability"))
    return Figure("Answer", says, [Marked(other, ranges), table])


def choices(answered: Sequence[ChoiceAnswer], text: str, other: str) -> Figure:
    """Return the probability of each choice; the most probable choice is marked."""
    rows: list[tuple[Cell, Cell]] = []
    for place, (choice, score) in enumerate(zip(lines_of(other), answered[0].scores, strict=True)):
        ranges = [(0, len(choice), "")] if place == answered[0].index else []
        rows.append((Marked(choice, ranges), Share(score)))
    table = Table("Choices", rows, ("choice", "probability"))
    return Figure("Choices", "Probabilities among these choices.", [table])


def record(answered: Sequence[Any], text: str, other: str) -> Figure:
    """Return the table of a prediction of any type: a row per field, or per element of a list."""
    value = msgspec.to_builtins(answered[0])
    rows, names = list[list[Cell]](), ["field", "value"]
    if isinstance(value, dict):
        rows = [[name, _cell(part)] for name, part in value.items()]
    elif isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        rows, names = [[_cell(cell) for cell in part.values()] for part in value], list(value[0])
    else:
        rows = [["", _cell(value)]]
    return Figure("Answer", "The fields of the answer.", [Table("Answer", rows, names)])


def _cell(value: Any) -> Cell:
    """Return a number or a text as it is, and any other value as JSON."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number or isinstance(value, str) else msgspec.json.encode(value).decode()


def candidates(answers: Mapping[str, list[MaskAnswer]]) -> list[Figure]:
    """Return the most probable tokens for each mask, of several models side by side."""
    caption = "A column for each model; each is a list of the likeliest pieces."
    figures = []
    for place in range(min(len(masks) for masks in answers.values())):
        tables = [
            Table(
                f"Pieces by {name}",
                [(one.token, Share(one.score)) for one in masks[place].candidates],
                (name, "probability"),
            )
            for name, masks in answers.items()
        ]
        figures.append(Figure(f"Mask {place + 1}", caption, [Beside("candidates", tables)]))
    return figures


def similar(answered: Sequence[NDArray[np.float32]], text: str, other: str) -> Figure:
    """Return the cosine similarity of other texts to a text, the most similar first."""
    vectors = require_finite(np.stack(answered))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = zip(lines_of(other), (units[1:] @ units[0]).tolist(), strict=True)
    rows = [(one, Share(cosine)) for one, cosine in sorted(pairs, key=lambda pair: -pair[1])]
    table = Table("Similar texts", rows, ("text", "cosine"))
    return Figure("Similar texts", "The cosine of each text’s vector with the first’s.", [table])


def order(answered: Sequence[float], text: str, other: str) -> Figure:
    """Return passages by their score, the best first."""
    lines, scores = lines_of(other), np.array(answered, np.float64)
    shares = 1.0 / (1.0 + np.exp(-scores))
    best = np.argsort(-scores, kind="stable").tolist()
    rows = [(lines[place], Share(float(shares[place]))) for place in best]
    table = Table("Passages", rows, ("passage", "score"))
    return Figure("Passages", "How well each answers the query, from 0 to 1.", [table])
