"""Tests that the public names are sorted, complete and documented."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import bertkit

SOURCE = Path(__file__).parents[2] / "src" / "bertkit"


def test_public_names_are_sorted_and_unique() -> None:
    assert list(bertkit.__all__) == sorted(set(bertkit.__all__))
    assert len(bertkit.__all__) > 0


@pytest.mark.parametrize("name", bertkit.__all__)
def test_public_name_resolves_and_is_documented(name: str) -> None:
    thing = getattr(bertkit, name)
    assert name in dir(bertkit)
    if inspect.isclass(thing) or callable(thing):
        docstring = inspect.getdoc(thing) or ""
        # Dataclasses generate a docstring that starts with the signature.
        is_written = not docstring.startswith(f"{name}(")
        assert docstring, f"bertkit.{name} has no docstring"
        assert is_written, f"bertkit.{name} has no docstring of its own"


def test_star_import_returns_all_public_names() -> None:
    names: dict[str, object] = {}
    exec("from bertkit import *", names)
    assert set(bertkit.__all__) <= set(names)


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        bertkit.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_module_has_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
