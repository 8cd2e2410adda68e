"""Parsing of texts that contain a gap."""

from __future__ import annotations

import re
from typing import NamedTuple

from bertkit.errors import DataError

_GAP = re.compile("_{2,}")


class Gap(NamedTuple):
    """Text before a gap, and text after it."""

    before: str
    after: str

    @staticmethod
    def of(text: str) -> Gap:
        """Parse a text with one gap, written ___.

        Args:
            text: The text.

        Raises:
            DataError: If the text does not have exactly one gap.
        """
        sides = _GAP.split(text)
        if len(sides) != 2:
            raise DataError(f"the text must contain exactly one gap, ___, got {len(sides) - 1}")
        return Gap(*sides)

    @property
    def left(self) -> str:
        """Text before the gap as the input of a causal model.

        It does not end with a space, because the space belongs to the next token.
        """
        return self.before.rstrip()

    def masked(self, mask: str) -> str:
        """Return the text with `mask` in the gap, as the input of a masked language model."""
        return f"{self.before}{mask}{self.after}"
