"""A command whose options are settings: their names, types, meanings and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter as Argument
from inspect import Signature
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from bertkit.config import Settings, decode, explained
from bertkit.errors import ConfigError

Own = Mapping[str, tuple[Any, ...]]
"""An argument's type, meaning and, unless it is required, default."""


def command(
    call: Callable[..., Any],
    meaning: str,
    own: Own,
    *,
    positional: Own | None = None,
    **groups: type[Settings],
) -> Any:
    """A command that calls `call` with its own arguments and a Settings object for each group."""

    defaults = {name: default[0] for name, (_, _, *default) in own.items() if default}

    def run(*texts: Any, **given: Any) -> None:
        parts = {
            name: decode(kind, {k: given.pop(k) for k in kind.__struct_fields__ if k in given})
            for name, kind in groups.items()
        }
        for name, value in given.items():
            if isinstance(value, int | float):  # of numbers a type says the bounds too
                try:
                    msgspec.convert(value, own[name][0])
                except msgspec.ValidationError as error:
                    raise ConfigError(f"{name}: {error}") from None
        call(*texts, **{**defaults, **given}, **parts)

    positional = positional or {}
    all_of = {**positional, **own}
    for kind in groups.values():
        meant = explained(kind)
        for field in msgspec.structs.fields(kind):
            if field.name in all_of:
                raise ConfigError(
                    f"{kind.__qualname__}.{field.name}: another setting has this name; choose one "
                    "of your own"
                )
            all_of[field.name] = (field.type, meant.get(field.name, ""), field.default)
    arguments = [
        Argument(
            name,
            Argument.POSITIONAL_ONLY if name in positional else Argument.KEYWORD_ONLY,
            default=default[0] if default else Argument.empty,
            annotation=Annotated[kind, Parameter(help=about)],
        )
        for name, (kind, about, *default) in all_of.items()
    ]
    vars(run)["__signature__"] = Signature(arguments)
    run.__annotations__ = {argument.name: argument.annotation for argument in arguments}
    run.__doc__ = meaning
    return run
