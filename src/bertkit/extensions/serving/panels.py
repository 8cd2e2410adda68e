"""Panels of the page "Ask" for core pipelines, and the selection of a server's panels."""

from __future__ import annotations

from collections.abc import Mapping

from bertkit.extensions.serving import answers
from bertkit.extensions.serving.answers import lines_of
from bertkit.extensions.serving.generated import pipeline_panel
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.pipelines import Embed, FillMask, Rerank, TaskPipeline
from bertkit.web import ROUTES, Panel

PANELS: Mapping[str, Panel] = {
    "predict": Panel(
        "Labels",
        "Text",
        answers.labels,
        TaskPipeline.run,
        ("a clear opinion", "A wonderful film, and too short."),
        other="Second text, if the model classifies pairs",
        items=lambda text, other: [(text, other) if other.strip() else text],
    ),
    "ner": Panel(
        "Entities",
        "Text",
        answers.entities,
        TaskPipeline.run,
        ("a person, an organization and a place", "Marie Curie worked in Paris."),
    ),
    "answer": Panel(
        "Question answering",
        "Question",
        answers.answer,
        TaskPipeline.run,
        (
            "the answer is a span of the passage",
            "How many people live in Paris?",
            "Paris is the capital of France. It has two million inhabitants.",
        ),
        other="Passage",
        items=lambda text, other: [(text, other)],
    ),
    "choose": Panel(
        "Multiple choice",
        "Text",
        answers.choices,
        TaskPipeline.run,
        (
            "one choice is more probable",
            "She opened the umbrella, because",
            "it rained.\nit was dinner.",
        ),
        other="Choices, one per line",
        items=lambda text, other: [(text, lines_of(other))],
    ),
    "fill-mask": Panel(
        "Masked words",
        "Text with [MASK]",
        answers.record,
        FillMask.candidates,
        ("a name is masked", "[MASK] is the capital of France."),
    ),
    "embed": Panel(
        "Similar texts",
        "Text",
        answers.similar,
        Embed.run,
        (
            "one of two texts has the same meaning",
            "How do I reset my password?",
            "I forgot my password.\nThe weather is nice.",
        ),
        other="Other texts, one per line",
        items=lambda text, other: [text, *lines_of(other)],
    ),
    "rerank": Panel(
        "Ranked passages",
        "Query",
        answers.order,
        Rerank.run,
        (
            "one of two passages answers the query",
            "capital of France",
            "Paris is the capital of France.\nBread is made of flour.",
        ),
        other="Passages, one per line",
        items=lambda text, other: [(text, line) for line in lines_of(other)],
    ),
}
"""Panels of core pipelines, by the name of the pipeline."""


def panels(registry: ModelRegistry) -> dict[str, Panel]:
    """Return the panels for the pipelines that a server supports, by the name of the pipeline.

    Args:
        registry: Models of the server.
    """
    pipelines = registry.abilities()
    routes = {r.ability: r.panel for r in ROUTES.values() if r.panel is not None}
    offered = {name: p for name, p in {**PANELS, **routes}.items() if name in pipelines}
    for name, pipeline in pipelines.items():
        if name not in offered and getattr(pipeline, "example", None) is not None:
            offered[name] = pipeline_panel(name, pipeline)
    return offered
