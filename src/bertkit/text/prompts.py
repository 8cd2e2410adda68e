"""Prompts of embedding models, such as "query: " and "passage: "."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from bertkit.console import say
from bertkit.errors import CheckpointError, ConfigError

QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")
"""Names under which the prompt of a query or a document is looked up, in the order of preference,
as in sentence-transformers.
"""


class Prompts(msgspec.Struct, frozen=True):
    """Named prompts of a model."""

    named: dict[str, str] = {}
    default: str | None = None
    """Name of the default prompt."""
    pooled: bool = True
    """Whether pooling includes the tokens of the prompt. bertkit supports only true."""

    def find(self, given: str | None = None, usual: Sequence[str] | None = None) -> str:
        """Return the text of a prompt, or "" if no prompt applies.

        Args:
            given: Name or text of the prompt. Default: the first prompt in `usual` that exists.
            usual: Names of prompts, in order of preference. Default: the model's default prompt.

        Raises:
            ConfigError: If `given` is a single word, but not the name of a prompt.
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
    """Object that selects the prompt for each call, and logs each prompt once."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts
        self.usual: str | None = None
        """Text of the prompt for calls that specify none. If None, the model's default is used."""
        self._logged: set[str] = set()

    def __call__(self, given: str | None = None) -> str:
        """Return the prompt to use for a call. It is logged when it is first used.

        Raises:
            ConfigError: If `given` is a single word, but not the name of a prompt.
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
