"""Conversion of functions to commands: parameters become options, and docstrings become help."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin, get_type_hints

import msgspec
from cyclopts import Group, Parameter

from bertkit.config import PYTHON_ONLY, Settings, as_toml, decode, explained, plain
from bertkit.console import STDIN, print_json, print_table
from bertkit.errors import ConfigError


def command(function: Callable[..., Any]) -> Callable[..., None]:
    """Wrap a function as a CLI command that parses its arguments and prints its return value.

    Parameters become options, and their entries under `Args:` become the help. A parameter of type
    `Settings` becomes one option per field. A list becomes a repeatable option with a singular
    name: `heads` becomes `--head`. Parameters of type `PythonOnly`, or of a type that cannot be
    written on a command line, are not options.

    Args:
        function: The function. Each of its parameters must have a type.

    Returns:
        The command. Its annotations are the types of its options.

    Raises:
        ConfigError: If two options have the same name.
    """
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    kinds = {name: _settings_type(hints[name]) for name in signature.parameters}
    groups = {name: kind for name, kind in kinds.items() if kind is not None}
    parameters = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if name in groups or _parsed_type(hints[name]) is not None
    }
    positional = [n for n, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    tabular = JSON not in parameters and _has_names(hints.get("return"))
    has_file = PRINT_CONFIG in parameters
    added = [_JSON_OPTION] * tabular + [_PRINT_CONFIG_OPTION] * (not has_file)

    def convert(name: str, value: Any) -> Any:
        """Check a parsed value, and convert it to the type that the function expects."""
        if name not in hints:
            return value
        if name in groups:
            return _read_settings(groups[name], value, changes=name in CHANGES)
        if type(value) in (int, float):
            _check_number(name, value, hints[name])
        return value if _takes_path(hints[name]) else _restore_dashes(value)

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        as_json = options.pop(JSON, False) if tabular else False
        print_config = options.pop(PRINT_CONFIG, False)
        named = [
            None if name in PIPED and value in (STDIN, [STDIN]) else convert(name, value)
            for name, value in zip(positional, arguments, strict=False)
        ]
        options = {name: convert(name, value) for name, value in options.items()}
        if print_config and not has_file:
            defaults = {name: kind() for name, kind in groups.items() if name not in CHANGES}
            result = _options_by_name(run, defaults | options)
        else:
            options |= {PRINT_CONFIG: True} if print_config else {}
            result = function(*named, *arguments[len(positional) :], **options)
        if print_config:
            print(as_toml(result), end="")
        else:
            print_result(result, as_json=as_json)

    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=sorted([*parameters.values(), *added], key=lambda parameter: parameter.kind)
    )
    run.__annotations__ = {
        name: _options_of(groups[name], title=TITLES.get(name), changes=name in CHANGES)
        if name in groups
        else _option(name, hints[name], parameter.kind)
        for name, parameter in parameters.items()
    }
    run.__annotations__ |= {parameter.name: parameter.annotation for parameter in added}
    _check_names(["config", *parameters.keys() - groups.keys()], groups.values())
    return run


TITLES = {
    "settings": "Settings",
    "options": "Settings of the task",
    "decoding": "Generation",
    "reading": "Columns of files",
    "samples": "Samples of a corpus",
}
"""Headings in --help for the settings of a parameter, in the order in which they are shown."""

CHANGES = ("decoding",)
"""Parameters whose settings default to the settings in the model directory. The function receives a
mapping that contains only the options that the user has set."""

PIPED = ("text", "texts", "query")
"""Positional parameters that default to the lines of stdin. The value - also selects stdin."""

JSON = "json"
"""Name of the option that prints JSON in a terminal, instead of a table."""

_JSON_OPTION = inspect.Parameter(
    JSON,
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, Parameter(negative="", help="Print JSON instead of a table in a terminal.")
    ],
)

PRINT_CONFIG = "print_config"
"""Name of the option that prints all options as TOML.

If a function has a parameter of this name, it returns the content of its file instead."""

_PRINT_CONFIG_OPTION = inspect.Parameter(
    PRINT_CONFIG,
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, Parameter(negative="", show=False)],
)

REPORTED = ("by_label", "confusion")
"""Keys of a result that the command has already printed as tables."""


def print_result(result: Any, *, as_json: bool = True) -> None:
    """Print the result of a command as one line of JSON, or as one line per item of an iterator.

    In a terminal, a mapping or struct is printed as a table.

    Args:
        result: Result of the command.
        as_json: Whether to print JSON in a terminal too.
    """
    if isinstance(result, Iterator):
        for item in result:
            print_json(item)
    elif isinstance(result, Mapping | msgspec.Struct) and not as_json and sys.stdout.isatty():
        values = msgspec.to_builtins(result)
        print_table({name: value for name, value in values.items() if name not in REPORTED})
    elif isinstance(result, Mapping | msgspec.Struct | list):
        print_json(result)
    elif isinstance(result, Path | str):
        print(result)


def _options_by_name(run: Callable[..., None], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a command by name, including default values."""
    parameters = inspect.signature(run).parameters
    data = {name: value for name, value in options.items() if name not in parameters}
    for name, parameter in parameters.items():
        value = options.get(name, parameter.default)
        if isinstance(value, Settings | Mapping):
            data |= plain(value) if isinstance(value, Settings) else value
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in (JSON, PRINT_CONFIG):
            data |= _named(run.__annotations__[name], name, value)
    return data


def _named(annotation: Any, name: str, value: Any) -> dict[str, Any]:
    """Return a dict that contains a value under the name of its option."""
    for part in getattr(annotation, "__metadata__", ()):
        if isinstance(part, Parameter) and part.name:
            name = next(iter(part.name)).removeprefix("--").replace("-", "_")
    return {name: value}


def _has_names(hint: Any) -> bool:
    """Return whether a result of this type is a mapping or struct."""
    types = (hint, *get_args(hint)) if get_origin(hint) in (Union, UnionType) else (hint,)
    return any(
        get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))
        for kind in types
    )


def _settings_type(hint: Any) -> type[Settings] | None:
    """Return the settings class that the type of a parameter contains, or None."""
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type) and issubclass(kind, Settings):
            return kind
    return None


def _read_settings(kind: type[Settings], parsed: Any, *, changes: bool) -> Any:
    """Convert a parsed dataclass of `_options_of` to settings, or to a dict if `changes` is set."""
    values = {name: _restore_dashes(value) for name, value in vars(parsed).items()}
    if changes:
        return {name: value for name, value in values.items() if value is not None}
    for name, default in _nested_settings(kind).items():
        values[name] = default if values[name] is None else vars(values[name])
    return decode(kind, values)


def _options_of(
    kind: type[Settings], name: str = "*", title: str | None = None, *, changes: bool = False
) -> Any:
    """Create a dataclass for the parser, with one field per setting.

    Args:
        kind: Class of the settings.
        name: Prefix of the options of nested settings, such as lora in --lora.rank.
        title: Heading of the options in --help.
        changes: Whether all fields default to None; see `CHANGES`.
    """
    meanings, nested = explained(kind), _nested_settings(kind)
    fields: list[Any] = []
    for setting in msgspec.structs.fields(kind):
        field: Any = dataclasses.field(metadata={"help": meanings.get(setting.name, "")})
        if changes:
            field.default = None
        elif setting.default is not msgspec.NODEFAULT:
            field.default = setting.default
        elif setting.default_factory is not msgspec.NODEFAULT:
            field.default_factory = setting.default_factory
        if setting.name in nested:
            field.default = None
            inner = _options_of(type(nested[setting.name]), setting.name, title)
            fields.append((setting.name, inner, field))
        else:
            hint = Optional[setting.type] if changes else setting.type  # noqa: UP045 (not a type hint)
            fields.append((setting.encode_name, hint, field))
    namespace = {"__module__": kind.__module__}
    options = dataclasses.make_dataclass(kind.__name__, fields, kw_only=True, namespace=namespace)
    parameter = Parameter(name=name, parse=bool(fields))
    if title is not None:
        group = Group(title, sort_key=list(TITLES.values()).index(title))
        parameter = Parameter.combine(parameter, Parameter(group=group))
    return Annotated[options | None, parameter]


def _nested_settings(kind: type[Settings]) -> dict[str, Settings]:
    """Return the fields that contain settings themselves, with their default values."""
    fields = msgspec.structs.fields(kind)
    return {field.name: field.default for field in fields if isinstance(field.default, Settings)}


def _option(name: str, hint: Any, kind: Any) -> Any:
    """Return the type annotation with which the parser reads an option."""
    parsed = _parsed_type(hint)
    is_list = get_origin(_without_none(parsed)) is list
    if kind is inspect.Parameter.KEYWORD_ONLY and is_list and name.endswith("s"):
        return Annotated[parsed, Parameter(name=f"--{name[:-1].replace('_', '-')}")]
    return parsed


def _parsed_type(hint: Any) -> Any:
    """Return the part of a type that can be parsed, such as Path in Path | Loaded, or None."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if arguments[0] is bool and get_origin(arguments[1]) is Literal:
            return hint  # This is a flag with an optional value.
        parsed = [kind for argument in arguments if (kind := _parsed_type(argument)) is not None]
        parsed = [kind for kind in parsed if kind is not NoneType][:1]
        return parsed[0] | None if parsed and NoneType in arguments else next(iter(parsed), None)
    if origin is Annotated:
        is_option = PYTHON_ONLY not in arguments and _parsed_type(arguments[0]) is not None
        return hint if is_option else None
    if origin in (list, Sequence):
        item = _parsed_type(arguments[0])
        return None if item is None else list[item]  # type: ignore[valid-type]
    return hint if origin is Literal or hint in (str, Path, int, float, bool, NoneType) else None


def _without_none(hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return kinds[0] if get_origin(hint) in (Union, UnionType) else hint


def _takes_path(hint: Any) -> bool:
    return hint is Path or any(map(_takes_path, get_args(hint)))


def _restore_dashes(value: Any) -> Any:
    """Replace the path of stdin by - in a text or list of texts, as the user wrote it."""
    if isinstance(value, list):
        return ["-" if item == STDIN else item for item in value]
    return "-" if value == STDIN else value


def _check_number(name: str, value: float, hint: Any) -> None:
    """Raise ConfigError if a number is not finite, or outside the bounds of its type."""
    if not math.isfinite(value):
        raise ConfigError(f"{name}: expected a finite number, got {value}")
    try:
        msgspec.convert(value, _parsed_type(hint))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {str(error)[0].lower()}{str(error)[1:]}") from None


def _check_names(options: Sequence[str], groups: Any) -> None:
    """Raise ConfigError if two options have the same name."""
    names = set(options)
    for kind in groups:
        for name in kind.__struct_encode_fields__:
            if name in names:
                raise ConfigError(
                    f"{kind.__qualname__}.{name}: another setting has this name; rename it"
                )
            names.add(name)
