"""Text with a gap."""

from __future__ import annotations

import re
from typing import NamedTuple

from bertkit.errors import DataError

_GAP = re.compile("_{2,}")


class Gap(NamedTuple):
    """A sentence with a gap, as the text before and after it."""

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
            raise DataError(f"text must have exactly one gap ___, got {len(sides) - 1}")
        return Gap(*sides)

    @property
    def left(self) -> str:
        """Input of a causal model. The space before the gap belongs to the next token."""
        return self.before.rstrip()

    def masked(self, mask: str) -> str:
        """Return the input of a masked language model."""
        return f"{self.before}{mask}{self.after}"
