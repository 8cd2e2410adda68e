"""A command is a function: its parameters are the options, its docstring the help."""

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
from docstring_parser import parse

from bertkit.config import Settings, decode, explained
from bertkit.console import STDIN, print_json, print_table
from bertkit.errors import ConfigError


def command(function: Callable[..., Any]) -> Callable[..., None]:
    """The function as a command: words become its arguments, and what it returns is printed.

    Its options are the parameters that its docstring names under `Args:`, of the types that a
    word can be, and every setting of a parameter that is a group of settings. A list is an option
    to repeat, so its name is singular: `heads` is `--head`.
    Raises: ConfigError for two options of one name.
    """
    hints = get_type_hints(function, include_extras=True)
    documented = {param.arg_name for param in parse(function.__doc__ or "").params}
    signature = inspect.signature(function)
    parameters = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD  # for Python alone
    }
    groups = {name: kind for name in parameters if (kind := _settings(hints[name])) is not None}
    named = [p for p in parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY]

    def _given_text(parameter: inspect.Parameter, value: Any) -> Any:
        if _takes_path(hints[parameter.name]):
            return value
        return _said(value, piped=parameter.name in PIPED)

    tabular = JSON not in parameters and _is_table(hints.get("return"))

    @functools.wraps(function)
    def run(*texts: Any, **options: Any) -> None:
        for name, value in options.items():
            if name in groups:
                given = {n: _said(v) for n, v in vars(value).items()}
                if name in CHANGES:
                    options[name] = {n: v for n, v in given.items() if v is not None}
                else:
                    options[name] = decode(groups[name], _given(groups[name], given))
            elif type(value) in (int, float):
                _check_bounds(name, value, hints[name])
            elif not _takes_path(hints.get(name)):
                options[name] = _said(value)
        texts = (*map(_given_text, named, texts), *texts[len(named) :])
        as_json = options.pop(JSON, False) if tabular else False
        print_result(function(*texts, **options), as_json=as_json)

    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters.values(), *([_JSON_OPTION] if tabular else ())]
    )
    run.__annotations__ = {
        name: _flat(groups[name], title=TITLES.get(name), changes=name in CHANGES)
        if name in groups
        else _option(name, hints[name], parameter.kind, documented)
        for name, parameter in parameters.items()
    }
    if tabular:
        run.__annotations__[JSON] = _JSON_OPTION.annotation
    _refuse_same_names([name for name in parameters if name not in groups], groups.values())
    return run


TITLES = {
    "settings": "Settings",
    "options": "Settings of the task",
    "decoding": "How it writes",
    "reading": "Columns of files",
    "samples": "Samples of a corpus",
}
"""Under what --help has the settings of a parameter of this name, in this order."""

CHANGES = ("decoding",)
"""Parameters whose settings have the defaults of the model directory. The function gets a mapping
of the options that are set."""

PIPED = ("text", "texts", "prompt", "query")
"""Parameters that are by default the lines of stdin."""

JSON = "json"
"""The option of commands whose result is a table at a terminal."""

_JSON_OPTION = inspect.Parameter(
    JSON,
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, Parameter(negative="", help="Print a line of JSON at a terminal, as elsewhere.")
    ],
)

TOLD = ("by_label", "confusion")
"""What commands have told as tables on the way."""


def print_result(result: Any, *, as_json: bool = True) -> None:
    """A line of JSON for a result, or for each of those that come one by one.

    A result with names is a table at a terminal, unless it is to be `as_json`.
    """
    if isinstance(result, Iterator):
        for one in result:
            print_json(one)
    elif isinstance(result, Mapping | msgspec.Struct) and not as_json and sys.stdout.isatty():
        named = msgspec.to_builtins(result)
        print_table({name: value for name, value in named.items() if name not in TOLD})
    elif isinstance(result, Mapping | msgspec.Struct | list):
        print_json(result)
    elif isinstance(result, Path | str):
        print(result)


def _is_table(hint: Any) -> bool:
    """Whether a result of this type has names."""
    kinds = (hint, *get_args(hint)) if get_origin(hint) in (Union, UnionType) else (hint,)
    return any(
        get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))
        for kind in kinds
    )


def _settings(hint: Any) -> type[Settings] | None:
    """The group of settings that a parameter takes."""
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type) and issubclass(kind, Settings):
            return kind
    return None


def _flat(
    kind: type[Settings], name: str = "*", title: str | None = None, *, changes: bool = False
) -> Any:
    """Return settings as a dataclass for the parser: an option for each, under a title in --help.

    Those of a group in it begin with its `name` and a dot. With `changes` the options have no
    defaults.
    """
    meanings, groups = explained(kind), _groups(kind)
    fields: list[Any] = []
    for setting in msgspec.structs.fields(kind):
        field: Any = dataclasses.field(metadata={"help": meanings.get(setting.name, "")})
        if changes:
            field.default = None
        elif setting.default is not msgspec.NODEFAULT:
            field.default = setting.default
        elif setting.default_factory is not msgspec.NODEFAULT:
            field.default_factory = setting.default_factory
        if setting.name in groups:
            field.default = None
            inner = _flat(type(groups[setting.name]), setting.name, title)
            fields.append((setting.name, inner, field))
        else:
            hint = Optional[setting.type] if changes else setting.type  # noqa: UP045 (a value)
            fields.append((setting.encode_name, hint, field))
    namespace = {"__module__": kind.__module__}
    flat = dataclasses.make_dataclass(kind.__name__, fields, kw_only=True, namespace=namespace)
    option = Parameter(name=name, parse=bool(fields))
    if title is not None:
        group = Group(title, sort_key=list(TITLES.values()).index(title))
        option = Parameter.combine(option, Parameter(group=group))
    return Annotated[flat | None, option]


def _groups(kind: type[Settings]) -> dict[str, Settings]:
    """The groups within a group of settings, as they are by default."""
    fields = msgspec.structs.fields(kind)
    return {field.name: field.default for field in fields if isinstance(field.default, Settings)}


def _given(kind: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a command, with those of groups as dicts."""
    given = dict(values)
    for name, default in _groups(kind).items():
        given[name] = default if given[name] is None else vars(given[name])
    return given


def _option(name: str, hint: Any, kind: Any, documented: set[str]) -> Any:
    """The type of an option; a parameter for Python alone is none."""
    typed = _typed(hint)
    if kind is inspect.Parameter.KEYWORD_ONLY:
        if name not in documented or typed is None:
            return Annotated[hint, Parameter(parse=False)]
        if name.endswith("s") and get_origin(_without_none(typed)) is list:
            return Annotated[typed, Parameter(name=f"--{name[:-1].replace('_', '-')}")]
    return typed


def _typed(hint: Any) -> Any:
    """Of a type the part that words can be: a path of a path or an open model."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if arguments[0] is bool and get_origin(arguments[1]) is Literal:
            return hint  # a flag behind which a word may stand
        kinds = [kind for one in arguments if (kind := _typed(one)) is not None]
        kinds = [kind for kind in kinds if kind is not NoneType][:1]
        return kinds[0] | None if kinds and NoneType in arguments else next(iter(kinds), None)
    if origin is Annotated:
        return hint if _typed(arguments[0]) is not None else None
    if origin in (list, Sequence):
        item = _typed(arguments[0])
        return None if item is None else list[item]  # type: ignore[valid-type]
    return hint if origin is Literal or hint in (str, Path, int, float, bool, NoneType) else None


def _without_none(hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return kinds[0] if get_origin(hint) in (Union, UnionType) else hint


def _takes_path(hint: Any) -> bool:
    return hint is Path or any(map(_takes_path, get_args(hint)))


def _said(value: Any, *, piped: bool = False) -> Any:
    """A text, or several, among which `-` is itself. Alone it is left out where the command then
    reads the lines of stdin."""
    if piped and value in (STDIN, [STDIN]):
        return None
    if isinstance(value, list):
        return ["-" if one == STDIN else one for one in value]
    return "-" if value == STDIN else value


def _check_bounds(name: str, value: float, hint: Any) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{name}: expected a finite number, got {value}")
    try:
        msgspec.convert(value, _typed(hint))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: {str(error)[0].lower()}{str(error)[1:]}") from None


def _refuse_same_names(options: Sequence[str], groups: Any) -> None:
    known = set(options)
    for kind in groups:
        for name in kind.__struct_encode_fields__:
            if name in known:
                raise ConfigError(
                    f"{kind.__qualname__}.{name}: another setting has this name; choose one of "
                    "your own"
                )
            known.add(name)
