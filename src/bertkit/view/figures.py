"""Parts of a page, as data: figures, tables, marked texts. Templates make them HTML."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from bertkit.view.chart import share_bar
from bertkit.view.token_text import SPACE

WIDE_COLUMNS = 5
"""Columns from which on a table is wide, as in `dom.js`."""


class Share(NamedTuple):
    """A number of 0 to 1, shown as a bar and in digits; `kind` is a class of the style."""

    share: float
    kind: str = ""

    @property
    def picture(self) -> Markup:
        return share_bar(self.share, self.kind)


class Shade(NamedTuple):
    """A cosine, on a ground that is darker the higher it is."""

    cosine: float

    @property
    def level(self) -> int:
        return round(10 * max(0.0, self.cosine))


class Marked(NamedTuple):
    """A text with ranges (start, end, name) marked; they do not overlap."""

    text: str
    ranges: Sequence[tuple[int, int, str]] = ()


Cell = str | float | Share | Shade | Marked
"""A Markup, which is a str, is a chart."""


class Table(NamedTuple):
    """The first cell of a row is its head. Floats stand to the right with three decimals."""

    caption: str
    """For screen readers."""
    rows: Sequence[Sequence[Cell]]
    names: Sequence[str] = ()
    wraps: bool = False
    """Whether cells hold texts that need several lines."""

    @property
    def wide(self) -> bool:
        """Whether a phone shows a row as a block of named cells."""
        return len(self.names) >= WIDE_COLUMNS

    def is_number(self, column: int) -> bool:
        return any(column < len(row) and isinstance(row[column], int | float) for row in self.rows)


class Lines(NamedTuple):
    """A text in the form it was written in."""

    text: str


class Spans(NamedTuple):
    """Tokens as `view/token_text.py` has them, those of a numbered span in one color."""

    tokens: Sequence[tuple[str, int | None]]

    @property
    def groups(self) -> Iterator[tuple[str, int | None]]:
        """Tokens side by side that have one number, as one text."""
        marked = any(SPACE in token for token, _ in self.tokens)  # else of word pieces
        for number, group in itertools.groupby(self.tokens, key=lambda one: one[1]):
            tokens = [token for token, _ in group]
            spaced = "".join(tokens).replace(SPACE, " ")
            text = spaced if marked else " ".join(tokens).replace(" ##", "")
            yield text.strip(), number


class Beside(NamedTuple):
    """Parts side by side; `kind` is a class of the style."""

    kind: str
    parts: Sequence[Part]


Part = Table | Marked | Spans | Lines | Beside | Markup
"""Markup is a chart."""


class Figure(NamedTuple):
    """A part of the page that can be saved as a picture."""

    name: str
    caption: str
    parts: Sequence[Part]


class Field(NamedTuple):
    """A field of a form: a line, some `rows` of text, a choice among `options`, or `hidden`."""

    name: str
    label: str = ""
    value: str = ""
    rows: int = 1
    options: Sequence[str] = ()
    required: bool = False
    hidden: bool = False


class Example(NamedTuple):
    """A form filled in, to be clicked; `part` is that of the answer where `shows` is to be seen."""

    values: Mapping[str, str]
    text: str
    shows: str
    part: str = ""


class Form(NamedTuple):
    """A form, filled in; `alert` says what was wrong with it."""

    action: str
    fields: Sequence[Field]
    button: str
    alert: str = ""
    examples: Sequence[Example] = ()


def pieces(text: str, ranges: Sequence[tuple[int, int, str]]) -> Iterator[tuple[str, str | None]]:
    """The text cut at the ranges: each piece, and the name of its range or None outside of all."""
    end = 0
    for start, stop, name in sorted(ranges):
        yield text[end:start], None
        yield text[start:stop], name
        end = stop
    yield text[end:], None
