"""Sphinx extension: navigation of the site, links out of it, and generated parts of pages.

It also writes llms.txt, a list of the pages for language models.
"""

from __future__ import annotations

import re
from fnmatch import filter as matching
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from site_reference import PARTS, as_rst

ROOT = Path(__file__).parents[2]
OUTSIDE = ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "notes/*.md"]
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
        "Guides": [
            *("guide/corpus", "guide/pretrain", "guide/continue-pretraining", "guide/scale"),
            *("guide/tracking", "guide/fine-tuning", "guide/few-labels", "guide/zero-shot"),
            *("guide/causal-classifiers", "guide/evaluate", "guide/experiments"),
            *("guide/distill", "guide/checkpoints", "guide/serve"),
            *("guide/deploy", "guide/window", "guide/token-embeddings", "guide/elmo"),
            *("guide/your-own-task", "guide/add-a-family", "guide/langchain"),
            *("guide/llamaindex", "guide/haystack", "guide/transformers-pipelines"),
        ],
        "Reference": [
            *("reference/command-line", "reference/python-api", "reference/settings"),
            *("reference/http-api", "reference/file-formats", "guide/models", "reference/errors"),
        ],
        "Learn": ["course/README", "science/README"],
        "Project": [
            *("faq", "benchmarks", "/CONTRIBUTING", "decisions/README", "/notes/README"),
            *("/CHANGELOG", "/SECURITY"),
        ],
    },
    "docs/course/README": {"Chapters": ["0*"]},
    "docs/science/README": {"Papers": ["*"]},
    "docs/decisions/README": {"Records": ["0*"]},
    "notes/README": {"Months": ["*"]},
}
"""Tables of contents of pages: captions of the sidebar, with pages or patterns."""

PICTURES = (".png", ".svg")
GENERATED = re.compile(r"<!-- generated: (\w+) -->")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Complete the Markdown of a page: links, generated parts, and in the index the navigation."""
    text = source[0]
    if GENERATED.search(text):
        text = GENERATED.sub(lambda mark: PARTS[mark[1]](), text)
    folder = (ROOT / page).parent
    text = LINK.sub(lambda link: link[0] if in_site(app, folder, link[2]) else link[1], text)
    if page.startswith("notes/"):  # Logs match every term.
        text = f"---\nnosearch: true\n---\n{text}"
    contents = NAVIGATION.get(page, {})
    source[0] = text + "".join(toctree(caption, pages) for caption, pages in contents.items())


def in_site(app: Sphinx, folder: Path, target: str) -> bool:
    """Return whether a link leads to a page or a picture of the site, or to another site.

    A link to a file that does not exist counts, so that the build reports it.
    """
    path = (folder / target).resolve()
    pages = {Path(app.env.doc2path(page)) for page in app.env.found_docs}
    return "://" in target or not path.exists() or path in pages or path.suffix in PICTURES


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


def write_list(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt: a summary of bertkit, and links to the pages by caption of the sidebar."""
    if error is not None:
        return
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    title, summary = index.split("\n\n")[:2]
    lines = [title, "", f"> {' '.join(summary.split())}"]
    for caption, patterns in NAVIGATION["docs/index"].items():
        lines += ["", f"## {caption}", ""]
        for pattern in patterns:
            path = pattern[1:] if pattern.startswith("/") else f"docs/{pattern}"
            pages = sorted(matching(app.env.found_docs, path))
            lines += [f"- [{app.env.titles[page].astext()}]({page}.html)" for page in pages]
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def replace_dashes(_app: Sphinx, doctree: nodes.document) -> None:
    """Replace the hyphens before the descriptions of parameters by a dash."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions to Sphinx."""
    app.connect("source-read", read_page)
    app.connect("doctree-read", replace_dashes)
    app.connect("build-finished", write_list)
    app.connect("autodoc-process-docstring", as_rst, priority=400)
    return {"parallel_read_safe": True}
