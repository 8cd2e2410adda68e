"""Generated parts of pages: commands, Python API, settings, HTTP routes, errors, and Dockerfile."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

import bertkit
from bertkit import cli
from bertkit.config import Settings, explained
from bertkit.errors import BertkitError
from bertkit.extensions.classic.recurrent_config import RecurrentConfig
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.objectives import DenoisingConfig
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.openapi import openapi
from bertkit.models.config import TransformerConfig
from bertkit.objectives.distill import Terms
from bertkit.recipes.finetune import Finetune
from bertkit.recipes.pretrain_config import PretrainConfig
from bertkit.tasks import TASKS, find
from bertkit.tasks.task import Reading
from bertkit.web import ROUTES

ROOT = Path(__file__).parents[2]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in lines)
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


# ---- Command line


def commands() -> str:
    """Return the help pages of all commands."""
    page = cli.app.generate_docs()
    _, _, page = page.partition("\n## bertkit tokenizer\n")
    page, _, _ = f"## bertkit tokenizer\n{page}".partition("\n## bertkit --install-completion")
    page = re.sub(r", --(?:\w+\.)?empty-[\w-]+`| \*\[default: \(\)\]\*", _end_of_option, page)
    return re.sub(r"^(#+) (bertkit .*)$", r"\1 `\2`", page, flags=re.M)


def _end_of_option(match: re.Match[str]) -> str:
    """Return the text that replaces an option for empty lists, or a default that is empty."""
    return "`" if match[0].endswith("`") else ""


# ---- Python API


def api() -> str:
    """Return autodoc directives for the public names: functions first, then classes."""
    values = {name: getattr(bertkit, name) for name in bertkit.__all__}
    functions = [name for name, value in values.items() if not isinstance(value, type)]
    parts = [
        "## Functions",
        *(f"### `{name}`\n\n{_autodoc('function', name)}" for name in functions),
    ]
    classes = [name for name in values if name not in functions]
    parts += ["## Classes", *(f"### `{name}`\n\n{_autodoc('class', name)}" for name in classes)]
    return "\n\n".join(parts)


def _autodoc(kind: str, name: str) -> str:
    members = "   :members:\n" if kind == "class" else ""
    return f"```{{eval-rst}}\n.. auto{kind}:: bertkit.{name}\n{members}```"


ENTRY = re.compile(r"    [\w.]+( \(.*\))?( = .*)?: ")


def as_rst(
    _app: Any, _kind: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    """Convert a docstring with Markdown code spans to reStructuredText, in place."""
    section = ""
    converted = []
    for number, line in enumerate(lines):
        if line and not line.startswith(" "):
            following = [*lines, "", ""][number + 1 : number + 3]
            inner = next((text for text in following if text), "")
            titled = line.endswith(":") and inner.startswith("    ")
            section = line if titled and line[:-1].lower() not in SECTIONS else ""
            converted.append(_escape(line))
            if section:
                section = "entries" if ENTRY.match(inner) else "code"
                converted += ["", *(["::", ""] if section == "code" else [])]
        elif section == "entries" and line:
            converted.append(("- " if line[4] != " " else "  ") + _escape(line.strip()))
        else:
            converted.append(line if section == "code" else _escape(line))
    lines[:] = converted


SECTIONS = ("args", "returns", "raises", "yields", "example", "examples")
"""Sections that napoleon converts."""


def _escape(line: str) -> str:
    """Escape reStructuredText markup, except in code spans, which become literals."""
    parts = re.split(r"(`+[^`]+`+)", line)
    for index, part in enumerate(parts):
        if index % 2:
            parts[index] = rf"\ ``{part.strip('`')}``\ "
        elif not re.match(r" *\*{1,2}\w+:", part):
            parts[index] = re.sub(r"[*|]|_\b|\b_(?!\w)", r"\\\g<0>", part)
    return "".join(parts)


# ---- Settings


def settings() -> str:
    """Return a table of each group of settings."""
    groups: dict[str, type[Settings]] = {"Run file": PretrainConfig, **dict(_run_file())}
    groups["Fine-tuning"] = Finetune
    groups |= {f"Task `{name}`": find(name).Options for name in TASKS}
    groups |= {"Columns of files": Reading, "Distillation": Terms}
    groups |= {"Text generation": Decoding, "Server limits": Limits}
    columns = ["setting", "type", "default", "description"]
    tables = {title: list(_rows(kind, title != "Run file")) for title, kind in groups.items()}
    return "\n".join(
        f"## {title}\n\n{table(columns, rows)}" for title, rows in tables.items() if rows
    )


def _run_file() -> Iterator[tuple[str, type[Settings]]]:
    """Return the groups of a run file, by title."""
    yield "Run file: `model` of a Transformer", TransformerConfig
    yield "Run file: `model` of an LSTM", RecurrentConfig
    hints = get_type_hints(PretrainConfig) | get_type_hints(DenoisingConfig)
    for name, hint in hints.items():
        for kind in _settings_types(hint) if name not in ("model", "decoder") else ():
            yield f"Run file: `{name}`", kind


def _rows(kind: type[Settings], nested: bool, prefix: str = "") -> Iterator[list[str]]:
    """Return the rows of a table of settings; nested groups have dotted names."""
    meanings, hints = explained(kind), get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        hint, default = hints[field.name], field.default
        if isinstance(default, Settings) and nested:
            yield from _rows(type(default), nested, f"{prefix}{field.encode_name}.")
        elif nested or not _settings_types(hint):
            value = "required" if default is msgspec.NODEFAULT else _default(default)
            meaning = meanings.get(field.name, "")
            yield [f"`{prefix}{field.encode_name}`", type_name(hint), value, meaning]


def _settings_types(hint: Any) -> list[type[Settings]]:
    kinds = (hint, *get_args(hint))
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)]


def _default(value: object) -> str:
    return "none" if value is None else f"`{json.dumps(msgspec.to_builtins(value))}`"


def type_name(hint: Any) -> str:
    """Return a type as a reader of a configuration file needs it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in arguments)
    if origin in (Union, UnionType):
        return " or ".join(type_name(kind) for kind in arguments if kind is not type(None))
    if origin in (list, tuple, Sequence):
        return f"list of {type_name(arguments[0])}"
    if origin in (dict, Mapping):
        return "table"
    return hint.__name__ if isinstance(hint, type) else str(hint)


# ---- HTTP API


def routes() -> str:
    """Return the routes of a server with the fields of their requests."""
    document = openapi(list(ROUTES.values()))
    schemas = document["components"]["schemas"]
    parts = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"## `{method.upper()} {path}`\n\n{operation['description']}")
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body:
                parts.append(_fields(schemas[body["schema"]["$ref"].rpartition("/")[2]]))
    return "\n\n".join(parts)


def _fields(schema: Mapping[str, Any]) -> str:
    """Return the table of the fields of a request, and an example."""
    rows = []
    for name, field in schema["properties"].items():
        default = (
            "required"
            if name in schema.get("required", ())
            else f"`{json.dumps(field.get('default'))}`"
        )
        rows.append([f"`{name}`", _json_type(field), default, field.get("description", "")])
    example = json.dumps(schema["examples"][0], ensure_ascii=False)
    return f"{table(['field', 'type', 'default', 'description'], rows)}\n```json\n{example}\n```"


def _json_type(field: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_json_type, field["anyOf"])))
    if "enum" in field:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in field["enum"])
    if field.get("type") == "array" and "items" in field:
        return f"list of {_json_type(field['items'])}"
    return str(field.get("type", "object"))


# ---- Errors


def exceptions() -> str:
    """Return a table of the exceptions with their meaning."""
    base: type[BertkitError] = BertkitError
    kinds = [base, *(kind for kind in base.__subclasses__() if kind.__module__ == base.__module__)]
    rows = [[f"`{kind.__name__}`", (inspect.getdoc(kind) or "").split("\n\n")[0]] for kind in kinds]
    return table(["exception", "meaning"], rows)


# ---- Deployment


def dockerfile() -> str:
    """Return the Dockerfile as a code block."""
    return f"```dockerfile\n{(ROOT / 'Dockerfile').read_text(encoding='utf-8')}```"


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "api": api,
    "settings": settings,
    "routes": routes,
    "exceptions": exceptions,
    "dockerfile": dockerfile,
}
"""Functions that return the Markdown of a mark `<!-- generated: NAME -->`."""
