"""Tests that the public names are sorted, complete and documented."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import bertkit
from bertkit.commands.table import COMMANDS

SOURCE = Path(__file__).parents[2] / "src" / "bertkit"


def functions() -> Iterator[tuple[str, Any]]:
    """Yield the public functions, the methods of public classes, and the functions of commands."""
    for name in bertkit.__all__:
        thing = getattr(bertkit, name)
        if not isinstance(thing, type):
            yield name, thing
            continue
        for member, value in vars(thing).items():
            if inspect.isfunction(implementation(value)) and not member.startswith("_"):
                # `getattr` finds the docstring of a method that is overridden.
                yield f"{name}.{member}", value if is_value(value) else getattr(thing, member)
    for name, target in COMMANDS.items():
        module, _, attribute = target.partition(":")
        function = getattr(import_module(f"bertkit.{module}"), attribute)
        if not isinstance(function, type):
            yield f"`bertkit {name}`", function


def is_value(value: Any) -> bool:
    return isinstance(value, property | cached_property)


def implementation(value: Any) -> Any:
    """Return the function of a property, method, or decorated function."""
    for name in ("fget", "func", "__func__"):
        value = getattr(value, name, value)
    return inspect.unwrap(value) if callable(value) else value


def omissions(thing: Any) -> list[str]:
    """Return what the docstring of a function or property does not document or not correctly."""
    docstring, function = inspect.getdoc(thing) or "", implementation(thing)
    sections = dict(re.findall(r"^(\w+):\n((?:(?: {4}.*)?\n?)+)", docstring, re.MULTILINE))
    named = re.findall(r"^ {4}\*{0,2}(\w+):", sections.get("Args", ""), re.MULTILINE)
    signature = inspect.signature(function)
    parameters = [name for name in signature.parameters if name not in ("self", "cls")]
    found = [f"parameter {name}" for name in {*parameters} ^ {*named}]
    returned = str(signature.return_annotation)
    is_described = re.match("Return|Yield|Iterate", docstring) or "Returns" in sections
    is_described = is_described or "Yields" in sections
    if not docstring:
        found.append("docstring")
    if returned != "None" and not is_value(thing) and not is_described:
        found.append(f"returned {returned}")
    if re.search("Tensor|NDArray", str(signature)) and "Shapes:" not in docstring:
        found.append("shapes")
    source = textwrap.dedent(inspect.getsource(function))
    raised = re.findall(r"^ *raise ([A-Z]\w+)", source, re.MULTILINE)
    found += [f"{error} raised" for error in raised if f"    {error}:" not in docstring]
    return sorted(found)


def undocumented_names(kind: type) -> set[str]:
    """Return the fields and constructor parameters of a class without a description."""
    constructor = vars(kind).get("__init__")
    docstring = f"{inspect.getdoc(kind)}\n{inspect.getdoc(constructor)}"
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    names = set()
    for statement, below in itertools.pairwise([*body.body, ast.Pass()]):
        match statement, below:
            case (ast.AnnAssign(target=ast.Name()), ast.Expr(value=ast.Constant(value=str()))):
                pass
            case (ast.AnnAssign(target=ast.Name(id=name), annotation=hint), _):
                names |= set() if "ClassVar" in ast.unparse(hint) else {name}
            case (ast.FunctionDef(name="__init__", args=arguments), _):
                names |= {a.arg for a in [*arguments.args[1:], *arguments.kwonlyargs]}
    return {name for name in names if not re.search(rf"^ +{name}\b.*: ", docstring, re.MULTILINE)}


CLASSES = [name for name in bertkit.__all__ if isinstance(getattr(bertkit, name), type)]
FUNCTIONS = dict(functions())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_of_public_function_is_complete(name: str) -> None:
    assert omissions(FUNCTIONS[name]) == []


@pytest.mark.parametrize("name", ["distill", "evaluate", "finetune", "predict", "pretrain"])
def test_docstring_lists_settings_with_type_and_description(name: str) -> None:
    settings = str(inspect.getdoc(getattr(bertkit, name))).rpartition("\n\n")[2]
    entries = [" ".join(entry.split()) for entry in re.split(r"\n {4}(?! )", settings)[1:]]
    assert len(entries) >= 5
    assert [entry for entry in entries if not re.match(r"\S+ \(.+?\)( = .+?)?: \S", entry)] == []


def test_docstring_check_finds_omissions() -> None:
    def measure(x: Any, width: int) -> Tensor:
        """Measure it.

        Args:
            x: The value.
            wide: Width.
        """
        raise ValueError(x, width)

    assert omissions(measure) == [
        "ValueError raised",
        "parameter wide",
        "parameter width",
        "returned Tensor",
        "shapes",
    ]


@pytest.mark.parametrize("name", CLASSES)
def test_names_of_public_class_are_documented(name: str) -> None:
    assert undocumented_names(getattr(bertkit, name)) == set()


class Box:
    """A box.

    Args:
        size: Size of the box.
    """

    color: str
    weight: float
    """Weight of the box."""

    def __init__(self, size: int, *, lid: bool) -> None: ...


def test_class_check_finds_undocumented_names() -> None:
    assert undocumented_names(Box) == {"color", "lid"}


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
