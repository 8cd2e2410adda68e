"""Figures that show the cosine similarities of a word's states in several texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bertkit.extensions.classic.charts import Square, scatter, squares
from bertkit.extensions.classic.contexts import Contexts
from bertkit.view.figures import Beside, Cell, Figure, Shade, Table


def cosine_table(cosines: Sequence[Sequence[Sequence[float]]]) -> Table:
    """Return a table of cosine similarities, with a row for every two texts and a column per layer.

    Args:
        cosines: Cosine similarities, indexed by layer, text, and other text.
    """
    count = len(cosines[0])
    rows: list[Sequence[Cell]] = [
        (f"{a + 1} and {b + 1}", *(Shade(layer[a][b]) for layer in cosines))
        for a in range(count)
        for b in range(a + 1, count)
    ]
    names = ("texts", *(_layer(number) for number in range(len(cosines))))
    return Table("Cosines of the word in two texts, by layer", rows, names)


def contexts_figures(compared: Contexts) -> list[Figure]:
    """Return a figure of the word's cosine similarities by layer, and a figure of maps by layer."""
    numbers = [str(number + 1) for number in range(len(compared.texts))]
    maps = [scatter(points, numbers, _layer(n)) for n, points in enumerate(compared.maps)]
    return [
        Figure(
            "Cosines",
            f"Similarity of the word’s states in two texts. A state depends on {compared.sees}.",
            [cosine_table(compared.cosines)],
        ),
        Figure(
            "Maps", "The two main components of each layer’s states (PCA).", [Beside("maps", maps)]
        ),
    ]


def contexts_by_model(models: Mapping[str, Contexts], layer: int, layer_name: str) -> list[Figure]:
    """Return figures of cosine similarities: one for all models, then one for each model.

    The first figure compares one layer of all models. Each other figure shows all layers of a
    model.

    Args:
        models: Results for each model, by its name.
        layer: Index of the layer that the first figure compares.
        layer_name: Name of this layer.
    """
    rows = [(name, contexts.sees, contexts.cosines) for name, contexts in models.items()]
    charts = [squares([contexts], contexts.name) for contexts in context_squares(rows, layer)]
    caption = f"Similarity of the word’s states in every two texts: {layer_name} of each model."
    return [
        Figure("Models", caption, [Beside("maps", charts)]),
        *(
            Figure(name, f"All layers. A state depends on {sees}.", [cosine_table(cosines)])
            for name, sees, cosines in rows
        ),
    ]


def context_squares(
    models: Sequence[tuple[str, str, Sequence[Sequence[Sequence[float]]]]], layer: int
) -> list[Square]:
    """Return the cosine similarities of each model in one layer.

    Word vectors have only one layer, which is used instead.

    Args:
        models: For each model, its name, the part of the text that its states depend on, and its
            cosine similarities.
        layer: Index of the layer.
    """
    return [
        Square(name, f"uses {sees}", cosines[layer if len(cosines) > 1 else 0])
        for name, sees, cosines in models
    ]


def _layer(number: int) -> str:
    return f"layer {number}" if number else "embedding"
