"""What a model answers, as HTML: bars, and texts in which something is marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from bertkit.pipelines import MaskAnswer, NextSentenceAnswer
from bertkit.retrieval.store import Hit
from bertkit.tasks.answer import QuestionAnswer
from bertkit.tasks.choose import ChoiceAnswer
from bertkit.tasks.tag import TagAnswer
from bertkit.view.chart import bar, scatter
from bertkit.view.contexts import Contexts

Cell = str
"""HTML that is ready."""


def figure(name: str, caption: str, html: str) -> str:
    """A part of the page that can be saved as a picture; a script gives it its button."""
    return (
        f'<div data-figure="{escape(name)}" data-caption="{escape(caption)}">'
        f"<div>{html}</div></div>"
    )


def table(caption: str, names: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table of ready cells, the first of each row its head."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<table><caption class="hidden">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def chance(probability: float, kind: str = "") -> Cell:
    """A probability as a bar and a number."""
    return f'<span class="bar">{bar(probability, kind)} {probability:.3f}</span>'


def marked(text: str, ranges: Sequence[tuple[int, int, str]]) -> Cell:
    """A text with parts of it marked, each with a word behind it; they do not overlap."""
    found, end = [], 0
    for start, stop, name in sorted(ranges):
        found += [escape(text[end:start]), f"<mark>{escape(text[start:stop])}"]
        found.append(f' <span class="small">{escape(name)}</span></mark>' if name else "</mark>")
        end = stop
    return f'<p class="passage" dir="auto">{"".join(found)}{escape(text[end:])}</p>'


# ---- one for each kind of answer


def labels(scores: Mapping[str, float], *, number: bool) -> str:
    """A probability for each label, or the number of a regression."""
    ranked = sorted(scores.items(), key=lambda pair: -pair[1])
    rows = [[escape(name), f"{s:.3f}" if number else chance(s)] for name, s in ranked]
    shown = table("Labels", ["label", "number" if number else "probability"], rows)
    return figure("Labels", "What the model says of the text.", shown)


def entities(text: str, found: TagAnswer) -> str:
    """The text with its entities, and a table of them."""
    ranges = [(one.start, one.end, one.type) for one in found.entities]
    rows = [[escape(one.text), escape(one.type), chance(one.score)] for one in found.entities]
    listed = table("Entities", ["entity", "type", "how sure"], rows) if rows else ""
    said = "Each entity with its type." if rows else "The model finds no entity in it."
    return figure("Entities", said, marked(text, ranges) + listed)


def answer(context: str, found: QuestionAnswer) -> str:
    """The passage with the answer in it, and the best ones."""
    ranges = [(found.start, found.end, "")] if found.answer else []
    said = "The answer stands in the passage." if ranges else "The passage does not answer it."
    rows = [[escape(one.text), chance(one.score)] for one in found.best]
    best = table("The best answers", ["answer", "probability"], rows)
    return figure("Answer", said, marked(context, ranges) + best)


def choices(texts: Sequence[str], found: ChoiceAnswer) -> str:
    """A probability for each choice, the best one marked."""
    rows = [
        [f"<mark>{escape(text)}</mark>" if place == found.index else escape(text), chance(score)]
        for place, (text, score) in enumerate(zip(texts, found.scores, strict=True))
    ]
    shown = table("Choices", ["choice", "probability"], rows)
    return figure("Choices", "Probabilities among these choices.", shown)


def next_sentence(found: NextSentenceAnswer) -> str:
    rows = [["it follows", chance(found.next)], ["it does not", chance(1.0 - found.next)]]
    shown = table("Next sentence", ["the second sentence", "probability"], rows)
    return figure("Next sentence", "Whether the second sentence followed the first.", shown)


def candidates(found: Mapping[str, list[MaskAnswer]]) -> str:
    """The likeliest pieces for each mask, of several models side by side."""
    shown = []
    for place in range(min(len(masks) for masks in found.values())):
        tables = []
        for name, masks in found.items():
            rows = [[escape(f.token), chance(f.score)] for f in masks[place].candidates]
            tables.append(table(f"Pieces by {name}", [name, "probability"], rows))
        side = f'<div class="candidates">{"".join(tables)}</div>'
        caption = "A column for each model; each is a list of the likeliest pieces."
        shown.append(figure(f"Mask {place + 1}", caption, side))
    return "".join(shown)


def likeness(texts: Sequence[str], cosines: Sequence[float]) -> str:
    """How near texts are to another, the nearest first."""
    ranked = sorted(zip(texts, cosines, strict=True), key=lambda pair: -pair[1])
    rows = [[escape(text), chance(cosine)] for text, cosine in ranked]
    shown = table("Similar texts", ["text", "cosine"], rows)
    return figure("Similar texts", "The cosine of each text’s vector with the first’s.", shown)


def order(texts: Sequence[str], scores: NDArray[np.float64]) -> str:
    """Passages, the best first."""
    shares = 1.0 / (1.0 + np.exp(-scores))
    rows = [
        [escape(texts[place]), chance(float(shares[place]))]
        for place in np.argsort(-scores, kind="stable").tolist()
    ]
    shown = table("Passages", ["passage", "score"], rows)
    return figure("Passages", "How well each answers the query, from 0 to 1.", shown)


def hits(found: Sequence[Hit]) -> str:
    """Documents with their best passages."""
    rows = [
        [escape(hit.id), f"{hit.score:.3f}", f'<span class="passage">{escape(hit.text)}</span>']
        for hit in found
    ]
    shown = table("Documents", ["document", "score", "passage"], rows)
    said = "The best passage of each document." if rows else "Nothing is found."
    return figure("Documents", said, shown)


def contexts(found: Contexts) -> str:
    """The texts with the word marked, its cosines layer by layer, and a map of each layer."""
    listed = "".join(
        f"<li>{marked(text, [(*place, '')])}</li>"
        for text, place in zip(found.texts, found.ranges, strict=True)
    )
    count = len(found.texts)
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    rows = [
        [f"{a + 1} and {b + 1}", *(_shaded(layer[a][b]) for layer in found.cosines)]
        for a, b in pairs
    ]
    names = ["places", *(_layer(number) for number in range(len(found.cosines)))]
    numbers = [str(number + 1) for number in range(count)]
    maps = "".join(
        scatter(points, numbers, _layer(number)) for number, points in enumerate(found.maps)
    )
    return (
        f'<ol class="places">{listed}</ol>'
        + figure(
            "Cosines",
            "How alike the word’s states are in two texts.",
            table("Cosines of the word in two texts, by layer", names, rows),
        )
        + figure(
            "Maps",
            "Each layer’s states on the plane on which they differ most (PCA).",
            f'<div class="maps">{maps}</div>',
        )
    )


def _layer(number: int) -> str:
    return f"layer {number}" if number else "embedding"


def _shaded(cosine: float) -> Cell:
    """A number on a ground that is darker for a higher cosine."""
    return f'<span class="shade s{round(10 * max(0.0, cosine))}">{cosine:.2f}</span>'
