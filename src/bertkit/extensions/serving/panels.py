"""The panels of the page "Ask": the labels of their boxes, and the figures of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertkit.errors import DataError
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.search.searcher import Searcher
from bertkit.extensions.serving.served import require_finite
from bertkit.extensions.serving.views import answers
from bertkit.pipelines import Embed, FillMask, NextSentence, Rerank, TaskPipeline
from bertkit.tasks import Task
from bertkit.view.figures import Figure

PIECES, DOCUMENTS = 10, 10
"""How many are shown of each."""

MAX_TOKENS = 100
"""Tokens that a model writes at most."""


class Panel(NamedTuple):
    """A question that the page puts to models: its two boxes, and the figure of the answers."""

    title: str
    text: str
    other: str
    """What the second box is for; "" for none."""
    items: Callable[[str, str], Sequence[Any]]
    figure: Callable[[Sequence[Any], str, str], Figure]
    computed_by: Callable[..., Any]
    options: Mapping[str, Any] = {}
    """What the pipeline is asked besides."""


def lines_of(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError("the second box is empty; write a line for each")
    return lines


def conversation(text: str, before: str) -> list[Message]:
    turns = [line.strip() for line in before.splitlines() if line.strip()]
    if len(turns) % 2:
        raise DataError("the second box ends with your own line; it has two for each turn")
    said = [Message("assistant" if i % 2 else "user", turn) for i, turn in enumerate(turns)]
    return [*said, Message("user", text)]


def _labels(answered: Sequence[Any], text: str, other: str) -> Figure:
    (scores,) = (one.scores for one in answered)
    return answers.labels(scores, number=not all(0 <= s <= 1 for s in scores.values()))


def _likeness(answered: Sequence[Any], text: str, other: str) -> Figure:
    rows = require_finite(np.stack(answered))
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return answers.likeness(lines_of(other), (rows[1:] @ rows[0]).tolist())


PANELS: Mapping[str, Panel] = {
    "predict": Panel(
        "Labels",
        "Text",
        "A second text, for a model of pairs",
        lambda text, other: [(text, other) if other.strip() else text],
        _labels,
        TaskPipeline.run,
    ),
    "ner": Panel(
        "Entities",
        "Text",
        "",
        lambda text, other: [text],
        lambda answered, text, other: answers.entities(text, answered[0]),
        TaskPipeline.run,
    ),
    "answer": Panel(
        "An answer from a passage",
        "Question",
        "Passage",
        lambda text, other: [(text, other)],
        lambda answered, text, other: answers.answer(other, answered[0]),
        TaskPipeline.run,
    ),
    "choose": Panel(
        "One of several",
        "Text",
        "Choices, a line each",
        lambda text, other: [(text, lines_of(other))],
        lambda answered, text, other: answers.choices(lines_of(other), answered[0]),
        TaskPipeline.run,
    ),
    "fill-mask": Panel(
        "Masked words",
        "Text, with [MASK] for a word",
        "",
        lambda text, other: [text],
        lambda answered, text, other: answers.candidates({"": answered[0]})[0],
        FillMask.candidates,
        {"top": PIECES},
    ),
    "next-sentence": Panel(
        "Next sentence",
        "A sentence",
        "Another, which may have followed it",
        lambda text, other: [(text, other)],
        lambda answered, text, other: answers.next_sentence(answered[0]),
        NextSentence.run,
    ),
    "embed": Panel(
        "Similar texts",
        "Text",
        "Others, a line each",
        lambda text, other: [text, *lines_of(other)],
        _likeness,
        Embed.run,
    ),
    "translate": Panel(
        "Translation, or a summary",
        "Text",
        "",
        lambda text, other: [text],
        lambda answered, text, other: answers.written(answered[0]),
        Generate.run,
    ),
    "write": Panel(
        "What comes next",
        "The beginning of a text",
        "",
        lambda text, other: [text],
        lambda answered, text, other: answers.written(answered[0]),
        Generate.run,
        {"max_tokens": MAX_TOKENS},
    ),
    "chat": Panel(
        "Chat",
        "What you say",
        "What was said before, line by line: you, the model, you, …",
        lambda text, other: [conversation(text, other)],
        lambda answered, text, other: answers.written(answered[0]),
        Generate.run,
        {"max_tokens": MAX_TOKENS},
    ),
    "rerank": Panel(
        "Passages in order",
        "Query",
        "Passages, a line each",
        lambda text, other: [(text, line) for line in lines_of(other)],
        lambda answered, text, other: answers.order(
            lines_of(other), np.array(answered, np.float64)
        ),
        Rerank.run,
    ),
    "search": Panel(
        "Search",
        "Query",
        "",
        lambda text, other: [text],
        lambda answered, text, other: answers.hits(answered[0]),
        Searcher.__call__,
        {"top": DOCUMENTS, "where": [], "hybrid": False},
    ),
}
"""By the ability that a model needs for it."""


def task_panel(task: type[Task[Any, Any]]) -> Panel:
    """The panel of a task without one, from what the task declares."""
    text, *others = task.fields
    item = task.example_item
    several = not isinstance(item, str) and not isinstance(item[1], str)

    def items(text: str, other: str) -> Sequence[Any]:
        if not others:
            return [text]
        return [(text, lines_of(other) if several else other)]

    other = f"{others[0].capitalize()}, a line each" if several else "".join(others).capitalize()
    return Panel(
        task.name.capitalize(),
        text.capitalize(),
        other,
        items,
        lambda answered, text, other: answers.record(answered[0]),
        TaskPipeline.run,
    )
