"""Tests that modules import only their own package and lower layers, without cycles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "bertkit"

LAYERS = (  # lowest layer first
    ("errors",),
    ("metrics", "storage", "memory", "threads", "console", "published_keys", "synonyms",
     "registry"),
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
)  # fmt: skip
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def imported(path: Path, root: Path) -> Iterator[str]:
    """Return every module of the package that a file imports, also within functions."""
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
                yield find_module(name, root)


def find_module(name: str, root: Path) -> str:
    """Return the longest prefix of a dotted name that is a module."""
    parts = name.split(".")
    while len(parts) > 1:
        path = root.parent.joinpath(*parts)
        if path.with_suffix(".py").is_file() or path.is_dir():
            return ".".join(parts)
        dunder = parts[-1].startswith("__")
        parts.pop()
        if len(parts) == 1 and dunder:
            return ""  # bertkit.__version__ is not a module
    return f"{root.name}.__init__"


def find_upward_imports(root: Path) -> list[str]:
    """Return one message for each import that is not from a lower layer."""
    found = []
    for path in sorted(root.rglob("*.py")):
        package = path.relative_to(root).parts[0].removesuffix(".py")
        if package not in LAYER:
            found.append(f"{package} has no layer; add it to LAYERS in {Path(__file__).name}")
            continue
        for target in filter(None, imported(path, root)):
            imported_package = target.split(".")[1]
            if imported_package != package and LAYER.get(imported_package, 0) >= LAYER[package]:
                importer = f"{package} ({LAYER[package]})"
                imported_layer = f"{imported_package} ({LAYER[imported_package]})"
                found.append(f"{path.relative_to(root)}: {importer} imports {imported_layer}")
    return found


def find_cycle(root: Path) -> list[str]:
    """Return the modules of an import cycle, or an empty list."""
    graph = {
        module_name(path, root): set(filter(None, imported(path, root))) - {module_name(path, root)}
        for path in sorted(root.rglob("*.py"))
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def write_package(folder: Path, **files: str) -> Path:
    """Write a toy package; `nn__block="import x"` becomes nn/block.py."""
    root = folder / "bertkit"
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_modules_import_only_lower_layers() -> None:
    assert len(list(SOURCE.rglob("*.py"))) > 10
    assert find_upward_imports(SOURCE) == []


def test_imports_have_no_cycle() -> None:
    assert find_cycle(SOURCE) == []


def test_upward_imports_are_reported(tmp_path: Path) -> None:
    root = write_package(
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
    assert find_upward_imports(root) == [
        "data/readers.py: data (3) imports nn (3)",
        "models/model.py: models (4) imports cli (12)",
        "nn/late.py: nn (3) imports models (4)",
        "nn/near.py: nn (3) imports models (4)",
        "nn/public.py: nn (3) imports __init__ (13)",
    ]


def test_package_without_layer_is_reported(tmp_path: Path) -> None:
    assert "misc has no layer" in find_upward_imports(write_package(tmp_path, misc__thing=""))[0]


def test_cycle_within_package_is_reported(tmp_path: Path) -> None:
    root = write_package(
        tmp_path,
        nn__a="from bertkit.nn.b import x\n",
        nn__b="def f():\n    from . import c\n",
        nn__c="from .a import y\n",
    )
    assert set(find_cycle(root)) == {"bertkit.nn.a", "bertkit.nn.b", "bertkit.nn.c"}
    (root / "nn" / "c.py").write_text("")
    assert find_cycle(root) == []
