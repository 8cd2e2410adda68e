"""What commands read and print: words on stderr, so that stdin and stdout are data."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from bertkit.errors import DataError

if TYPE_CHECKING:  # rich is imported when something is said
    from rich.console import Console


STDIN = "/dev/stdin"
"""What `-` is to commands: the file of what is piped to them."""


@cache
def console() -> Console:
    """What is said to people, and whether."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False)


def say(text: str) -> None:
    """A line for people."""
    console().print(text, markup=False, soft_wrap=True)


def write_line(text: str) -> None:
    """A line on stderr, written with its end at once: `print` writes the two apart where Python
    does not buffer (`PYTHONUNBUFFERED`), and processes that share stderr would mix their lines.
    """
    print(f"{text}\n", end="", file=sys.stderr)


def lines(*, blank: bool = False) -> Iterator[str]:
    """The lines of stdin that hold text, or all of them, as they come; how many were left out is
    said at the end.

    Raises: DataError if there are none, or for one that is no UTF-8.
    """
    return (line for _, line in numbered_lines(blank=blank))


def numbered_lines(*, blank: bool = False) -> Iterator[tuple[int, str]]:
    """The same, with the number of each line."""
    if sys.stdin.isatty():
        raise DataError("no text; give it as an argument or on stdin, one text a line")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    count = left_out = 0
    for number, line in enumerate(_decoded(), 1):
        if not blank and not line.strip():
            left_out += 1
            continue
        count += 1
        yield number, line.strip("\ufeff\r\n")
    if not count:
        raise DataError("stdin: no text; give one text a line")
    if left_out:
        say(f"stdin: lines without text are left out: {left_out:,}")


def _decoded() -> Iterator[str]:
    for number, line in enumerate(sys.stdin, 1):
        try:
            line.encode()
        except UnicodeEncodeError as error:
            byte = ord(line[error.start]) - 0xDC00
            raise DataError(
                f"stdin:{number}: not UTF-8 (0x{byte:02x}); convert it, for example: "
                "iconv -f WINDOWS-1252 -t UTF-8"
            ) from None
        yield line


def asked(prompt: str) -> Iterator[str]:
    """What people type behind a prompt, until they end it (Ctrl-D); without a terminal, `lines`."""
    if not sys.stdin.isatty():
        yield from lines()
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (arrows move in the line, and bring back earlier ones)
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
    """Print data as a line of JSON. Arrays become lists."""
    print(msgspec.json.encode(data, enc_hook=lambda array: array.tolist()).decode())


def print_table(data: Mapping[str, Any]) -> None:
    """The same for people: a line for each value, a table where groups have the same names."""
    print("\n".join(_lines_of(data)))


def _lines_of(data: Mapping[str, Any]) -> list[str]:
    if _alike(data):
        names = list(next(iter(data.values())))
        rows = [[name, *map(_cell, row.values())] for name, row in data.items()]
        return _columns([["", *names], *rows])
    alone: dict[str, Any] = {}
    tables: list[str] = []
    for name, value in data.items():
        if isinstance(value, Mapping) and _alike(value):
            tables += ["", name, *_lines_of(value)]
        else:
            alone |= _by_path(name, value)
    return [*_columns([[name, _cell(value)] for name, value in alone.items()]), *tables]


def _alike(data: Mapping[str, Any]) -> bool:
    """Whether all values are groups of the same names."""
    groups = list(data.values())
    return bool(groups) and all(
        isinstance(group, Mapping) and group and list(group) == list(groups[0]) for group in groups
    )


def _by_path(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    inner = (_by_path(f"{path}.{name}", one) for name, one in value.items())
    return {name: one for values in inner for name, one in values.items()}


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells below each other: the first column begins at the left, others end at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if len(widths) == 2:  # a name and its value, which may be of any length
        return [f"{name:{widths[0]}}  {value}" for name, value in rows]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        usual = value == 0.0 or 1e-3 <= abs(value) < 1e6
        return f"{value:.4f}" if usual else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and not any(isinstance(one, list | dict) for one in value):
        return ", ".join(map(_cell, value))
    return msgspec.json.encode(value).decode()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Say nothing meanwhile: for a recipe that runs others and tells their story itself."""
    before, console().quiet = console().quiet, True
    try:
        yield
    finally:
        console().quiet = before
