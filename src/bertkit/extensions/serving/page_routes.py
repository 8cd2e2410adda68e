"""The addresses of the pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from bertkit.extensions.serving.generation_pages import WriterPages
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.pages import Window
from bertkit.extensions.serving.state_pages import StatePages


def pages(registry: ModelRegistry, folders: Sequence[Path]) -> list[Route]:
    """The routes of the pages, which /openapi.json does not describe."""
    window, both = Window(registry, folders), ["GET", "POST"]
    writers, states = WriterPages(window), StatePages(window)
    return [
        Route("/", window.look, methods=both),
        Route("/steps", writers.steps, methods=both),
        Route("/gap", writers.gap, methods=both),
        Route("/ask", window.ask, methods=both),
        Route("/word", window.word, methods=both),
        Route("/growing", states.growing, methods=both),
        Route("/distance", states.distance, methods=both),
        Route("/damage", writers.damage, methods=both),
        Route("/training", window.training),
        Route("/favicon.ico", lambda _: Response(status_code=204)),  # browsers ask for an icon
    ]
