"""English text that every installation contains: the Python reference and docstrings of packages.

Source files are parsed to find their docstrings. They are never imported or run.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("torch", "sympy", "networkx", "numpy", "huggingface_hub")
"""Packages that every installation contains and whose docstrings contain prose. sympy and networkx
are installed because torch requires them.
"""

MAX_SOURCE_CHARACTERS = 5_000_000
"""Number of characters after which no further files of a source are read, so that no source
dominates the text."""


def documents() -> Iterator[tuple[str, str]]:
    """Yield the source and text of each document. All docstrings of a file form one document."""
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
    """Yield the docstrings of a source file, in order, without their code examples."""
    try:
        with warnings.catch_warnings():
            # Packages may contain invalid escape sequences.
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        # Some packages contain invalid source files as test data.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text and len(text) >= 60:
                lines = inspect.cleandoc(text).splitlines()
                yield "\n".join(x for x in lines if not x.lstrip().startswith((">>>", "...")))
