"""English that is already on the machine: the Python reference and docstrings of what is installed.

Nothing is imported or run: source files are parsed for their docstrings.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("torch", "sympy", "networkx", "numpy", "huggingface_hub")
"""Packages with docstrings of prose that every installation has: torch requires sympy, networkx."""

MAX_SOURCE_CHARACTERS = 5_000_000
"""Characters taken from one source at most, so that none drowns the others."""


def documents() -> Iterator[tuple[str, str]]:
    """(source, text) of every document; one source file's docstrings are one document."""
    from pydoc_data.topics import topics

    for _, text in sorted(topics.items()):
        yield "python reference", text.strip()
    yield from _limited("python library", Path(sysconfig.get_path("stdlib")), skip="site-packages")
    for package in PACKAGES:
        folder = Path(sysconfig.get_path("purelib")) / package
        if folder.is_dir():
            yield from _limited(package, folder)


def _limited(source: str, folder: Path, skip: str = "tests") -> Iterator[tuple[str, str]]:
    left = MAX_SOURCE_CHARACTERS
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        if skip in parts or "test" in parts or "tests" in parts:
            continue
        text = "\n\n".join(docstrings(path))
        if len(text) > 500:
            left -= len(text)
            yield source, text
        if left <= 0:
            return


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of one source file, in its order, without their code examples."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escapes are not our business
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # broken on purpose in some packages
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text and len(text) >= 60:
                lines = inspect.cleandoc(text).splitlines()
                yield "\n".join(x for x in lines if not x.lstrip().startswith((">>>", "...")))
