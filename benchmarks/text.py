"""Real English that is on every machine: Python's language reference and installed docstrings."""

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

from bertkit.tasks.classify import LabelExample

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_SPACE = re.compile(r"\s+")


def reference() -> list[str]:
    """The chapters of the Python language reference that CPython ships for `help()`."""
    return [text.strip() for _, text in sorted(topics.topics.items())]


def docstrings(megabytes: float) -> Iterator[str]:
    """Docstrings of a hundred letters or more, standard library first, up to this much text.

    Nothing is imported: files are read in sorted order and parsed. The same installation gives the
    same texts; another one gives others, so a benchmark compares two sides of one run only.
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
    """The language reference, then docstrings until there is this much text."""
    chapters = reference()
    size = sum(len(text.encode()) for text in chapters) / 1e6
    return [*chapters, *docstrings(max(megabytes - size, 0))]


def sentences(count: int, *, seed: int = 0) -> list[str]:
    """Sentences of the language reference, shuffled: 10 to 1,500 letters, as they come."""
    split = _SENTENCE_END.split(" ".join(reference()))
    tidy = (_SPACE.sub(" ", sentence).strip() for sentence in split)
    found = [sentence for sentence in tidy if 10 < len(sentence) < 1500]
    if count > len(found):
        raise ValueError(f"the language reference has {len(found)} sentences, {count} were asked")
    random.Random(seed).shuffle(found)
    return found[:count]


def stsb(path: Path) -> list[LabelExample]:
    """Seven columns and, in some rows, two more: a table that bertkit refuses as ragged."""
    lines = path.read_text(encoding="utf-8").split("\n")
    cells = [line.split("\t") for line in lines if line.strip()]
    return [LabelExample(c[5], c[6], c[4], f"{path}:{line}") for line, c in enumerate(cells, 1)]


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's escapes are not our business
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # test data of other packages is broken on purpose
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text and len(text) >= 100:
                yield inspect.cleandoc(text)
