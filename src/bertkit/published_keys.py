"""Tables of the keys in published configuration files: applied, irrelevant, or rejected."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class KeyTable:
    """Table of all keys that the reference library reads from one kind of configuration file.

    A key that is not in the table has no effect in the reference library either. The parity tests
    change each key of the reference library, and fail if a key with an effect is missing here.

    Attributes:
        applied: Keys that bertkit uses.
        irrelevant: Keys that never change the output of bertkit, each with the reason.
        neutral: Keys that bertkit does not support, each with the values that do not change the
            output. The first value is the default of the reference library. Any value that is not
            listed is rejected.
    """

    applied: Collection[str] = ()
    irrelevant: Mapping[str, str] = field(default_factory=dict)
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def unsupported(self, settings: Mapping[str, Any]) -> list[str]:
        """Return descriptions of the unsupported keys that have a value which is not neutral.

        Args:
            settings: The content of the file.
        """
        return [
            f"{key} = {settings[key]!r} (only {' or '.join(map(repr, values))})"
            for key, values in self.neutral.items()
            if key in settings and settings[key] not in values
        ]

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check that all unsupported keys have neutral values.

        Args:
            settings: The content of the file.

        Raises:
            ValueError: If an unsupported key has a value that is not neutral. The message names all
                such keys.
        """
        if wrong := self.unsupported(settings):
            raise ValueError(f"{', '.join(wrong)}: not supported by bertkit")
