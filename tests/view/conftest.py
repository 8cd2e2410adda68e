"""Helper that renders figures as HTML."""

from __future__ import annotations

from bertkit.view.figures import Figure
from bertkit.view.page import render


def html_of(*figures: Figure, alerts: tuple[str, ...] = ()) -> str:
    """Return the main element of a server page with these figures."""
    html = render(
        "window.html", script="window.js", title="", lead="", form=None, texts=(), link=None,
        questions={}, sources=(), alerts=alerts, figures=figures,
    )  # fmt: skip
    return html[html.index("<main>") : html.index("</main>")]
