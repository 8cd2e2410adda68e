"""HTML pages, which share one base template and style sheet. A page is one self-contained file."""

from __future__ import annotations

import base64
import hashlib
import inspect
import re
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bertkit.errors import ConfigError
from bertkit.storage import check_unused, write_text
from bertkit.view import figures
from bertkit.view.page_data import Explanation, Source

FILES = Path(__file__).parent / "pages"

IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"\./([^"]*)";\n', re.M)
"""Import of a JavaScript module by another one."""


def render(template: str | Path, *, script: str = "", forms: bool = False, **values: Any) -> str:
    """Render a page.

    The content security policy of the page allows only the code of `script`. The page cannot load
    anything, and can send forms only to its own server. Therefore, a text in the page can do
    no harm, even if it contains HTML.

    Args:
        template: Name of a template of bertkit, or path of a template that extends `base.html`.
        script: Name of the JavaScript module that runs in the page. The page contains this module
            and the modules that it imports as one script, in which all modules share one namespace.
        forms: Whether the page can send forms.
        values: Values for the template. The template escapes them, except the charts of
            `view/chart.py`.
    """
    folder, name = (
        (FILES, template) if isinstance(template, str) else (template.parent, template.name)
    )
    style = _read("page.css") + _read("chart.css")
    code = "\n".join(map(_code, modules(script))) if script else ""
    policy = [
        "default-src 'none'",
        f"style-src {_hash(style)}",
        *([f"script-src {_hash(code)}"] if code else []),
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
            script=Markup(code),
        )
    )


@cache
def environment(folder: Path, *, autoescape: bool = True) -> Environment:
    """Return a Jinja environment for the templates of a directory and of bertkit.

    It contains a Jinja test for each type of page part. The environment is cached, because it keeps
    compiled templates.

    Args:
        folder: Directory of the templates.
        autoescape: Whether to escape values.
    """
    templates = Environment(
        loader=FileSystemLoader([folder, FILES]),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for kind in (*get_args(figures.Cell), *get_args(figures.Part)):
        templates.tests[kind.__name__.lower()] = lambda part, kind=kind: isinstance(part, kind)
    templates.filters["split_at"] = figures.split_at
    return templates


def write_report(path: Path, template: str | Path, **values: Any) -> None:
    """Write a page that contains no scripts.

    Args:
        path: The file.
        template: Name or path of the template.
        values: Values for the template.
    """
    write_text(path, render(template, **values))


def page(explanation: Explanation) -> str:
    """Return the page of `bertkit view explain`, including its styles, script, and data."""
    return render(
        "explain.html",
        script="main.js",
        causal=explanation.causal,
        form=None,
        **document_values(explanation.text, explanation),
    )


def framed(page: str) -> str:
    """Return an HTML frame that contains a page, for example for a notebook.

    The frame is sandboxed, so the page cannot access the document that contains the frame.

    Args:
        page: HTML of the page.
    """
    frame = '<iframe srcdoc="{}" sandbox="allow-scripts allow-downloads" style="{}"></iframe>'
    return str(Markup(frame).format(page, "width:100%;height:700px;border:0"))


def document_values(text: str, document: msgspec.Struct) -> dict[str, Any]:
    """Return the title and the JSON data for a template whose scripts show a document.

    Args:
        text: Text from which the title is taken.
        document: The data.
    """
    # The data cannot contain a tag, because "<" is escaped.
    data = msgspec.json.encode(document).decode().replace("<", "\\u003c")
    return {"title": " ".join(text.split())[:60], "data": Markup(data)}


@cache
def source(function: Callable[..., Any]) -> Source:
    """Return the code of a function and its location.

    The location is a path in the repository, or a file name if the function is not from bertkit.
    """
    function = inspect.unwrap(function)
    path, package = Path(inspect.getfile(function)), Path(__file__).parents[1]
    is_own = path.is_relative_to(package)
    name = f"src/bertkit/{path.relative_to(package).as_posix()}" if is_own else path.name
    lines, line = inspect.getsourcelines(function)
    return Source(name, line, function.__qualname__, textwrap.dedent("".join(lines)))


def check_page_path(path: Path) -> None:
    """Check that a page can be written, before it is computed.

    Args:
        path: The file.

    Raises:
        ConfigError: If the file exists, or its directory does not exist.
    """
    check_unused(path)
    if path.is_dir():
        raise ConfigError(f"{path}: is a directory; pass a file such as {path / 'page.html'}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: the directory {path.parent} does not exist; create it")


def write_page(path: Path, explanation: Explanation) -> None:
    """Write the page of `bertkit view explain`.

    Args:
        path: The file.
        explanation: The data.

    Raises:
        ConfigError: If the file exists, or its directory does not exist.
        StorageError: If the file cannot be written.
    """
    check_page_path(path)
    write_text(path, page(explanation))


def _read(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


@cache
def modules(name: str) -> tuple[str, ...]:
    """Return a JavaScript module and the modules that it imports, each after its own imports."""
    imported = (module for other in IMPORT.findall(_read(name)) for module in modules(other))
    return tuple(dict.fromkeys([*imported, name]))


def _code(name: str) -> str:
    """Return the code of a module without imports and exports, to combine it with other modules."""
    return re.sub(r"^export ", "", IMPORT.sub("", _read(name)), flags=re.M)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
