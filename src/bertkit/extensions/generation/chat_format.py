"""Conversion of conversations to token ids.

A chat template is a Jinja program, which bertkit never runs. It recognizes published templates
(`bertkit.extensions.generation.chat_templates`) and rejects all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.errors import DataError, TokenizerError
from bertkit.extensions.generation.chat_templates import recognize
from bertkit.text.tokenizer import Tokenizer

Ids = NDArray[np.int64]
Role = Literal["system", "user", "assistant"]
ROLES: tuple[str, ...] = get_args(Role)


class Message(msgspec.Struct, frozen=True):
    """Message of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True)
class Template:
    """Special tokens and text that surround a message.

    A message consists of the token `opening`, the role, the token `closing`, the text `gap`, the
    content, the token `end`, and the text `suffix`. If `trim` is true, whitespace around the
    content is removed.
    """

    opening: str
    closing: str
    gap: str
    end: str
    suffix: str
    trim: bool = False


TEMPLATES = {
    "chatml": Template("<|im_start|>", "", "\n", "<|im_end|>", "\n"),
    "llama-3": Template("<|start_header_id|>", "<|end_header_id|>", "\n\n", "<|eot_id|>", ""),
    "llama-3-trimmed": Template(
        "<|start_header_id|>", "<|end_header_id|>", "\n\n", "<|eot_id|>", "", trim=True
    ),
}
"""Formats of the templates in `chat_templates.KNOWN`.

For a tokenizer without a chat template, the first format whose special tokens are in its vocabulary
is used. If there is none, the format is `plain`: a line such as `user: …` per message, which ends
with the EOS token.
"""

BEGIN = "<|begin_of_text|>"
"""First token of the Llama 3 formats."""


PROBE = (
    Message("user", "Hello there."),
    Message("assistant", " Hi!\n"),
    Message("user", "2  words"),
)
"""Conversation that `ChatFormat` tokenizes in two ways to check that the results are equal."""


class ChatFormat:
    """Converter of conversations to token ids, in the chat format of a tokenizer.

    The content of a message is tokenized as ordinary text. If it contains the name of a special
    token, the name is not converted to that token.

    Raises:
        TokenizerError: If bertkit does not recognize the chat template of the tokenizer, or
            transformers would tokenize conversations differently.
    """

    # test: tests/extensions/generation/test_chat_templates.py::test_chat_rejects_other_template

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.system: str | None = None
        self._start: list[int] = []
        template = tokenizer.chat_template
        if template is not None:
            name = self._recognize(template)
        else:
            name = next((name for name, t in TEMPLATES.items() if self._has(t)), "plain")
            if name == "llama-3":
                self._start = [tokenizer.token(BEGIN)]
        self.kind = name.removesuffix("-trimmed")
        if name == "plain":
            end = tokenizer.pieces([tokenizer.eos])[0]
            self.template = Template("", "", ": ", end, "\n")
            self._start = list(tokenizer.added[0])
        else:
            self.template = TEMPLATES[name]
        if template is not None:
            self._check_ids()

    def encode(self, messages: Sequence[Message], *, answer: bool = True) -> tuple[Ids, Ids]:
        """Tokenize a conversation.

        Args:
            messages: The messages of the conversation.
            answer: Whether to append the start of an assistant message, which the model continues.

        Returns:
            The token ids and a weight per token. The weight is 1 for the content and the end token
            of an assistant message, and 0 for all other tokens.

        Shapes:
            Returns (T,) and (T,).
        """
        ids, weights = list(self._start), [0] * len(self._start)
        # The text since the last special token is tokenized at once.
        text = ""
        for part, is_target in [*self._parts(messages, answer=answer), ((), False)]:
            if isinstance(part, str) and not is_target:
                text += part
                continue
            before = self._ids(text)
            if not isinstance(part, str):
                tokens = [*before, *part]
            elif self.kind == "plain":
                tokens = [*before, *self._ids(part)]
            else:
                tokens = self._ids(text + part)
            ids += tokens
            prompt = min(len(before), len(tokens))
            weights += [0] * prompt + [int(is_target)] * (len(tokens) - prompt)
            text = ""
        return np.array(ids, dtype=np.int64), np.array(weights, dtype=np.int64)

    @property
    def end(self) -> int:
        """Id of the token that ends a message."""
        return self._token(self.template.end)[0]

    def _parts(
        self, messages: Sequence[Message], *, answer: bool
    ) -> list[tuple[Sequence[int] | str, bool]]:
        """Return the parts of a conversation, and whether the model is trained to predict each.

        A part is a text or a list of special token ids.
        """
        template = self.template
        if self.system is not None and messages[0].role != "system":
            messages = [Message("system", self.system), *messages]
        parts: list[tuple[Sequence[int] | str, bool]] = []
        for message in messages:
            is_target = message.role == "assistant"
            content = message.content.strip() if template.trim else message.content
            parts += self._opening(message.role)
            parts += [(content, is_target), (self._token(template.end), is_target)]
            parts += [(template.suffix, False)]
        return parts + (self._opening("assistant") if answer else [])

    def _opening(self, role: str) -> list[tuple[Sequence[int] | str, bool]]:
        template = self.template
        return [
            (self._token(template.opening), False),
            (role, False),
            (self._token(template.closing), False),
            (template.gap, False),
        ]

    def _token(self, name: str) -> list[int]:
        return [self.tokenizer.token(name)] if name else []

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.ids([text])[0].tolist() if text else []

    def _has(self, template: Template) -> bool:
        return all(self.tokenizer.has(token) for token in (template.opening, template.end))

    def _recognize(self, template: str) -> str:
        """Return the name of the template's format.

        This also sets the default system message and the BOS token of this object.
        """
        known, tokenizer = recognize(template), self.tokenizer
        if known is None or not self._has(TEMPLATES[known.format]):
            raise TokenizerError(
                f"{tokenizer.source}: chat_template is not one of the supported ChatML and Llama 3 "
                "templates; remove chat_template, and fine-tune the model on conversations"
            )
        self.system = known.system
        if known.format == "llama-3":
            self._start = [tokenizer.token(BEGIN)]
        elif known.format == "llama-3-trimmed" or (known.bos and tokenizer.knows("bos")):
            self._start = [tokenizer.bos]
        return known.format

    def _check_ids(self) -> None:
        """Check that a conversation has the same token ids as its text, as in transformers."""
        tokenizer = self.tokenizer
        parts = self._parts(PROBE, answer=True)
        text = "".join(
            part if isinstance(part, str) else "".join(tokenizer.pieces(part))
            for part in [tuple(self._start), *(part for part, _ in parts)]
        )
        expected = tokenizer.core.encode(text, add_special_tokens=False).ids
        if self.encode(PROBE)[0].tolist() != expected:
            raise TokenizerError(
                f"{tokenizer.source}: the tokenizer reads the special tokens of its chat template "
                "together with the text around them, which is not supported; remove chat_template, "
                "and fine-tune the model on conversations"
            )


def check_messages(messages: Sequence[Message], where: str) -> None:
    """Check the messages of a conversation.

    Raises:
        DataError: If there are no messages, a message is empty, or a system message is not the
            first message.
    """
    if not messages:
        raise DataError(f"{where}: must contain at least one message")
    for number, message in enumerate(messages):
        if not message.content.strip():
            raise DataError(f"{where}: message {number + 1} is empty; remove the message")
        if message.role == "system" and number:
            raise DataError(
                f"{where}: message {number + 1} is a system message; it must be the first message"
            )
