"""Compare the output that a page shows with the output of its block.

Every line that a page shows must be a line of the output. The order of lines and the amount of
white space do not matter. `...` matches any characters. A number on the page must match the printed
number:

- an integer below 1,000 must be equal, and a larger integer may differ by 2 %;
- a number with decimals may differ by 0.02, or by 2 % if that is more;
- a number directly before `...` must start with these digits;
- a number before `tokens/s`, `texts/s`, `s`, `ms`, `kB`, `MB` or `GB` may have any value.

A comment on the line above a block changes this for the whole block: `<!-- tolerance 0.1 -->`
allows a difference of 0.1 for numbers with decimals, `<!-- variable -->` allows any number.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

TOLERANCE = 0.02
"""Default difference of two numbers with decimals."""
RELATIVE = 0.02
"""Difference of two large numbers, as a fraction of the number on the page."""
MARK = re.compile(r"\s*<!-- (?:(variable)|tolerance (\d*\.\d+)) -->\s*")
NUMBER = r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?"
UNIT = r"\s?(?:tokens/s|texts/s|s|ms|kB|MB|GB)(?!\w)"
SHOWN = re.compile(
    rf"(?P<prefix>(?:{NUMBER}|-)?)\.\.\.|(?P<variable>{NUMBER})(?={UNIT})|(?P<number>{NUMBER})|."
)
PRINTED = re.compile(rf"(?P<number>{NUMBER})|.")


@dataclass(frozen=True)
class Token:
    """A number or one character of a printed line, or a pattern for some of a shown line."""

    kind: str
    text: str

    def matches(self, printed: Token, tolerance: float) -> bool:
        """Return whether a token of a page matches one token of the output."""
        if self.kind == "prefix":
            return printed.text.startswith(self.text)
        if self.kind in ("number", "variable") and printed.kind == "number":
            return self.kind == "variable" or _close(self.text, printed.text, tolerance)
        return self == printed


ANY = Token("any", "...")


def tolerance_of(between: str) -> float | None:
    """Return the tolerance of an output block, from the text between it and its program.

    Returns:
        The tolerance, or None if the text is not a mark, so that the block shows no output.
    """
    if not between.strip():
        return TOLERANCE
    mark = MARK.fullmatch(between)
    if mark is None:
        return None
    return math.inf if mark[1] else float(mark[2])


def missing(shown: str, printed: str, tolerance: float = TOLERANCE) -> list[str]:
    """Return the lines of a page that do not match any line of the output.

    Args:
        shown: The output on the page.
        printed: The output of the program.
        tolerance: Largest difference of two numbers with decimals; infinity allows any number.
    """
    outputs = [_tokens(PRINTED, line) for line in printed.splitlines()]
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    return [
        line
        for line in lines
        if line and not any(_match(_tokens(SHOWN, line), output, tolerance) for output in outputs)
    ]


def _tokens(pattern: re.Pattern[str], line: str) -> list[Token]:
    found = []
    for match in pattern.finditer(" ".join(line.split())):
        kind = match.lastgroup or "text"
        if kind != "prefix" or match["prefix"]:
            found.append(Token(kind, match[kind] if match.lastgroup else match[0]))
        if kind == "prefix":
            found.append(ANY)
    return found


def _match(shown: list[Token], printed: list[Token], tolerance: float) -> bool:
    """Match like a shell pattern: if a token differs, the last `...` takes one more token."""
    at = here = 0
    star, resume = -1, 0
    while here < len(printed):
        if at < len(shown) and shown[at] == ANY:
            star, resume = at, here
            at += 1
        elif at < len(shown) and shown[at].matches(printed[here], tolerance):
            at, here = at + 1, here + 1
        elif star >= 0:
            resume += 1
            at, here = star + 1, resume
        else:
            return False
    return all(token == ANY for token in shown[at:])


def _close(shown: str, printed: str, tolerance: float) -> bool:
    if math.isinf(tolerance):
        return True
    expected, found = (float(text.replace(",", "")) for text in (shown, printed))
    if re.search(r"[.e]", shown) is None:
        tolerance = 0
        if abs(expected) < 1000:
            return expected == found
    return abs(expected - found) <= max(tolerance, RELATIVE * abs(expected))
