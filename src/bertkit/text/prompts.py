"""What stands before a text of which a vector is made: "query: ", "passage: "."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from bertkit.console import say
from bertkit.errors import CheckpointError, ConfigError

QUERY, DOCUMENT = ("query",), ("document", "passage", "corpus")
"""The names by which sentence-transformers looks for the prompt of each, in this order."""


class Prompts(msgspec.Struct, frozen=True):
    """The prompts that a folder knows by name."""

    named: dict[str, str] = {}
    default: str | None = None
    """The name of the one that stands before a text where nothing else is asked for."""
    pooled: bool = True
    """Whether a vector is made of the prompt's tokens too, which is all that bertkit can."""

    def find(self, given: str | None = None, usual: Sequence[str] | None = None) -> str:
        """The prompt that is given by its name or as a text; else the first of the `usual` names
        that has one, or the default; "" for none.

        Raises: ConfigError for a single word that is no name, CheckpointError for a prompt whose
        tokens the folder leaves out of its vectors.
        """
        if given is None:
            names = ((self.default,) if self.default else ()) if usual is None else usual
            # sentence-transformers writes an empty "document" beside a "passage" it did not make
            text = next((named for name in names if (named := self.named.get(name))), "")
        elif given in self.named:
            text = self.named[given]
        elif re.fullmatch(r"[\w.-]+", given, re.ASCII) and given not in self.named.values():
            known = ", ".join(self.named) or "none"
            raise ConfigError(
                f"prompt: {given!r} is no prompt of this model (it has {known}); name one of them, "
                'or give the text itself, as in "query: "'
            )
        else:
            text = given
        if text and not self.pooled:
            raise CheckpointError(
                f"prompt: {text!r}; this model leaves a prompt's tokens out of its vectors "
                "(include_prompt is false in its 1_Pooling/config.json), and bertkit has them in; "
                'embed without a prompt ("")'
            )
        return text

    @property
    def known(self) -> str:
        """The names of those that put something before a text."""
        return ", ".join(name for name, text in self.named.items() if text)


class Prompter:
    """Finds what stands before the texts of each call, and says it once."""

    def __init__(self, prompts: Prompts) -> None:
        self.prompts = prompts
        self.usual: str | None = None
        """What stands there where a call says nothing, in place of the folder's default."""
        self._told: set[str] = set()

    def __call__(self, given: str | None = None) -> str:
        """Raises: ConfigError, CheckpointError as `Prompts.find` does."""
        asked = given is not None or self.usual is None
        prompt = self.prompts.find(given) if asked else self.usual or ""
        if prompt not in self._told:
            self._told.add(prompt)
            if prompt:
                say(f"prompt: {prompt!r}")
            elif self.prompts.known:
                say(f"prompt: none (the model has {self.prompts.known})")
        return prompt
