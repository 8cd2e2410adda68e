"""Settings are frozen data, checked once: what is unknown, mistyped or impossible is refused.

A setting's place is written as a key path (`train.learning_rate`), the same in files, overrides
and messages.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from bertkit.errors import ConfigError, did_you_mean

Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(ge=0.0, lt=1.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Weight = Annotated[float, Meta(ge=0.0)]
Seed = Annotated[int, Meta(ge=0, lt=2**31)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every group of settings."""


S = TypeVar("S", bound=Settings)


def decode(kind: type[S], data: Any, where: str = "") -> S:
    """Build settings from plain data (a parsed TOML or JSON file).

    Raises: ConfigError with the key path, below `where`, and the nearest spelling.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_message(kind, str(error), where)) from None


def plain(settings: Settings) -> dict[str, Any]:
    """The settings as plain data, complete: what was left out stands there with its default.

    It is what JSON gives back, so that it can be compared with what a file holds.
    """
    result = json.loads(json.dumps(msgspec.to_builtins(settings)))
    assert isinstance(result, dict)
    return result


def explained(kind: type[Settings]) -> dict[str, str]:
    """What each setting means: the docstring below its line, where there is one."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not issubclass(owner, Settings) or owner is Settings:
            continue
        try:
            [body] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        except (OSError, TypeError, ValueError, SyntaxError):  # defined where no source is kept
            continue
        assert isinstance(body, ast.ClassDef)
        for line, below in itertools.pairwise(body.body):
            match line, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.split())
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain data. Raises: ConfigError when it is missing or malformed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; name a run file, such as bert-tiny") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def override(data: Mapping[str, Any], settings: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Data with dotted settings replaced: `("train.steps", "300")`. Values are read as TOML."""
    result: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in data.items()}
    for path, text in settings:
        *groups, last = path.split(".")
        place = result
        for group in groups:
            inner = place.setdefault(group, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{path}: {group!r} is a value, not a group of settings")
            place[group] = place = dict(inner)
        try:
            place[last] = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            place[last] = text
    return result


def _message(kind: type[Settings], error: str, where: str) -> str:
    text, _, at = error.partition(" - at ")
    path = ".".join(filter(None, [where, at.strip("`$").lstrip(".")]))
    unknown = re.match(r"Object contains unknown field `(.*)`", text)
    if unknown:
        owner = _kind_at(kind, at.strip("`$").lstrip("."))
        key = unknown.group(1)
        known = [f.encode_name for f in msgspec.structs.fields(owner)] if owner else []
        return f"{'.'.join(filter(None, [path, key]))}: no such setting; {did_you_mean(key, known)}"
    missing = re.match(r"Object missing required field `(.*)`", text)
    if missing:
        return f"{'.'.join(filter(None, [path, missing.group(1)]))}: this setting is required"
    return f"{path or 'config'}: {text[0].lower()}{text[1:]}"


def _kind_at(kind: Any, path: str) -> type[Settings] | None:
    """The settings class that a key path leads to."""
    for key in filter(None, path.split(".")):
        kind = get_type_hints(kind).get(key)
        for option in (kind, *get_args(kind)):
            if isinstance(option, type) and issubclass(option, Settings):
                kind = option
                break
        else:
            return None
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None
