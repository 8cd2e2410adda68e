"""Sphinx extension: navigation of the site, links out of it, and generated parts of pages."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

from site_reference import PARTS, as_rst

ROOT = Path(__file__).parents[2]
OUTSIDE = ["CONTRIBUTING.md", "CHANGELOG.md", "notes/*.md"]
"""Pages of the site outside docs/."""
EXCLUDED = ["build", "src", "tests", "benchmarks", "examples", "configs"]
"""Directories without pages."""

NAVIGATION = {
    "docs/index": {
        "Get started": [
            *("get-started/installation", "get-started/command-line", "get-started/python"),
            "get-started/concepts",
        ],
        "Tutorials": ["tutorial/*"],
        "Guides": ["guide/*"],
        "Reference": [
            *("reference/command-line", "reference/python-api", "reference/settings"),
            *("reference/http-api", "reference/file-formats", "guide/models", "reference/errors"),
        ],
        "Learn": ["course/README", "science/README"],
        "Project": [
            *("faq", "benchmarks", "/CONTRIBUTING", "decisions/README", "/notes/README"),
            "/CHANGELOG",
        ],
    },
    "docs/course/README": {"Chapters": ["0*"]},
    "docs/science/README": {"Papers": ["*"]},
    "docs/decisions/README": {"Records": ["0*"]},
    "notes/README": {"Months": ["*"]},
}
"""Tables of contents of pages: captions of the sidebar, with pages or patterns."""

GENERATED = re.compile(r"<!-- generated: (\w+) -->")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Complete the Markdown of a page: links, generated parts, and in the index the navigation."""
    text = source[0]
    if GENERATED.search(text):
        text = GENERATED.sub(lambda mark: PARTS[mark[1]](), text)
    folder = (ROOT / page).parent
    text = LINK.sub(lambda link: link[0] if in_site(app, folder, link[2]) else link[1], text)
    contents = NAVIGATION.get(page, {})
    source[0] = text + "".join(toctree(caption, pages) for caption, pages in contents.items())


def in_site(app: Sphinx, folder: Path, target: str) -> bool:
    """Return whether a link leads to a page or picture of the site, to the web, or nowhere."""
    path = folder / target
    if "://" in target or not path.exists():
        return True
    inside = os.path.relpath(path.resolve(), ROOT)
    return inside in map(str, map(app.env.doc2path, app.env.found_docs)) or path.suffix == ".svg"


def toctree(caption: str, pages: list[str]) -> str:
    """Return a hidden table of contents, in MyST Markdown."""
    lines = [
        "",
        "",
        "```{toctree}",
        ":hidden:",
        ":glob:",
        f":caption: {caption}",
        "",
        *pages,
        "```",
    ]
    return "\n".join(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions to Sphinx."""
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", as_rst, priority=400)
    return {"parallel_read_safe": True}
