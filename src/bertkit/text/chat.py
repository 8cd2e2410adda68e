"""Conversations as tokens: which tokens stand around each message, as data.

A folder's own template is a program (Jinja); none is run. It is recognised by the tokens that it
names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError, TokenizerError
from bertkit.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]
Role = Literal["system", "user", "assistant"]
ROLES: tuple[str, ...] = get_args(Role)


class Message(msgspec.Struct, frozen=True):
    """What one side says."""

    role: Role
    content: str


@dataclass(frozen=True)
class Template:
    """What stands around a message: special tokens, and text.

    `start` is a token at the very beginning. A message is `opening` (a token), the role, `closing`
    (a token), `gap`, its content, the token `end`, and `behind`.
    """

    start: str
    opening: str
    closing: str
    gap: str
    end: str
    behind: str


TEMPLATES = {
    "chatml": Template("", "<|im_start|>", "", "\n", "<|im_end|>", "\n"),
    "llama-3": Template(
        "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "\n\n", "<|eot_id|>", ""
    ),
}
"""Known by their tokens. With a vocabulary that has none of these a turn is a line,
`user: …`, and the text's end token (`plain`)."""


class Chat:
    """How a vocabulary writes conversations.

    Contents are ordinary text: a special token that is spelled out in one is none.
    Raises: TokenizerError for a folder whose template is of no kind that is known here.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        own = tokenizer.chat_template
        self.kind = next((n for n, t in TEMPLATES.items() if self._fits(t, own)), "plain")
        if self.kind == "plain" and own is not None:
            raise TokenizerError(
                f"{tokenizer.source}: its chat template is of no kind that is known here "
                f"({', '.join(TEMPLATES)}); remove chat_template, and fine-tune it with its own "
                "conversations"
            )
        eos = "" if self.kind in TEMPLATES else tokenizer.pieces([tokenizer.eos])[0]
        plain = Template("", "", "", ": ", eos, "\n")
        self.template = TEMPLATES.get(self.kind, plain)
        self.system = self._usual_system(own or "")

    def encode(self, messages: Sequence[Message], *, answer: bool = True) -> tuple[Ids, Ids]:
        """The tokens, and 1 for each that the assistant says, its end included, else 0.

        With `answer` the conversation ends where the assistant's next turn begins.
        Shapes: (T,) both.
        """
        template = self.template
        if self.system is not None and messages[0].role != "system":
            messages = [Message("system", self.system), *messages]
        parts: list[tuple[Sequence[int] | str, bool]] = [(self._token(template.start), False)]
        for message in messages:
            said = message.role == "assistant"
            parts += self._opening(message.role)
            parts += [(message.content, said), (self._token(template.end), said)]
            parts += [(template.behind, False)]
        if answer:
            parts += self._opening("assistant")
        ids: list[int] = []
        weights: list[int] = []
        text = ""
        for part, said in [*parts, ((), False)]:  # text is read as a whole up to the next token
            if isinstance(part, str) and not said:
                text += part
                continue
            before = self._ids(text)
            tokens = self._ids(part) if isinstance(part, str) else part
            ids += [*before, *tokens]
            weights += [0] * len(before) + [int(said)] * len(tokens)
            text = ""
        return np.array(ids, dtype=np.int64), np.array(weights, dtype=np.int64)

    @property
    def end(self) -> int:
        """The token that ends a message."""
        return self._token(self.template.end)[0]

    def _opening(self, role: str) -> list[tuple[Sequence[int] | str, bool]]:
        template = self.template
        return [
            (self._token(template.opening), False),
            (role, False),
            (self._token(template.closing), False),
            (template.gap, False),
            # what follows is written by itself, so that a model goes on from the same tokens
            *([((), False)] if role == "assistant" else []),
        ]

    def _token(self, name: str) -> list[int]:
        return [self.tokenizer.token(name)] if name else []

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.ids([text])[0].tolist() if text else []

    def _fits(self, template: Template, own: str | None) -> bool:
        tokens = (template.opening, template.end)
        return all(self.tokenizer.has(token) and (own is None or token in own) for token in tokens)

    def _usual_system(self, own: str) -> str | None:
        """The system's message that the folder's template puts before a user's."""
        opening, end = re.escape(self.template.opening), re.escape(self.template.end)
        if not opening:
            return None
        told = re.search(rf"{opening}system(?:\s|\\n)*([^{{}}]*?){end}", own)
        return told[1] if told else None


def check(messages: Sequence[Message], where: str) -> None:
    """Raises: DataError for a conversation in which nobody speaks, or the system late."""
    if not messages:
        raise DataError(f"{where}: no messages; a conversation has one at least")
    for number, message in enumerate(messages):
        if not message.content.strip():
            raise DataError(f"{where}: message {number + 1} is empty; remove it")
        if message.role == "system" and number:
            raise DataError(
                f"{where}: message {number + 1} is the system's; it speaks first, or not at all"
            )
