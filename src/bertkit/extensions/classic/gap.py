"""A text with a gap, of which models say what may stand there."""

from __future__ import annotations

import re
from typing import NamedTuple

from bertkit.errors import DataError

_GAP = re.compile("_{2,}")


class Gap(NamedTuple):
    """A sentence around a gap."""

    before: str
    after: str

    @staticmethod
    def of(text: str) -> Gap:
        """Raises: DataError for a text without exactly one gap."""
        sides = _GAP.split(text)
        if len(sides) != 2:
            raise DataError(f"text: {len(sides) - 1} gaps; write ___ once, where a word is missing")
        return Gap(*sides)

    @property
    def left(self) -> str:
        """What a causal model reads: a token begins with the space before it."""
        return self.before.rstrip()

    def masked(self, mask: str) -> str:
        """What a masked model reads."""
        return f"{self.before}{mask}{self.after}"
