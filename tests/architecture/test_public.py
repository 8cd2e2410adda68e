"""The public names: sorted, complete, documented."""

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
        said = inspect.getdoc(thing) or ""
        written = not said.startswith(f"{name}(")  # what a dataclass makes up by itself
        assert said, f"bertkit.{name} has no docstring"
        assert written, f"bertkit.{name} has no docstring of its own"


def test_a_star_import_gives_all_of_them() -> None:
    names: dict[str, object] = {}
    exec("from bertkit import *", names)
    assert set(bertkit.__all__) <= set(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        bertkit.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
