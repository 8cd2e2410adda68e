"""Pages: one base template with one style sheet; each is one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bertkit.errors import ConfigError
from bertkit.storage import refuse_used, write_text
from bertkit.view import figures
from bertkit.view.figures import Form
from bertkit.view.page_data import Explanation, Source

FILES = Path(__file__).parent / "pages"

PICTURES = (
    "data.js",
    "dom.js",
    "paint.js",
    "picture.js",
    "heads.js",
    "slider.js",
    "square.js",
    "lines.js",
    "steps.js",
)
"""What draws heads and tokens."""

MODULES = (
    *PICTURES,
    "ask.js",
    "patterns.js",
    "walk.js",
    "embeddings.js",
    "attention.js",
    "masked.js",
    "layers.js",
    "main.js",
)
"""Each after those that it imports. In the page they are one script, and share their names."""

ERRORS = ("errors.js",)
"""That of a list of errors."""

FIGURES = ("dom.js", "paint.js", "picture.js", "ask.js", "window.js")
"""Those of a page whose figures are made by the server."""

IMPORT = re.compile(r"^import (\{[^}]*\} from )?\"[^\"]*\";\n", re.M)


def render(
    template: str | Path, *, modules: Sequence[str] = (), forms: bool = False, **values: Any
) -> str:
    """A page from a template of bertkit, or a file of one's own that extends `base.html`.

    `values` are data: the template escapes them, but for the charts of `view/chart.py`. The policy
    in the page's head lets the browser run the script of `modules` and no other, send `forms` to
    the page's own server and load nothing, so that no text can do more than be read.
    """
    folder, name = (
        (FILES, template) if isinstance(template, str) else (template.parent, template.name)
    )
    style = _read("page.css") + _read("chart.css")
    script = "\n".join(map(_module, modules))
    policy = [
        "default-src 'none'",
        f"style-src {_hash(style)}",
        *([f"script-src {_hash(script)}"] if script else []),
        "base-uri 'none'",
        f"form-action '{'self' if forms else 'none'}'",
    ]
    return (
        environment(folder)
        .get_template(name)
        .render(
            {"brand": "", "links": {}, "here": "", "refresh": None, **values},
            policy="; ".join(policy),
            style=Markup(style),
            script=Markup(script),
        )
    )


@cache
def environment(folder: Path, *, autoescape: bool = True) -> Environment:
    """Return the templates of a directory and of bertkit, with tests for the parts of a page.

    Cached, because an environment keeps its compiled templates.
    """
    made = Environment(
        loader=FileSystemLoader([folder, FILES]),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for kind in (
        figures.Share,
        figures.Shade,
        figures.Marked,
        figures.Spans,
        figures.Table,
        figures.Beside,
        figures.Lines,
    ):
        made.tests[kind.__name__.lower()] = lambda part, kind=kind: isinstance(part, kind)
    made.filters["pieces"] = figures.pieces
    return made


def write_report(path: Path, template: str | Path, **values: Any) -> None:
    """Write a page without scripts."""
    write_text(path, render(template, **values))


def page(
    explanation: Explanation,
    form: Form | None = None,
    links: Mapping[str, str] | None = None,
    here: str = "",
) -> str:
    """The page of `bertkit view explain`, with style, script and numbers in it.

    A server adds a form and links to its other pages.
    """
    return render(
        "explain.html",
        modules=MODULES,
        forms=form is not None,
        causal=explanation.causal,
        form=form,
        links=links or {},
        here=here,
        **document_values(explanation.text, explanation),
    )


def framed(page: str, height: int = 700) -> str:
    """A page within another, such as a notebook: it sees and changes nothing of it."""
    frame = '<iframe srcdoc="{}" sandbox="allow-scripts allow-downloads" style="{}"></iframe>'
    return str(Markup(frame).format(page, f"width:100%;height:{height}px;border:0"))


def document_values(text: str, document: msgspec.Struct) -> dict[str, Any]:
    """Return the values of a template whose scripts draw a document: its title and JSON data."""
    # Without "<", the data cannot contain a tag.
    data = msgspec.json.encode(document).decode().replace("<", "\\u003c")
    return {"title": " ".join(text.split())[:60], "data": Markup(data)}


@cache
def source(function: Callable[..., Any]) -> Source:
    """Return the code of a function, and its place in the repository or, of a package, its file."""
    function = inspect.unwrap(function)
    path, package = Path(inspect.getfile(function)), Path(__file__).parents[1]
    is_own = path.is_relative_to(package)
    place = f"src/bertkit/{path.relative_to(package).as_posix()}" if is_own else path.name
    lines, line = inspect.getsourcelines(function)
    return Source(place, line, function.__qualname__, textwrap.dedent("".join(lines)))


def refuse_place(path: Path) -> None:
    """Raises: ConfigError when the page cannot be written to `path`, before work is done for it."""
    refuse_used(path)
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; name a file, such as {path / 'page.html'}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}; make it, or choose another")


def write_page(path: Path, explanation: Explanation) -> None:
    """Write the page. Raises: ConfigError as `refuse_place` does, StorageError when it cannot."""
    refuse_place(path)
    write_text(path, page(explanation))


def _read(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def _module(name: str) -> str:
    """A module as a part of one script: without imports and exports."""
    return re.sub(r"^export ", "", IMPORT.sub("", _read(name)), flags=re.M)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
