"""Imports go strictly down: a module imports its own package and lower floors, and no circles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "bertkit"

FLOORS = (  # from the ground up
    ("errors",),
    (
        "metrics",
        "storage",
        "memory",
        "threads",
        "console",
        "published_keys",
        "synonyms",
        "registry",
    ),
    ("text", "batch", "config", "progress"),
    ("nn", "data"),
    ("models",),
    ("objectives", "engine", "families"),
    ("tasks", "checkpoint"),
    ("training", "pipelines"),
    ("view",),
    ("recipes", "web"),
    ("extensions",),
    ("commands",),
    ("cli",),
    ("__init__", "__main__"),
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def imported(path: Path, root: Path) -> Iterator[str]:
    """Every module of the package that a file imports: anywhere in it, relative imports too."""
    package = path.relative_to(root.parent).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            source = [*start, *(node.module or "").split(".")] if node.module else [*start]
            names = [".".join([*source, alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == root.name:
                yield existing(name, root)


def existing(name: str, root: Path) -> str:
    """The longest beginning of a dotted name that is a module: the rest are names within it."""
    parts = name.split(".")
    while len(parts) > 1:
        place = root.parent.joinpath(*parts)
        if place.with_suffix(".py").is_file() or place.is_dir():
            return ".".join(parts)
        dunder = parts[-1].startswith("__")
        parts.pop()
        if len(parts) == 1 and dunder:
            return ""  # bertkit.__version__ leads to no module
    return f"{root.name}.__init__"


def offenders(root: Path) -> list[str]:
    """One sentence for each import that does not go down."""
    found = []
    for path in sorted(root.rglob("*.py")):
        here = path.relative_to(root).parts[0].removesuffix(".py")
        if here not in FLOOR:
            found.append(f"{here} stands on no floor: give it one in {Path(__file__).name}")
            continue
        for target in filter(None, imported(path, root)):
            there = target.split(".")[1]
            if there != here and FLOOR.get(there, 0) >= FLOOR[here]:
                where = path.relative_to(root)
                found.append(f"{where}: {here} ({FLOOR[here]}) imports {there} ({FLOOR[there]})")
    return found


def circle(root: Path) -> list[str]:
    """The modules of one circle of imports, or nothing."""
    graph = {
        module_name(path, root): set(filter(None, imported(path, root))) - {module_name(path, root)}
        for path in sorted(root.rglob("*.py"))
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def tree(folder: Path, **files: str) -> Path:
    """A toy package: `nn__block="import x"` is nn/block.py."""
    root = folder / "bertkit"
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_imports_go_down() -> None:
    assert len(list(SOURCE.rglob("*.py"))) > 10
    assert offenders(SOURCE) == []


def test_imports_make_no_circle() -> None:
    assert circle(SOURCE) == []


def test_an_upward_import_is_caught_wherever_it_stands(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        errors="",
        batch="from bertkit.errors import BertkitError\nfrom bertkit import __version__\n",
        nn__block="from . import attention\nfrom ..batch import Packed\n",
        nn__attention="import bertkit.batch\n",
        nn__late="def f():\n    from bertkit.models.model import Model\n",
        nn__near="from ..models import model\n",
        nn__public="from bertkit import load\n",
        models__model="import bertkit.cli\n",
        data__readers="from bertkit.nn.norm import LayerNorm\n",
        cli="from bertkit.models import model\n",
    )
    assert offenders(root) == [
        "data/readers.py: data (3) imports nn (3)",
        "models/model.py: models (4) imports cli (12)",
        "nn/late.py: nn (3) imports models (4)",
        "nn/near.py: nn (3) imports models (4)",
        "nn/public.py: nn (3) imports __init__ (13)",
    ]


def test_a_package_without_a_floor_is_caught(tmp_path: Path) -> None:
    assert "misc stands on no floor" in offenders(tree(tmp_path, misc__thing=""))[0]


def test_a_circle_within_a_package_is_caught(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        nn__a="from bertkit.nn.b import x\n",
        nn__b="def f():\n    from . import c\n",
        nn__c="from .a import y\n",
    )
    assert set(circle(root)) == {"bertkit.nn.a", "bertkit.nn.b", "bertkit.nn.c"}
    (root / "nn" / "c.py").write_text("")
    assert circle(root) == []
