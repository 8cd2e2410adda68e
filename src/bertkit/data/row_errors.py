"""Rows that cannot be used, named all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from bertkit.console import say
from bertkit.errors import DataError

NAMED, FEW = 100, 5
"""How many that cannot be used are named each in a line, and how many names a sentence holds."""

MAX_ROW_ERRORS = 1000
"""After so many nothing more is read: perhaps all rows are like that."""

R = TypeVar("R")
T = TypeVar("T")


class BadRows(DataError):
    """Several rows of a file cannot be used; `each` says what is wrong with one."""

    each: Sequence[str] = ()


def each_of(read: Callable[[T], R], rows: Iterable[T]) -> list[R]:
    """What is read of each row. Raises: DataError for one bad row, BadRows for several."""
    made, bad = [], []
    for row in rows:
        try:
            made.append(read(row))
        except DataError as error:
            bad.append(error)
            if len(bad) == MAX_ROW_ERRORS:
                break
    refuse(bad)
    return made


def refuse(bad: Sequence[DataError]) -> None:
    """Raises: DataError for one bad row, BadRows for several, where there are any."""
    if not bad:
        return
    if len(bad) == 1:
        raise bad[0]
    each = [error.args[0] for error in bad]
    count = f"{len(bad):,}" + " or more" * (len(bad) == MAX_ROW_ERRORS)
    error = BadRows(f"{each[0]} ({count} rows cannot be used: {some(map(place, each))})")
    error.each = each
    raise error


def place(message: str) -> str:
    """Where something is wrong: what a message begins with."""
    return message.split(": ")[0]


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    shown = ", ".join(listed[:FEW])
    return shown if len(listed) <= FEW else f"{shown} and {len(listed) - FEW:,} more"


@contextmanager
def shown() -> Iterator[None]:
    """Log what is wrong with each of several bad rows."""
    try:
        yield
    except BadRows as error:
        show(error.each)
        raise


def show(each: Sequence[str], before: str = "") -> None:
    """Say what is wrong with each, a line for one."""
    for message in each[:NAMED]:
        say(f"{before}{message}")
    if len(each) > NAMED:
        say(f"… and {len(each) - NAMED:,} more")
