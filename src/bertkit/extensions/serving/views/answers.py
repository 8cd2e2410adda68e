"""What a model answers, as figures: bars, and texts in which something is marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.extensions.generation.pipeline import GeneratedText
from bertkit.extensions.search.store import Hit
from bertkit.extensions.serving.views.contexts import Contexts
from bertkit.pipelines import MaskAnswer, NextSentenceAnswer
from bertkit.tasks.answer import QuestionAnswer
from bertkit.tasks.choose import ChoiceAnswer
from bertkit.tasks.tag import TagAnswer
from bertkit.view.chart import Square, scatter, squares
from bertkit.view.figures import Beside, Cell, Figure, Marked, Shade, Share, Table


def labels(scores: Mapping[str, float], *, number: bool) -> Figure:
    """A probability for each label, or the number of a regression."""
    ranked = sorted(scores.items(), key=lambda pair: -pair[1])
    rows = [(name, score if number else Share(score)) for name, score in ranked]
    table = Table("Labels", rows, ("label", "number" if number else "probability"))
    return Figure("Labels", "What the model says of the text.", [table])


def mixture(weights: Mapping[str, float]) -> Figure:
    """What each layer weighs in a sum that was learned, as `ScalarMix.told` has it."""
    layers = [
        (f"layer {name}" if name.isdecimal() else "embedding", Share(weight))
        for name, weight in weights.items()
        if name != "scale"
    ]
    says = (
        f"What each layer of the ELMo weighs in the sum that the network on top reads (s), which "
        f"is multiplied by γ = {weights['scale']:.3f}. All were learned, and began equal."
    )
    return Figure("Layers", says, [Table("Layers", layers, ("layer", "weight s"))])


def entities(text: str, answer: TagAnswer) -> Figure:
    """The text with its entities, and a table of them."""
    marked = Marked(text, [(one.start, one.end, one.type) for one in answer.entities])
    rows = [(one.text, one.type, Share(one.score)) for one in answer.entities]
    if not rows:
        return Figure("Entities", "The model finds no entity in it.", [marked])
    table = Table("Entities", rows, ("entity", "type", "how sure"))
    return Figure("Entities", "Each entity with its type.", [marked, table])


def answer(context: str, answer: QuestionAnswer) -> Figure:
    """The passage with the answer in it, and the best ones."""
    ranges = [(answer.start, answer.end, "")] if answer.answer else []
    says = "The answer stands in the passage." if ranges else "The passage does not answer it."
    rows = [(one.text, Share(one.score)) for one in answer.best]
    best = Table("The best answers", rows, ("answer", "probability"))
    return Figure("Answer", says, [Marked(context, ranges), best])


def choices(texts: Sequence[str], answer: ChoiceAnswer) -> Figure:
    """A probability for each choice, the best one marked."""
    rows: list[tuple[Cell, Cell]] = []
    for place, (text, score) in enumerate(zip(texts, answer.scores, strict=True)):
        ranges = [(0, len(text), "")] if place == answer.index else []
        rows.append((Marked(text, ranges), Share(score)))
    table = Table("Choices", rows, ("choice", "probability"))
    return Figure("Choices", "Probabilities among these choices.", [table])


def record(answer: msgspec.Struct) -> Figure:
    """An answer of any kind: its fields, and what each holds."""
    rows = [
        (name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in msgspec.to_builtins(answer).items()
    ]
    return Figure(
        "Answer", "The fields of the answer.", [Table("Answer", rows, ("field", "value"))]
    )


def next_sentence(answer: NextSentenceAnswer) -> Figure:
    rows = [("it follows", Share(answer.next)), ("it does not", Share(1.0 - answer.next))]
    table = Table("Next sentence", rows, ("the second sentence", "probability"))
    return Figure("Next sentence", "Whether the second sentence followed the first.", [table])


def candidates(answers: Mapping[str, list[MaskAnswer]]) -> list[Figure]:
    """The likeliest pieces for each mask, of several models side by side."""
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


def likeness(texts: Sequence[str], cosines: Sequence[float]) -> Figure:
    """How near texts are to another, the nearest first."""
    ranked = sorted(zip(texts, cosines, strict=True), key=lambda pair: -pair[1])
    table = Table("Similar texts", [(text, Share(c)) for text, c in ranked], ("text", "cosine"))
    return Figure("Similar texts", "The cosine of each text’s vector with the first’s.", [table])


def order(texts: Sequence[str], scores: NDArray[np.float64]) -> Figure:
    """Passages, the best first."""
    shares = 1.0 / (1.0 + np.exp(-scores))
    best = np.argsort(-scores, kind="stable").tolist()
    rows = [(texts[place], Share(float(shares[place]))) for place in best]
    table = Table("Passages", rows, ("passage", "score"))
    return Figure("Passages", "How well each answers the query, from 0 to 1.", [table])


def hits(documents: Sequence[Hit]) -> Figure:
    """Documents with their best passages."""
    rows = [(hit.id, hit.score, Marked(hit.text)) for hit in documents]
    says = "The best passage of each document." if rows else "Nothing is found."
    return Figure("Documents", says, [Table("Documents", rows, ("document", "score", "passage"))])


def written(text: GeneratedText) -> Figure:
    """What a model wrote, and how likely it found each token."""
    cut = " It was cut here." if text.ended == "length" else ""
    rows = [(repr(one.text)[1:-1], Share(one.probability)) for one in text.each]
    return Figure(
        "Text",
        f"{text.text}{cut}",
        [Table("Its tokens, and how likely the model found each", rows, ("token", "probability"))],
    )


def cosine_table(cosines: Sequence[Sequence[Sequence[float]]]) -> Table:
    """A row for every two texts, a column for each layer, of cosines by layer and texts."""
    count = len(cosines[0])
    rows: list[Sequence[Cell]] = [
        (f"{a + 1} and {b + 1}", *(Shade(layer[a][b]) for layer in cosines))
        for a in range(count)
        for b in range(a + 1, count)
    ]
    names = ("places", *(_layer(number) for number in range(len(cosines))))
    return Table("Cosines of the word in two texts, by layer", rows, names)


def contexts(compared: Contexts) -> list[Figure]:
    """The word's cosines layer by layer, and a map of each layer."""
    numbers = [str(number + 1) for number in range(len(compared.texts))]
    maps = [scatter(points, numbers, _layer(n)) for n, points in enumerate(compared.maps)]
    return [
        Figure(
            "Cosines",
            f"How alike the word’s states are in two texts. Each depends on {compared.sees}.",
            [cosine_table(compared.cosines)],
        ),
        Figure(
            "Maps",
            "Each layer’s states on the plane on which they differ most (PCA).",
            [Beside("maps", maps)],
        ),
    ]


def contexts_by_model(models: Mapping[str, Contexts], layer: int, which: str) -> list[Figure]:
    """A square of cosines for each model, of the layer that `which` names; and those of all."""
    rows = [(name, one.sees, one.cosines) for name, one in models.items()]
    charts = [squares([one], one.name) for one in context_squares(rows, layer)]
    says = f"How alike the word’s states are in every two texts: {which} of each model."
    return [
        Figure("Models", says, [Beside("maps", charts)]),
        *(
            Figure(name, f"Each layer. A state depends on {sees}.", [cosine_table(cosines)])
            for name, sees, cosines in rows
        ),
    ]


def context_squares(
    models: Sequence[tuple[str, str, Sequence[Sequence[Sequence[float]]]]], layer: int
) -> list[Square]:
    """The cosines of one layer, of models by name with what they see; word vectors have but one."""
    return [
        Square(name, f"sees {sees}", cosines[layer if len(cosines) > 1 else 0])
        for name, sees, cosines in models
    ]


def _layer(number: int) -> str:
    return f"layer {number}" if number else "embedding"
