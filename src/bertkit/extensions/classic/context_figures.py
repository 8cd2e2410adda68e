"""Figures of a word in several texts: the cosines of its states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertkit.extensions.classic.contexts import Contexts
from bertkit.view.chart import Square, scatter, squares
from bertkit.view.figures import Beside, Cell, Figure, Shade, Table


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


def contexts_figures(compared: Contexts) -> list[Figure]:
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
