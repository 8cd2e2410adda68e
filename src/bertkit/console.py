"""What people see while a recipe runs: words and bars on stderr, so that stdout stays data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

CONSOLE = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """A line for people."""
    CONSOLE.print(text, markup=False, soft_wrap=True)


def print_json(data: Any) -> None:
    """A line of data on stdout."""
    print(msgspec.json.encode(data).decode())


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Say nothing meanwhile: for a recipe that runs others and tells their story itself."""
    before, CONSOLE.quiet = CONSOLE.quiet, True
    try:
        yield
    finally:
        CONSOLE.quiet = before


def progress() -> Progress:
    """A bar with what is done, a changing note, and the time left; silent when nobody watches."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=CONSOLE,
        disable=not CONSOLE.is_terminal or CONSOLE.quiet,
    )
