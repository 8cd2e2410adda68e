"""What commands read and print: words and bars on stderr, so that stdin and stdout are data."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
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

from bertkit.errors import DataError

CONSOLE = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """A line for people."""
    CONSOLE.print(text, markup=False, soft_wrap=True)


def lines(*, blank: bool = False) -> Iterator[str]:
    """The lines of stdin that hold text, or all of them, as they come.

    Raises: DataError if there are none.
    """
    if sys.stdin.isatty():
        raise DataError("no text; give it as an argument or on stdin, one text a line")
    if isinstance(sys.stdin, io.TextIOWrapper):  # the tokenizer names what is not UTF-8
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    texts = (line.strip("\ufeff\r\n") for line in sys.stdin if blank or line.strip())
    first = next(texts, None)
    if first is None:
        raise DataError("stdin: no text; give one text a line")
    yield from itertools.chain([first], texts)


def asked(prompt: str) -> Iterator[str]:
    """What people type behind a prompt, until they end it (Ctrl-D); without a terminal, `lines`."""
    if not sys.stdin.isatty():
        yield from lines()
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (arrows move in the line, and bring back earlier ones)
    while True:
        CONSOLE.print(prompt, end="", markup=False)
        try:
            line = input()
        except EOFError:
            CONSOLE.print()
            return
        if line.strip():
            yield line


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


def progress(*, watched: bool = True) -> Progress:
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
        disable=not (watched and CONSOLE.is_terminal) or CONSOLE.quiet,
    )
