"""Parts of a page: figures, tables, and marked texts. Templates convert these objects to HTML."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from bertkit.view.chart import share_bar
from bertkit.view.token_text import SPACE

WIDE_COLUMNS = 5
"""Minimum number of columns of a wide table. `dom.js` uses the same number."""


class Share(NamedTuple):
    """Number between 0 and 1, which is shown as a bar and in digits. `kind` is a CSS class."""

    share: float
    kind: str = ""

    @property
    def picture(self) -> Markup:
        return share_bar(self.share, self.kind)


class Shade(NamedTuple):
    """Cosine with a background color. Higher cosines are darker."""

    cosine: float

    @property
    def level(self) -> int:
        return round(10 * max(0.0, self.cosine))


class Marked(NamedTuple):
    """Text with marked ranges (start, end, name), which do not overlap."""

    text: str
    ranges: Sequence[tuple[int, int, str]] = ()


Cell = str | float | Share | Shade | Marked
"""Cell of a table. A Markup (a subclass of str) is a chart."""


class Table(NamedTuple):
    """Table. The first cell of a row is its header. Floats are shown with three decimals."""

    caption: str
    """Caption for screen readers."""
    rows: Sequence[Sequence[Cell]]
    names: Sequence[str] = ()
    wraps: bool = False
    """Whether cells contain long texts, which need several lines."""

    @property
    def wide(self) -> bool:
        """Whether small screens show each row as a block of named cells."""
        return len(self.names) >= WIDE_COLUMNS

    def is_number(self, column: int) -> bool:
        return any(column < len(row) and isinstance(row[column], int | float) for row in self.rows)


class Lines(NamedTuple):
    """Preformatted text."""

    text: str


class Spans(NamedTuple):
    """Tokens, spelled as in `view/token_text.py`. Spans of tokens with a number are colored."""

    tokens: Sequence[tuple[str, int | None]]

    @property
    def groups(self) -> Iterator[tuple[str, int | None]]:
        """Text of each group of consecutive tokens that have the same number, and the number."""
        # If no token contains the symbol of a space, the tokens are WordPiece tokens.
        has_spaces = any(SPACE in token for token, _ in self.tokens)
        for number, group in itertools.groupby(self.tokens, key=lambda token: token[1]):
            tokens = [token for token, _ in group]
            spaced = "".join(tokens).replace(SPACE, " ")
            text = spaced if has_spaces else " ".join(tokens).replace(" ##", "")
            yield text.strip(), number


class Beside(NamedTuple):
    """Parts that are shown next to each other. `kind` is a CSS class."""

    kind: str
    parts: Sequence[Part]


Part = Table | Marked | Spans | Lines | Beside | Markup
"""Part of a page. A Markup is a chart."""


class Figure(NamedTuple):
    """Figure, which users can save as a picture."""

    name: str
    caption: str
    parts: Sequence[Part]


class Field(NamedTuple):
    """Field of a form: a line, a text area of several `rows`, a choice of `options`, or hidden."""

    name: str
    label: str = ""
    value: str = ""
    rows: int = 1
    options: Sequence[str] = ()
    required: bool = False
    hidden: bool = False


class Example(NamedTuple):
    """Link that submits a form with example values.

    `shows` describes the result. The result is in the section `part` of the page.
    """

    values: Mapping[str, str]
    text: str
    shows: str
    part: str = ""


class Form(NamedTuple):
    """Form that contains the submitted values. `alert` is an error message above the fields."""

    action: str
    fields: Sequence[Field]
    button: str
    alert: str = ""
    examples: Sequence[Example] = ()


def split_at(text: str, ranges: Sequence[tuple[int, int, str]]) -> Iterator[tuple[str, str | None]]:
    """Split a text at the borders of ranges.

    Args:
        text: The text.
        ranges: Start, end, and name of each range.

    Yields:
        Each part of the text with the name of its range, or with None if it is in no range.
    """
    end = 0
    for start, stop, name in sorted(ranges):
        yield text[end:start], None
        yield text[start:stop], name
        end = stop
    yield text[end:], None
