"""Input and output of commands. Messages go to stderr, so that stdout contains only data."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from bertkit.errors import DataError

# rich is imported when the first message is printed.
if TYPE_CHECKING:
    from rich.console import Console


STDIN = "/dev/stdin"
"""File that commands read if a path is `-`."""


@cache
def console() -> Console:
    """Return the console that prints messages to stderr. Set its `quiet` to suppress messages."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def say(text: str) -> None:
    """Print a message."""
    console().print(text, markup=False, soft_wrap=True)


def write_line(text: str) -> None:
    """Print a line to stderr in a single write.

    If Python's output is unbuffered (`PYTHONUNBUFFERED`), `print` writes a text and its line break
    separately. Lines of several processes with the same stderr would then be mixed.
    """
    print(f"{text}\n", end="", file=sys.stderr)


def lines() -> Iterator[str]:
    """Yield the lines of stdin that contain text, then print how many lines were skipped.

    Raises:
        DataError: If stdin contains no lines to yield, or a line is not UTF-8.
    """
    return (line for _, line in numbered_lines())


def numbered_lines(*, blank: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the same lines as `lines`, each as a pair of line number and text."""
    if sys.stdin.isatty():
        raise DataError("no input; pass a text as an argument, or pipe one text per line to stdin")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    count = skipped = 0
    for number, line in enumerate(_decoded(), 1):
        if not blank and not line.strip():
            skipped += 1
            continue
        count += 1
        yield number, line.strip("\ufeff\r\n")
    if not count:
        raise DataError("stdin: no text; pass one text per line")
    if skipped:
        say(f"stdin: skipped lines without text: {skipped:,}")


def _decoded() -> Iterator[str]:
    for number, line in enumerate(sys.stdin, 1):
        try:
            line.encode()
        except UnicodeEncodeError as error:
            byte = ord(line[error.start]) - 0xDC00
            raise DataError(
                f"stdin:{number}: not UTF-8 (0x{byte:02x}); convert it, for example with "
                "iconv -f WINDOWS-1252 -t UTF-8"
            ) from None
        yield line


def prompt_lines(prompt: str) -> Iterator[str]:
    """Ask the user for lines until Ctrl-D, and yield each one.

    If stdin is not a terminal, yield its lines as `lines` does.
    """
    if not sys.stdin.isatty():
        yield from lines()
        return
    with contextlib.suppress(ImportError):
        # With readline, `input` supports arrow keys and a history.
        import readline  # noqa: F401
    while True:
        console().print(prompt, end="", markup=False)
        try:
            line = input()
        except EOFError:
            console().print()
            return
        if line.strip():
            yield line


def print_json(data: Any) -> None:
    """Print data as one line of JSON. Arrays are converted to lists."""
    print(msgspec.json.encode(data, enc_hook=lambda array: array.tolist()).decode())


def print_table(data: Mapping[str, Any]) -> None:
    """Print data for people: one line per value, and groups with the same keys as a table."""
    print("\n".join(_lines_of(data)))


def _lines_of(data: Mapping[str, Any]) -> list[str]:
    if _is_table(data):
        names = list(next(iter(data.values())))
        rows = [[name, *map(_cell, row.values())] for name, row in data.items()]
        return _columns([["", *names], *rows])
    values: dict[str, Any] = {}
    tables: list[str] = []
    for name, value in data.items():
        if isinstance(value, Mapping) and _is_table(value):
            tables += ["", name, *_lines_of(value)]
        else:
            values |= _by_path(name, value)
    return [*_columns([[name, _cell(value)] for name, value in values.items()]), *tables]


def _is_table(data: Mapping[str, Any]) -> bool:
    """Return whether all values are groups that contain the same names."""
    groups = list(data.values())
    return bool(groups) and all(
        isinstance(group, Mapping) and group and list(group) == list(groups[0]) for group in groups
    )


def _by_path(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    inner = (_by_path(f"{path}.{name}", item) for name, item in value.items())
    return {name: item for values in inner for name, item in values.items()}


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as columns. The first column is left-aligned, and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if len(widths) == 2:
        # The second column contains values of very different lengths, so it is left-aligned too.
        return [f"{name:{widths[0]}}  {value}" for name, value in rows]
    return [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        is_fixed = value == 0.0 or 1e-3 <= abs(value) < 1e6
        return f"{value:.4f}" if is_fixed else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and not any(isinstance(item, list | dict) for item in value):
        return ", ".join(map(_cell, value))
    return msgspec.json.encode(value).decode()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress messages while a recipe runs other recipes and prints its own messages."""
    before, console().quiet = console().quiet, True
    try:
        yield
    finally:
        console().quiet = before
