"""Immutable, typed settings, which are validated when they are read.

A setting that is unknown, has the wrong type, or has an impossible value raises an error. Files,
overrides and messages refer to a setting by its key path, such as `train.learning_rate`.
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
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import tomli_w
from msgspec import Meta

from bertkit.errors import ConfigError, did_you_mean, format_message
from bertkit.storage import read_bytes
from bertkit.synonyms import suggestion

Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(ge=0.0, lt=1.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Weight = Annotated[float, Meta(ge=0.0)]
Positive = Annotated[float, Meta(gt=0.0)]
Seed = Annotated[int, Meta(ge=0, lt=2**31)]

PYTHON_ONLY = "python only"
"""Annotation of parameters that exist only in Python, not as command-line options."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of all groups of settings."""


S = TypeVar("S", bound=Settings)
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PythonOnly = Annotated[T, PYTHON_ONLY]
"""Type of a parameter that exists only in Python, not as a command-line option: `PythonOnly[int]`.
"""


def decode(kind: type[S], data: Any, location: str = "") -> S:
    """Validate plain data, such as a parsed TOML or JSON file, and convert it to settings.

    Args:
        kind: Class of the settings.
        data: The plain data.
        location: Key path of this group of settings, for error messages.

    Raises:
        ConfigError: If a setting is invalid. The message contains its key path, and a suggestion
            for an unknown name.
    """
    try:
        settings = msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_message(kind, data, str(error), location)) from None
    for path, value in flat(data).items():
        for item in value if isinstance(value, list | tuple) else [value]:
            # JSON cannot represent NaN and infinity.
            if isinstance(item, float) and not math.isfinite(item):
                full_path = ".".join(filter(None, [location, path]))
                raise ConfigError(f"{full_path}: expected a finite number, got {item}")
    return settings


def with_keywords(
    caller: str,
    groups: Mapping[type[Settings], Settings | Mapping[str, Any] | None],
    keywords: Mapping[str, Any],
) -> list[Any]:
    """Combine groups of settings with keyword arguments.

    Settings objects are also validated, because their constructor validates nothing.

    Args:
        caller: Name of the function that was called, for error messages.
        groups: For each class of settings, a settings object, a dict, or None for the defaults.
        keywords: Settings of any group, by name. They take precedence over `groups`.

    Returns:
        One settings object per class, in the order of `groups`.

    Raises:
        ConfigError: If a value is invalid, or no group has a setting with the name of a keyword.
    """
    fields = {kind: [f.encode_name for f in msgspec.structs.fields(kind)] for kind in groups}
    known = [name for names in fields.values() for name in names]
    for name in keywords:
        if name not in known:
            raise ConfigError(f"{name}: {caller} has no such setting; {suggestion(name, known)}")
    results: list[Any] = []
    for kind, given in groups.items():
        changes = {name: value for name, value in keywords.items() if name in fields[kind]}
        # Callers without a type checker may pass any type.
        group: object = given
        if not isinstance(group, kind | Mapping | None):
            raise ConfigError(
                f"{caller}: expected {kind.__name__} or a dict, got {type(group).__name__}"
            )
        data = plain(given) if isinstance(given, Settings) else dict(given or {})
        results.append(decode(kind, msgspec.to_builtins({**data, **changes}, enc_hook=_simple)))
    return results


def _simple(value: Any) -> Any:
    """Convert NumPy scalars and arrays to Python values, and other objects to strings."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def plain(settings: Settings) -> dict[str, Any]:
    """Return settings as plain data, including defaults.

    The result can be compared with a JSON file, because it contains only types that JSON has.
    """
    result = json.loads(json.dumps(msgspec.to_builtins(settings)))
    assert isinstance(result, dict)
    return result


def paths(kind: type[Settings]) -> dict[str, Any]:
    """Return the default value of each setting, by key path.

    A group that has a default and no variants is replaced by its settings.
    """
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
    """Return the value of the setting at a key path."""
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a mapping from key paths to values into nested dicts."""
    data: dict[str, Any] = {}
    for path, value in values.items():
        *groups, last = path.split(".")
        group = data
        for name in groups:
            group = group.setdefault(name, {})
        group[last] = msgspec.to_builtins(value)
    return data


def flat(data: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Convert nested dicts into a mapping from key paths to values."""
    values: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{path}{name}.")
        else:
            values[f"{path}{name}"] = value
    return values


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the defaults in which given values replace defaults, group by group.

    A given group with a different `kind` replaces the whole default group.
    """
    result = dict(defaults)
    for name, value in given.items():
        other = result.get(name)
        if isinstance(other, Mapping) and isinstance(value, Mapping):
            same = value.get("kind", other.get("kind")) == other.get("kind", value.get("kind"))
            value = merged(other, value) if same else value
        result[name] = value
    return result


@cache
def explained(kind: type[Settings]) -> Mapping[str, str]:
    """Return the docstrings of settings, by name of the setting."""
    texts: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not issubclass(owner, Settings) or owner is Settings:
            continue
        try:
            [body] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        except (OSError, TypeError, ValueError, SyntaxError):
            # The source of the class is not available.
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


KEYWORDS = "Keywords (pass a.b = 1 as a={'b': 1})"
"""Heading of the list of settings in a docstring."""


def document_keywords(*kinds: type[Settings], title: str = KEYWORDS) -> Callable[[F], F]:
    """Return a decorator that adds a list of settings to the docstring of a function.

    The list contains the name, type, default, and description of each setting.

    Args:
        kinds: Classes of the settings.
        title: Heading of the list.
    """

    def decorate(function: F) -> F:
        lines = [line for kind in kinds for line in _keyword_lines(kind)]
        doc = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = "\n".join([doc, "", f"{title}:", *lines])
        return function

    return decorate


def _keyword_lines(kind: type[Settings], group: str = "") -> list[str]:
    meanings, hints, lines = explained(kind), get_type_hints(kind), []
    for field in msgspec.structs.fields(kind):
        name, hint = f"{group}{field.encode_name}", hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Settings):
            lines += _keyword_lines(hint, f"{name}.")
            continue
        hint = re.sub(r"(\w+\.)+(?=[A-Z])", "", inspect.formatannotation(hint))
        default = "" if field.required else f" = {field.default!r}"
        text = f"{name} ({hint}){default}: {format_message(meanings.get(field.name, ''))}"
        lines += textwrap.wrap(text, 96, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return lines


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as plain data.

    Raises:
        ConfigError: If the file is missing or malformed.
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
    """Read a TOML file, given its path or the name of a file in `folder`, such as bert-tiny.

    Raises:
        ConfigError: If the file is missing or malformed.
    """
    path = Path(path)
    names = [file.stem for file in sorted(folder.glob("*.toml"))]
    if path.is_file() or path.parent != Path():
        return read_toml(path)
    if path.stem not in names:
        raise ConfigError(f"{path}: no such file; {did_you_mean(path.stem, names)}")
    return read_toml(folder / f"{path.stem}.toml")


def as_toml(settings: Settings | Mapping[str, Any]) -> str:
    """Return settings as TOML, without values that are None."""
    return tomli_w.dumps(drop_null_values(msgspec.to_builtins(settings, enc_hook=str)))


def drop_null_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of nested dicts without the values that are None."""
    return {
        name: drop_null_values(value) if isinstance(value, Mapping) else value
        for name, value in data.items()
        if value is not None
    }


def override(data: Mapping[str, Any], settings: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return a copy of the data in which some settings are replaced.

    `settings` contains pairs of a key path and a value, such as `("train.steps", "300")`. Values
    are parsed as TOML. A value that is not valid TOML is used as a string.
    """
    result: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in data.items()}
    for path, text in settings:
        *groups, last = path.split(".")
        table = result
        for group in groups:
            inner = table.setdefault(group, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{path}: {group!r} is a value, not a group of settings")
            table[group] = table = dict(inner)
        try:
            table[last] = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            table[last] = text
    return result


def parse_changes(words: Sequence[str], options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Parse command-line arguments that change settings, and yield key paths and values.

    The accepted forms are `--train.steps 300`, `--train.steps=300`, and `train.steps=300`.

    Args:
        words: Arguments that are not options of the command.
        options: Options of the command. One of them is suggested if an argument is misspelled.

    Raises:
        ConfigError: If an argument is not a setting, or the value of a setting is missing.
    """
    rest = iter(words)
    for word in rest:
        name, equals, value = word.removeprefix("--").partition("=")
        is_option = word.startswith("--")
        if "." not in name or not (is_option or equals):
            hint = did_you_mean(f"--{name}", options)
            raise ConfigError(f"{word!r}: not a setting; settings are --group.name VALUE; {hint}")
        if not equals:
            value = next(rest, "")
        if not value or (not equals and value.startswith("--")):
            raise ConfigError(f"--{name}: a value is missing; write --{name} VALUE")
        yield name, value


def _message(kind: type[Settings], data: Any, error: str, location: str) -> str:
    # TOML has no null.
    text, _, position = error.replace(" | null", "").partition(" - at ")
    inner = position.strip("`$").lstrip(".")
    path = ".".join(filter(None, [location, inner]))
    unknown = re.match(r"Object contains unknown field `(.*)`", text)
    if unknown:
        group, key = _chosen(*_options(kind, data, inner)), unknown.group(1)
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
        options, _ = _options(kind, data, inner.rpartition(".")[0])
        tags = filter(None, map(kind_of, options))
        return f"{path}: no variant {value[1]!r}; {did_you_mean(value[1], tags)}"
    group_of = re.match("Expected `object`, got `(?:int|float|str|bool|null)`", text)
    options, given = _options(kind, data, inner)
    if group_of and options:
        example = _example(options, given, inner.rpartition(".")[2])
        return f"{path}: expected a group of settings; use {example}"
    return f"{path or 'config'}: {text[0].lower()}{text[1:]}"


def _example(options: Sequence[type[Settings]], value: Any, name: str) -> str:
    """Return code that sets a group, with the user's value if a setting of the group accepts it."""
    tags = [tag for tag in map(kind_of, options) if tag is not None]
    example = f'"kind": "{value if value in tags else tags[0]}"' if tags else None
    for setting in [] if tags else [f.encode_name for f in msgspec.structs.fields(options[0])]:
        example = example or f'"{setting}": ...'
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.convert({setting: value}, options[0])
            example = f'"{setting}": {json.dumps(value)}'
            break
    return f"{name}={{{example}}}"


def _choices(kind: type[Settings], data: Any, path: str) -> list[str]:
    """Return the strings that a setting accepts."""
    parent, _, name = path.rpartition(".")
    group = _chosen(*_options(kind, data, parent))
    hint = get_type_hints(group).get(name) if group else None
    literals = [option for option in (hint, *get_args(hint)) if get_origin(option) is Literal]
    return [word for option in literals for word in get_args(option) if isinstance(word, str)]


def kind_of(variant: type[Settings]) -> str | None:
    """Return the `kind` that selects a variant in files, or None if the group has no variants."""
    tag = variant.__struct_config__.tag
    return None if tag is None else str(tag)


def _options(kind: type[Settings], data: Any, path: str) -> tuple[list[type[Settings]], Any]:
    """Return the class of the group at a key path, and the data at the path.

    If the group has variants, return the class of each variant.
    """
    options: list[type[Settings]] = [kind]
    for key in filter(None, path.split(".")):
        group = _chosen(options, data)
        hint = get_type_hints(group).get(key) if group else None
        kinds = (hint, *get_args(hint))
        options = [o for o in kinds if isinstance(o, type) and issubclass(o, Settings)]
        data = data.get(key) if isinstance(data, Mapping) else None
    return options, data


def _chosen(options: Sequence[type[Settings]], data: Any) -> type[Settings] | None:
    """Return the variant that `kind` in the data selects, or the class if there are no variants."""
    named = data.get("kind") if isinstance(data, Mapping) else None
    return next((o for o in options if kind_of(o) in (None, named)), None)


def api_key(name: str, key: str | None = None) -> str | None:
    """Return an API key without surrounding white space, or None if no key is set.

    Args:
        name: Environment variable that contains the key.
        key: Key to use instead of the environment variable.

    Raises:
        ConfigError: If the key contains a character that an HTTP header cannot contain. The
            message does not contain the key.
    """
    key = (key or os.environ.get(name, "")).strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{name}: the key contains a character that is not printable ASCII")
    return key or None
