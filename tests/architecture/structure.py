"""Measures of the source tree: its code lines, and the imports of optional features.

Print them with `python -m tests.architecture.structure`.
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "bertkit"

PUBLIC_NAMES = "__init__"
"""The module with the public names, which are imported when they are used."""


COMMANDS = "commands.table"
"""The module that lists the commands of bertkit and of its extensions."""


def modules(source: Path = SOURCE) -> dict[str, ast.Module]:
    """Return the parsed modules below a package directory, by dotted names without the package."""
    parsed = {}
    for path in sorted(source.rglob("*.py")):
        name = ".".join(path.relative_to(source).with_suffix("").parts)
        parsed[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return parsed


def extension(module: str) -> str | None:
    """Return the extension that a module belongs to; None for the core."""
    return module.split(".")[1] if module.startswith("extensions.") else None


def imports(tree: ast.Module, names: dict[str, ast.Module]) -> set[str]:
    """Return the modules of bertkit that a module imports, also within functions."""
    targets = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(origin), names=aliases, level=0):
                targets |= {f"{origin}.{alias.name}" for alias in aliases} | {origin}
            case ast.Import(names=aliases):
                targets |= {alias.name for alias in aliases}
    return {target.removeprefix("bertkit.") for target in targets} & names.keys()


def modules_in_strings(tree: ast.Module, names: dict[str, ast.Module]) -> set[str]:
    """Return the modules of bertkit in the strings of a module, such as `bertkit.module:name`."""
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    named = {text.partition(":")[0] for text in strings if isinstance(text, str) and ":" in text}
    return {name.removeprefix("bertkit.") for name in named} & names.keys()


def edges(parsed: dict[str, ast.Module]) -> tuple[int, int]:
    """Count imports of extensions: from modules of the core, and from other extensions.

    A string that names an object of an extension counts as an import. The public names of the
    package do not count: they are imported for type checkers only, or when they are used. The
    table of commands does not count either.
    """
    core = others = 0
    for module, tree in parsed.items():
        if module in (PUBLIC_NAMES, COMMANDS):
            continue
        own = extension(module)
        for target in imports(tree, parsed) | modules_in_strings(tree, parsed):
            if extension(target) not in (None, own):
                core += own is None
                others += own is not None
    return core, others


def code_lines(tree: ast.Module) -> int:
    """Count the lines of a module with code: no blanks, comments, docstrings, or imports."""
    code: set[int] = set()
    skipped: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                skipped |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
            case ast.stmt() | ast.expr() | ast.arg() | ast.excepthandler() | ast.pattern():
                code |= {node.lineno, node.end_lineno or node.lineno}
    return len(code - skipped)


def duplicates(parsed: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Return the public classes that several modules define, with these modules."""
    modules_by_name: dict[str, list[str]] = {}
    for module, tree in parsed.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules_by_name.setdefault(node.name, []).append(module)
    return {
        name: defining_modules
        for name, defining_modules in modules_by_name.items()
        if len(defining_modules) > 1
    }


def figures() -> dict[str, int]:
    """Return the measures of the source tree."""
    parsed = modules()
    lines = {module: code_lines(tree) for module, tree in parsed.items()}
    core, others = edges(parsed)
    return {
        "code lines of the core": sum(
            n for module, n in lines.items() if extension(module) is None
        ),
        "code lines": sum(lines.values()),
        "imports from the core to extensions": core,
        "imports between extensions": others,
    }


if __name__ == "__main__":
    for name, value in figures().items():
        print(f"{value:7,}  {name}")
