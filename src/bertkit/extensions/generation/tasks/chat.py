"""Conversations of which a model learns the assistant's turns (instruction tuning)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from bertkit.data.row_readers import Source
from bertkit.errors import DataError
from bertkit.extensions.generation.chat_format import ChatFormat as Writer
from bertkit.extensions.generation.messages import Conversation, read_conversations
from bertkit.extensions.generation.tasks.language import LanguageTask, TextScore, refuse_encoders
from bertkit.tasks.capabilities import UsesDecoder
from bertkit.tasks.choose import refuse_columns
from bertkit.tasks.task import ErrorRecord, Feature, Reader, Reading
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer


class ConversationReader(Reader[Conversation]):
    """Conversations, from .jsonl rows."""

    def read(
        self, source: Source, reading: Reading, *, labelled: bool
    ) -> tuple[list[Conversation], str]:
        """Read .jsonl rows {"messages": [{"role": "user", "content": ...}, ...]}."""
        refuse_columns(reading, "chat")
        read = read_conversations(source)
        return read, f"{source}: {len(read):,} conversations"

    def example(self, text: str, others: Sequence[str]) -> Conversation:
        raise DataError("a model that converses is asked by `bertkit chat MODEL`")


class Chat(LanguageTask[Conversation], UsesDecoder):
    """Chat: next-token prediction on the turns of the assistant.

    Source: Ouyang et al. 2022, section 3.5 (supervised fine-tuning).
    """

    name = "chat"
    reader = ConversationReader()
    long = ("truncate", "error")

    def with_decoder(self, begin: Sequence[int], tokenizer: Tokenizer) -> Self:
        refuse_encoders(begin, tokenizer)
        return self

    def features(
        self,
        examples: Sequence[Conversation],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        chat, features = Writer(tokenizer), []
        for number, example in enumerate(examples):
            ids, weights = chat.encode(example.messages, answer=False)
            truncated = len(ids) > length
            if truncated and long == "error":
                raise DataError(f"{example.where}: {len(ids):,} tokens, the model reads {length:,}")
            ids, weights = ids[:length], weights[:length]
            places = np.flatnonzero(weights[1:])  # each says what comes next
            if not len(places):
                raise DataError(
                    f"{example.where}: the assistant's first turn begins behind {length:,} tokens, "
                    "which is all that is read; shorten what stands before"
                )
            encoding = Encoding.of_ids(ids, truncated=truncated)
            target = ids[places + 1] if labelled else None
            features.append(Feature(encoding, number, places, target))
        return features

    def error_record(self, answer: TextScore, example: Conversation) -> ErrorRecord:
        last = next(m for m in reversed(example.messages) if m.role == "assistant")
        asked = " | ".join(m.content for m in example.messages if m.role != "assistant")
        nats = -answer.log_probability
        return ErrorRecord(asked, last.content, f"{nats:.2f} nats a token", nats)
