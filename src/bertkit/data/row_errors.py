"""Functions that collect the errors of several rows and report them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from bertkit.console import say
from bertkit.errors import DataError

MAX_LINES, MAX_NAMES = 100, 5
"""Maximum number of invalid rows that are logged, and maximum number of names in a message."""

MAX_ROW_ERRORS = 1000
"""Number of invalid rows after which reading stops, because all rows may be invalid."""

R = TypeVar("R")
T = TypeVar("T")


class BadRows(DataError):
    """Several rows of a file cannot be used. `each` contains one message per invalid row."""

    each: Sequence[str] = ()


def read_each(read: Callable[[T], R], rows: Iterable[T]) -> list[R]:
    """Call a function for each row, and return the results.

    Rows after an invalid row are also read, so that one error reports all invalid rows.

    Raises:
        DataError: If one row cannot be used.
        BadRows: If several rows cannot be used.
    """
    results, bad = [], []
    for row in rows:
        try:
            results.append(read(row))
        except DataError as error:
            bad.append(error)
            if len(bad) == MAX_ROW_ERRORS:
                break
    raise_errors(bad)
    return results


def raise_errors(bad: Sequence[DataError]) -> None:
    """Raise the errors of invalid rows as one error, if there are any.

    Raises:
        DataError: If there is one error.
        BadRows: If there are several errors.
    """
    if not bad:
        return
    if len(bad) == 1:
        raise bad[0]
    each = [error.args[0] for error in bad]
    count = f"{len(bad):,}" + " or more" * (len(bad) == MAX_ROW_ERRORS)
    locations = shorten_list(map(location_of, each))
    error = BadRows(f"{each[0]} ({count} rows cannot be used: {locations})")
    error.each = each
    raise error


def location_of(message: str) -> str:
    """Return the location at the beginning of a message, such as `rows.csv:17`."""
    return message.split(": ")[0]


def shorten_list(names: Iterable[str]) -> str:
    """Join names with commas. Only the first few are listed, with the number of the others."""
    texts = list(names)
    text = ", ".join(texts[:MAX_NAMES])
    return text if len(texts) <= MAX_NAMES else f"{text} and {len(texts) - MAX_NAMES:,} more"


@contextmanager
def log_errors() -> Iterator[None]:
    """Log one message per invalid row if code in the `with` block raises `BadRows`."""
    try:
        yield
    except BadRows as error:
        log_messages(error.each)
        raise


def log_messages(each: Sequence[str], before: str = "") -> None:
    """Log each message on its own line, up to `MAX_LINES` lines.

    Args:
        each: The messages.
        before: Text before each message.
    """
    for message in each[:MAX_LINES]:
        say(f"{before}{message}")
    if len(each) > MAX_LINES:
        say(f"… and {len(each) - MAX_LINES:,} more")
