"""What a model does with a text as one HTML file, which needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bertkit.errors import ConfigError
from bertkit.storage import refuse_used, write_text
from bertkit.view.document import Explanation, Source

FILES = Path(__file__).parent / "pages"

MODULES = (
    "data.js",
    "dom.js",
    "paint.js",
    "picture.js",
    "square.js",
    "lines.js",
    "steps.js",
    "embeddings.js",
    "attention.js",
    "masked.js",
    "layers.js",
    "ask.js",
    "main.js",
)
"""Each after those that it imports. In the page they are one script, and share their names."""

FIGURES = ("dom.js", "paint.js", "picture.js", "ask.js", "window.js")
"""Those of a page whose figures are made by the server."""

PAGES = {"/": "Look inside", "/ask": "Ask", "/word": "One word", "/training": "Training"}
"""Of a server's window."""

IMPORT = re.compile(r"^import (\{[^}]*\} from )?\"[^\"]*\";\n", re.M)

FORM = "<!-- form -->"
"""Where a page has room for one."""


def page(found: Explanation, form: str = "", navigation: str = "") -> str:
    """The page as HTML, with style, script and numbers in it, and a form where a server answers it.

    The policy in its head lets the browser run this script and no other, and load nothing, so that
    no text can do more than be read.
    """
    script = _script(MODULES)
    title = " ".join(found.text.split())[:60]
    data = msgspec.json.encode(found).decode().replace("<", "\\u003c")  # no tag begins in it
    parts = {
        "<title>bertkit</title>": f"<title>{escape(title)} · bertkit</title>",
        "<!-- pages -->": navigation,
        '<script type="module" src="main.js"></script>': f'<script type="module">{script}</script>',
        'id="data"></script>': f'id="data">{data}</script>',
    }
    return _filled("explain.html", parts, form=form, policy=f"script-src {_hash(script)}; ")


def window_page(
    title: str,
    lead: str,
    *,
    navigation: str = "",
    form: str = "",
    body: str = "",
    computed_by: Sequence[Callable[..., Any]] = (),
    refresh: int | None = None,
) -> str:
    """A page of a server's window: `body` is ready HTML, whose figures get their buttons.

    Units: `refresh` in seconds, after which a browser asks again.
    """
    script = _script(FIGURES)
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">'
    parts = {
        "<!-- refresh -->": again,
        "<title>bertkit</title>": f"<title>{escape(title)} · bertkit</title>",
        "<!-- pages -->": navigation,
        "<!-- title -->": escape(title),
        "<!-- lead -->": escape(lead),
        "<!-- body -->": body + (_sources(computed_by) if body else ""),
        '<script type="module" src="window.js"></script>': (
            f'<script type="module">{script}</script>'
        ),
    }
    return _filled("window.html", parts, form=form, policy=f"script-src {_hash(script)}; ")


def navigation(here: str, pages: Collection[str]) -> str:
    """Links to the other pages."""
    links = "".join(
        f'<a href="{path}"{" aria-current=page" if path == here else ""}>{name}</a>'
        for path, name in PAGES.items()
        if path in pages
    )
    return f'<nav class="pages" aria-label="Pages">{links}</nav>'


class Field(NamedTuple):
    """A field of a form: a line, some `rows` of text, a choice among `options`, or `hidden`."""

    name: str
    label: str = ""
    value: str = ""
    rows: int = 1
    options: Sequence[str] = ()
    required: bool = False
    hidden: bool = False


def form(action: str, fields: Sequence[Field], button: str, *, said: str = "") -> str:
    """A form, filled in; `said` is what was wrong with it."""
    alert = f'<p role="alert">{escape(said)}</p>' if said else ""
    inside = "".join(map(_field, fields))
    return f'<form action="{action}" method="get">{alert}{inside}<button>{button}</button></form>'


def _field(field: Field) -> str:
    attributes = f'id="ask-{field.name}" name="{field.name}"'
    attributes += f' rows="{field.rows}"' if field.rows > 1 else ""
    attributes += " required" if field.required else ""
    if field.hidden:
        return f'<input type="hidden" name="{field.name}" value="{escape(field.value)}">'
    label = f'<label for="ask-{field.name}">{escape(field.label)}</label>'
    if field.options:
        options = "".join(
            f"<option{' selected' if option == field.value else ''}>{escape(option)}</option>"
            for option in field.options
        )
        return f"{label}<select {attributes}>{options}</select>"
    if field.rows > 1:
        return f"{label}<textarea {attributes}>{escape(field.value)}</textarea>"
    return f'{label}<input {attributes} value="{escape(field.value)}">'


def _sources(functions: Sequence[Callable[..., Any]]) -> str:
    listed = "".join(
        f"<details><summary><code>{one.path}:{one.line}</code> {escape(one.name)}</summary>"
        f"<pre>{escape(one.code)}</pre></details>"
        for one in map(source, functions)
    )
    return f'<div class="sources">Computed by{listed}</div>' if listed else ""


def source(function: Callable[..., Any]) -> Source:
    """Where in the repository something is computed, and how."""
    function = inspect.unwrap(function)
    package = Path(__file__).parents[1]
    path = Path(inspect.getfile(function)).relative_to(package)
    lines, line = inspect.getsourcelines(function)
    code = textwrap.dedent("".join(lines))
    return Source(f"src/bertkit/{path.as_posix()}", line, function.__qualname__, code)


def refuse_place(path: Path) -> None:
    """Raises: ConfigError when the page cannot be written to `path`, before work is done for it."""
    refuse_used(path)
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; name a file, such as {path / 'page.html'}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}; make it, or choose another")


def write_page(path: Path, found: Explanation) -> None:
    """Write the page. Raises: ConfigError as `refuse_place` does, StorageError when it cannot."""
    refuse_place(path)
    write_text(path, page(found))


def _filled(template: str, parts: Mapping[str, str], *, form: str, policy: str) -> str:
    """A template with style, policy and each part in its place.

    It is done at once: what is filled in is not looked at.
    """
    style = _read("page.css")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; {policy}base-uri 'none'; "
        f"form-action '{'self' if form else 'none'}'"
    )
    parts = {
        **parts,
        '<meta charset="utf-8">': '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<link rel="stylesheet" href="page.css">': f"<style>{style}</style>",
        FORM: form,
    }
    html = _read(template)
    for place in parts:
        assert html.count(place) == 1, place
    places = re.compile("|".join(map(re.escape, parts)))
    return places.sub(lambda found: parts[found[0]], html)


def _read(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def _script(modules: Sequence[str]) -> str:
    return "\n".join(map(_module, modules))


def _module(name: str) -> str:
    """A module as a part of one script: without imports and exports."""
    return re.sub(r"^export ", "", IMPORT.sub("", _read(name)), flags=re.M)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
