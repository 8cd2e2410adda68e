"""Prompts of embedding models, such as "query: " and "passage: "."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from bertkit.console import say
from bertkit.errors import CheckpointError, ConfigError

QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")
"""Names that sentence-transformers searches for the prompt of a query or a document, in this order.
"""


class Prompts(msgspec.Struct, frozen=True):
    """The named prompts of a model."""

    named: dict[str, str] = {}
    default: str | None = None
    """Name of the default prompt."""
    pooled: bool = True
    """True if pooling includes the tokens of the prompt, the only mode that bertkit supports."""

    def find(self, given: str | None = None, usual: Sequence[str] | None = None) -> str:
        """Return a prompt by its name or text, or the default prompt; "" for none.

        Args:
            given: Name or text of the prompt. Default: `usual`, or else the default prompt.
            usual: Names of prompts, in order of preference.

        Raises:
            ConfigError: If a single word is not the name of a prompt.
            CheckpointError: If the model excludes the tokens of prompts from pooling.
        """
        if given is None:
            names = ((self.default,) if self.default else ()) if usual is None else usual
            # sentence-transformers adds an empty "document" prompt if the model has "passage".
            text = next((prompt for name in names if (prompt := self.named.get(name))), "")
        elif given in self.named:
            text = self.named[given]
        elif re.fullmatch(r"[\w.-]+", given, re.ASCII) and given not in self.named.values():
            known = ", ".join(self.named) or "none"
            raise ConfigError(
                f"prompt: {given!r} is not a prompt of this model (it has {known}); use one of "
                'them, or a text such as "query: "'
            )
        else:
            text = given
        if text and not self.pooled:
            raise CheckpointError(
                f"prompt: {text!r} is not supported by this model (include_prompt is false in its "
                '1_Pooling/config.json); use no prompt ("")'
            )
        return text

    @property
    def known(self) -> str:
        """Names of the prompts that are not empty."""
        return ", ".join(name for name, text in self.named.items() if text)


class Prompter:
    """Selection of the prompt of each call. Each prompt is logged once."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts
        self.usual: str | None = None
        """Prompt of calls without a prompt, instead of the model's default prompt."""
        self._logged: set[str] = set()

    def __call__(self, given: str | None = None) -> str:
        """Return the prompt of a call, and log it if it is new.

        Raises:
            ConfigError: If a single word is not the name of a prompt.
            CheckpointError: If the model excludes the tokens of prompts from pooling.
        """
        is_lookup = given is not None or self.usual is None
        prompt = self.prompts.find(given) if is_lookup else self.usual or ""
        if prompt not in self._logged:
            self._logged.add(prompt)
            if prompt:
                say(f"prompt: {prompt!r}")
            elif self.prompts.known:
                say(f"prompt: none (the model has {self.prompts.known})")
        return prompt
