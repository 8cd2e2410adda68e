"""Settings are frozen data, checked once: what is unknown, mistyped or impossible is refused.

A setting's place is written as a key path (`train.learning_rate`), the same in files, overrides
and messages.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import json
import math
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import tomli_w
from msgspec import Meta

from bertkit.errors import ConfigError, did_you_mean, spoken
from bertkit.storage import read_bytes
from bertkit.synonyms import suggestion

Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(ge=0.0, lt=1.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Weight = Annotated[float, Meta(ge=0.0)]
Positive = Annotated[float, Meta(gt=0.0)]
Seed = Annotated[int, Meta(ge=0, lt=2**31)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every group of settings."""


S = TypeVar("S", bound=Settings)
F = TypeVar("F", bound=Callable[..., Any])


def decode(kind: type[S], data: Any, where: str = "") -> S:
    """Build settings from plain data (a parsed TOML or JSON file).

    Raises: ConfigError with the key path, below `where`, and the nearest spelling.
    """
    try:
        settings = msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_message(kind, data, str(error), where)) from None
    for path, value in flat(data).items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, float) and not math.isfinite(one):  # JSON has no such number
                place = ".".join(filter(None, [where, path]))
                raise ConfigError(f"{place}: expected a finite number, got {one}")
    return settings


def with_keywords(
    caller: str,
    groups: Mapping[type[Settings], Settings | Mapping[str, Any] | None],
    keywords: Mapping[str, Any],
) -> list[Any]:
    """Groups of settings, each as an object or plain data, with those that are given as keywords.

    Objects are checked, too, for making one checks nothing.
    Raises: ConfigError for a keyword that no group of the `caller` has, or a value.
    """
    fields = {kind: [f.encode_name for f in msgspec.structs.fields(kind)] for kind in groups}
    known = [name for own in fields.values() for name in own]
    for name in keywords:
        if name not in known:
            raise ConfigError(f"{name}: {caller} has no such setting; {suggestion(name, known)}")
    made: list[Any] = []
    for kind, given in groups.items():
        own = {name: value for name, value in keywords.items() if name in fields[kind]}
        what: object = given  # callers are programs, which may give anything
        if not isinstance(what, kind | Mapping | None):
            raise ConfigError(
                f"{caller}: {type(what).__name__} given for {kind.__name__}; give that, or a dict"
            )
        data = plain(given) if isinstance(given, Settings) else dict(given or {})
        made.append(decode(kind, msgspec.to_builtins({**data, **own}, enc_hook=_simple)))
    return made


def _simple(value: Any) -> Any:
    """Numbers and arrays of numpy as Python's; of what is no setting, its words."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def plain(settings: Settings) -> dict[str, Any]:
    """The settings as plain data, complete: what was left out stands there with its default.

    It is what JSON gives back, so that it can be compared with what a file holds.
    """
    result = json.loads(json.dumps(msgspec.to_builtins(settings)))
    assert isinstance(result, dict)
    return result


def paths(kind: type[Settings]) -> dict[str, Any]:
    """The path of each setting, with its default; groups that are always there are opened."""
    settings: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        default = field.default
        if isinstance(default, Settings) and default.__struct_config__.tag is None:
            inner = paths(type(default))
            settings |= {f"{field.encode_name}.{path}": value for path, value in inner.items()}
        else:
            settings[field.encode_name] = default
    return settings


def at(settings: Settings, path: str) -> Any:
    """The value of the setting at a key path."""
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data, group in group, from values by key path."""
    data: dict[str, Any] = {}
    for path, value in values.items():
        *groups, last = path.split(".")
        group = data
        for name in groups:
            group = group.setdefault(name, {})
        group[last] = msgspec.to_builtins(value)
    return data


def flat(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Values by key path, of plain data, group in group."""
    values: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{path}{name}.")
        else:
            values[f"{path}{name}"] = value
    return values


def merged(usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables as one, group by group: what is given counts, and alone if its kind is another."""
    both = dict(usual)
    for name, value in given.items():
        other = both.get(name)
        if isinstance(other, Mapping) and isinstance(value, Mapping):
            same = value.get("kind", other.get("kind")) == other.get("kind", value.get("kind"))
            value = merged(other, value) if same else value
        both[name] = value
    return both


def explained(kind: type[Settings]) -> dict[str, str]:
    """What each setting means: the docstring below its line, where there is one."""
    texts: dict[str, str] = {}
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
                    texts[name] = " ".join(text.split())
    return texts


def with_keywords_told(*kinds: type[Settings]) -> Callable[[F], F]:
    """Of a function that takes settings as keywords, the docstring with each: default, meaning."""

    def told(function: F) -> F:
        lines = [line for kind in kinds for line in _keyword_lines(kind)]
        doc = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = "\n".join([doc, "", "Keywords (a.b = 1 is a={'b': 1}):", *lines])
        return function

    return told


def _keyword_lines(kind: type[Settings], group: str = "") -> list[str]:
    meanings, lines = explained(kind), []
    for field in msgspec.structs.fields(kind):
        name = f"{group}{field.encode_name}"
        if isinstance(field.default, Settings):
            lines += _keyword_lines(type(field.default), f"{name}.")
            continue
        meaning = spoken(meanings.get(field.name, ""))
        text = f"{name} = {field.default!r}" + (f": {meaning}" if meaning else "")
        lines += textwrap.wrap(text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return lines


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as plain data.

    Raises:
        ConfigError: If it is missing or malformed.
    """
    try:
        return tomllib.loads(read_bytes(path, ConfigError).decode())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def read_toml_by_name(path: str | Path, folder: Path) -> dict[str, Any]:
    """Read a TOML file, or the file of a bare name such as bert-tiny in a directory of bertkit.

    Raises:
        ConfigError: If it is missing or malformed.
    """
    path = Path(path)
    names = [file.stem for file in sorted(folder.glob("*.toml"))]
    if path.is_file() or path.parent != Path():
        return read_toml(path)
    if path.stem not in names:
        raise ConfigError(f"{path}: no such file; {did_you_mean(path.stem, names)}")
    return read_toml(folder / f"{path.stem}.toml")


def as_toml(settings: Settings) -> str:
    """Settings as a TOML file, without those that are none."""
    return tomli_w.dumps(without_none(plain(settings)))


def without_none(data: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data without what is none, group in group."""
    return {
        name: without_none(value) if isinstance(value, Mapping) else value
        for name, value in data.items()
        if value is not None
    }


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


def parse_changes(words: Sequence[str], options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the settings that words of a command line change, as pairs of name and value.

    The forms are `--train.steps 300`, `--train.steps=300`, and `train.steps=300`.

    Args:
        words: Words that are not options of the command.
        options: Options of the command, which are suggested for similar words.

    Raises:
        ConfigError: If a word is not a setting or has no value.
    """
    rest = iter(words)
    for word in rest:
        name, equals, value = word.removeprefix("--").partition("=")
        is_option = word.startswith("--")
        if "." not in name or not (is_option or equals):
            hint = did_you_mean(f"--{name}", options)
            raise ConfigError(f"{word!r}: not a setting; write --group.name VALUE; {hint}")
        if not equals:
            value = next(rest, "")
        if not value or (not equals and value.startswith("--")):
            raise ConfigError(f"--{name}: a value is missing; write --{name} VALUE")
        yield name, value


def _message(kind: type[Settings], data: Any, error: str, where: str) -> str:
    text, _, place = error.replace(" | null", "").partition(" - at ")  # TOML has no null
    inner = place.strip("`$").lstrip(".")
    path = ".".join(filter(None, [where, inner]))
    unknown = re.match(r"Object contains unknown field `(.*)`", text)
    if unknown:
        group, key = _group_at(kind, data, inner), unknown.group(1)
        known = [f.encode_name for f in msgspec.structs.fields(group)] if group else []
        return f"{'.'.join(filter(None, [path, key]))}: no such setting; {suggestion(key, known)}"
    missing = re.match(r"Object missing required field `(.*)`", text)
    if missing:
        return f"{'.'.join(filter(None, [path, missing.group(1)]))}: this setting is required"
    enum = re.match(r"Invalid enum value '(.*)'", text)
    if enum and (words := _choices(kind, data, inner)):
        return f"{path}: {text[0].lower()}{text[1:]}; {did_you_mean(enum[1], words)}"
    value = re.match(r"Invalid value '(.*)'", text)
    if value and inner.endswith("kind"):
        tags = [kind_of(option) for option in _options(kind, data, inner.rpartition(".")[0])]
        return f"{path}: no variant {value[1]!r}; {did_you_mean(value[1], filter(None, tags))}"
    group_of = re.match("Expected `object`, got `(?:int|float|str|bool|null)`", text)
    if group_of and (options := _options(kind, data, inner)):
        return f"{path}: expected a group of settings; use {_example(options, data, inner)}"
    return f"{path or 'config'}: {text[0].lower()}{text[1:]}"


def _example(options: Sequence[type[Settings]], data: Any, path: str) -> str:
    """Return how to set a group, if possible with the value that was passed instead of it."""
    keys = path.split(".")
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    tags = [tag for tag in map(kind_of, options) if tag is not None]
    example = f'"kind": "{data if data in tags else tags[0]}"' if tags else None
    for name in [] if tags else [f.encode_name for f in msgspec.structs.fields(options[0])]:
        example = example or f'"{name}": ...'
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.convert({name: data}, options[0])
            example = f'"{name}": {json.dumps(data)}'
            break
    return f"{keys[-1]}={{{example}}}"


def _choices(kind: type[Settings], data: Any, path: str) -> list[str]:
    """The words that a setting may be."""
    place, _, name = path.rpartition(".")
    group = _group_at(kind, data, place)
    hint = get_type_hints(group).get(name) if group else None
    literals = [one for one in (hint, *get_args(hint)) if get_origin(one) is Literal]
    return [word for one in literals for word in get_args(one) if isinstance(word, str)]


def kind_of(variant: type[Settings]) -> str | None:
    """The `kind` that names a variant in files; None for a group without variants."""
    tag = variant.__struct_config__.tag
    return None if tag is None else str(tag)


def _options(kind: type[Settings], data: Any, path: str) -> list[type[Settings]]:
    """The classes that may stand at a key path: several where a variant is to be chosen."""
    options: list[type[Settings]] = [kind]
    for key in filter(None, path.split(".")):
        group = _chosen(options, data)
        hint = get_type_hints(group).get(key) if group else None
        kinds = (hint, *get_args(hint))
        options = [o for o in kinds if isinstance(o, type) and issubclass(o, Settings)]
        data = data.get(key) if isinstance(data, Mapping) else None
    return options


def _group_at(kind: type[Settings], data: Any, path: str) -> type[Settings] | None:
    """The class of the settings at a key path."""
    options = _options(kind, data, path)
    for key in filter(None, path.split(".")):
        data = data.get(key) if isinstance(data, Mapping) else None
    return _chosen(options, data)


def _chosen(options: Sequence[type[Settings]], data: Any) -> type[Settings] | None:
    """The variant that the data names, or the only class."""
    named = data.get("kind") if isinstance(data, Mapping) else None
    return next((o for o in options if kind_of(o) in (None, named)), None)


def api_key(name: str, key: str | None = None) -> str | None:
    """Return an API key without surrounding white space, or None if there is none.

    Args:
        name: Environment variable that contains the key.
        key: Key that is used instead.

    Raises:
        ConfigError: If no header can contain the key; the message does not show it.
    """
    key = (key or os.environ.get(name, "")).strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{name}: the key contains a character that is not printable ASCII")
    return key or None
