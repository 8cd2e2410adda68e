"""What a model does with a text as one HTML file, which needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
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


def page(found: Explanation) -> str:
    """The page as HTML, with style, script and numbers in it.

    The policy in its head lets the browser run this script and no other, and load nothing, so that
    no text can do more than be read.
    """
    style, script = _read("page.css"), "\n".join(_module(name) for name in MODULES)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    title = " ".join(found.text.split())[:60]
    data = msgspec.json.encode(found).decode().replace("<", "\\u003c")  # no tag begins in it
    parts = {
        '<meta charset="utf-8">': '<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "<title>bertkit</title>": f"<title>{escape(title)} · bertkit</title>",
        '<link rel="stylesheet" href="page.css">': f"<style>{style}</style>",
        '<script type="module" src="main.js"></script>': f'<script type="module">{script}</script>',
        'id="data"></script>': f'id="data">{data}</script>',
    }
    html = _read("explain.html")
    for place, filled in parts.items():
        assert html.count(place) == 1, place
        html = html.replace(place, filled)
    return html


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


def _read(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def _module(name: str) -> str:
    """A module as a part of one script: without imports and exports."""
    return re.sub(r"^export ", "", IMPORT.sub("", _read(name)), flags=re.M)


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
