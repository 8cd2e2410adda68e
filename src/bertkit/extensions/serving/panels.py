"""Panels of the page "Ask", of which some pipelines of the core have their own."""

from __future__ import annotations

from collections.abc import Mapping

from bertkit.extensions.serving import answers
from bertkit.extensions.serving.answers import lines_of
from bertkit.extensions.serving.generated import pipeline_panel
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.pipelines import Embed, FillMask, Rerank, TaskPipeline
from bertkit.web import ROUTES, Panel

EXAMPLES = {
    "predict": ("a clear opinion", "A wonderful film, and too short."),
    "ner": ("a person, an organization and a place", "Marie Curie worked in Paris."),
    "answer": (
        "the answer is a span",
        "How many people live in Paris?",
        "Paris is the capital of France. It has two million inhabitants.",
    ),
    "choose": (
        "one is likely",
        "She opened the umbrella, because",
        "it rained.\nit was dinner.",
    ),
    "fill-mask": ("a name is missing", "[MASK] is the capital of France."),
    "embed": (
        "one of two means the same",
        "How do I reset my password?",
        "I forgot my password.\nThe weather is nice.",
    ),
    "rerank": (
        "one of two answers the query",
        "capital of France",
        "Paris is the capital of France.\nBread is made of flour.",
    ),
}
"""What each example shows, and the values of its fields."""

PANELS: Mapping[str, Panel] = {
    "predict": Panel(
        "Labels",
        "Text",
        answers.labels,
        TaskPipeline.run,
        EXAMPLES["predict"],
        other="A second text, for a model of pairs",
        items=lambda text, other: [(text, other) if other.strip() else text],
    ),
    "ner": Panel("Entities", "Text", answers.entities, TaskPipeline.run, EXAMPLES["ner"]),
    "answer": Panel(
        "An answer from a passage",
        "Question",
        answers.answer,
        TaskPipeline.run,
        EXAMPLES["answer"],
        other="Passage",
        items=lambda text, other: [(text, other)],
    ),
    "choose": Panel(
        "One of several",
        "Text",
        answers.choices,
        TaskPipeline.run,
        EXAMPLES["choose"],
        other="Choices, a line each",
        items=lambda text, other: [(text, lines_of(other))],
    ),
    "fill-mask": Panel(
        "Masked words",
        "Text, with [MASK] for a word",
        answers.record,
        FillMask.candidates,
        EXAMPLES["fill-mask"],
    ),
    "embed": Panel(
        "Similar texts",
        "Text",
        answers.similar,
        Embed.run,
        EXAMPLES["embed"],
        other="Others, a line each",
        items=lambda text, other: [text, *lines_of(other)],
    ),
    "rerank": Panel(
        "Passages in order",
        "Query",
        answers.order,
        Rerank.run,
        EXAMPLES["rerank"],
        other="Passages, a line each",
        items=lambda text, other: [(text, line) for line in lines_of(other)],
    ),
}
"""Panels by the names of the pipelines."""


def panels(registry: ModelRegistry) -> dict[str, Panel]:
    """Return the panels of the pipelines of a server, by the names of the pipelines."""
    pipelines = registry.abilities()
    routes = {one.ability: one.panel for one in ROUTES.values() if one.panel is not None}
    offered = {name: one for name, one in {**PANELS, **routes}.items() if name in pipelines}
    for name, pipeline in pipelines.items():
        if name not in offered and getattr(pipeline, "example", None) is not None:
            offered[name] = pipeline_panel(name, pipeline)
    return offered
