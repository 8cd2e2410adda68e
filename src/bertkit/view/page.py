"""What a model does with a text as one HTML file, which needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import msgspec

from bertkit.errors import ConfigError
from bertkit.storage import refuse_used, write_text
from bertkit.view.document import Explanation

PAGES = Path(__file__).parent / "pages"

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
    "main.js",
)
"""Each after those that it imports. In the page they are one script, and share their names."""

IMPORT = re.compile(r"^import \{[^}]*\} from \"[^\"]*\";\n", re.M)

FORM = "<!-- form -->"
"""Where a page has room for one."""


def page(found: Explanation, form: str = "") -> str:
    """The page as HTML, with style, script and numbers in it, and a form where a server answers it.

    The policy in its head lets the browser run this script and no other, and load nothing, so that
    no text can do more than be read.
    """
    script = "\n".join(_module(name) for name in MODULES)
    title = " ".join(found.text.split())[:60]
    data = msgspec.json.encode(found).decode().replace("<", "\\u003c")  # no tag begins in it
    parts = {
        "<title>bertkit</title>": f"<title>{escape(title)} · bertkit</title>",
        '<script type="module" src="main.js"></script>': f'<script type="module">{script}</script>',
        'id="data"></script>': f'id="data">{data}</script>',
    }
    return _filled("explain.html", parts, form=form, policy=f"script-src {_hash(script)}; ")


def asking_page(form: str) -> str:
    """The page before there is a text: the form alone."""
    return _filled("ask.html", {}, form=form, policy="")


def asking_form(
    models: Sequence[str], *, model: str = "", text: str = "", pair: str = "", said: str = ""
) -> str:
    """A form for a text, filled in; `said` is what was wrong with it."""
    options = "".join(
        f"<option{' selected' if name == model else ''}>{escape(name)}</option>" for name in models
    )
    alert = f'<p role="alert">{escape(said)}</p>' if said else ""
    return (
        f'<form action="/" method="get">{alert}'
        '<label for="ask-text">Text</label>'
        f'<textarea id="ask-text" name="text" rows="2" required>{escape(text)}</textarea>'
        '<label for="ask-pair">A second text, to be read with it (may be left out)</label>'
        f'<input id="ask-pair" name="pair" value="{escape(pair)}">'
        '<label for="ask-model">Model</label>'
        f'<select id="ask-model" name="model">{options}</select>'
        "<button>Look</button></form>"
    )


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
    return (PAGES / name).read_text(encoding="utf-8")


def _module(name: str) -> str:
    """A module as a part of one script: without imports and exports."""
    return re.sub(r"^export ", "", IMPORT.sub("", _read(name)), flags=re.M)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
