"""English text that exists on every machine: Python's language reference and docstrings."""

from __future__ import annotations

import ast
import inspect
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

from bertkit.tasks.labeled_text import LabelExample

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_SPACE = re.compile(r"\s+")


def reference() -> list[str]:
    """Return the chapters of the Python language reference, which CPython contains for `help()`."""
    return [text.strip() for _, text in sorted(topics.topics.items())]


def docstrings(megabytes: float) -> Iterator[str]:
    """Yield docstrings of at least 100 characters, up to an amount of text.

    The docstrings of the standard library are first. Files are parsed in sorted order, and not
    imported. The texts depend on the installation, so only results of the same run are comparable.
    """
    left = megabytes * 1e6
    seen: set[str] = set()
    for folder in dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib")):
        for path in sorted(Path(folder).rglob("*.py")):
            for text in _docstrings(path):
                if text in seen:
                    continue
                seen.add(text)
                yield text
                left -= len(text.encode())
                if left <= 0:
                    return


def documents(megabytes: float) -> list[str]:
    """Return the language reference, and docstrings up to an amount of text."""
    chapters = reference()
    size = sum(len(text.encode()) for text in chapters) / 1e6
    return [*chapters, *docstrings(max(megabytes - size, 0))]


def sentences(count: int, *, seed: int = 0) -> list[str]:
    """Return shuffled sentences of the language reference, of 10 to 1,500 characters."""
    split = _SENTENCE_END.split(" ".join(reference()))
    tidy = (_SPACE.sub(" ", sentence).strip() for sentence in split)
    found = [sentence for sentence in tidy if 10 < len(sentence) < 1500]
    if count > len(found):
        raise ValueError(f"expected at most {len(found)} sentences, got {count}")
    random.Random(seed).shuffle(found)
    return found[:count]


def stsb(path: Path) -> list[LabelExample]:
    """Read STS-B, whose rows have seven or nine columns; bertkit rejects such tables."""
    lines = path.read_text(encoding="utf-8").split("\n")
    cells = [line.split("\t") for line in lines if line.strip()]
    return [LabelExample(c[5], c[6], c[4], f"{path}:{line}") for line, c in enumerate(cells, 1)]


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            # Ignore warnings about invalid escapes in other packages.
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # Test data of other packages may be invalid.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text and len(text) >= 100:
                yield inspect.cleandoc(text)
