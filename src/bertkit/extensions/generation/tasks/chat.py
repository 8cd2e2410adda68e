"""Instruction tuning: a task that trains a model on the assistant's messages in conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from bertkit.data.row_readers import Source
from bertkit.errors import DataError
from bertkit.extensions.generation.chat_format import ChatFormat as Writer
from bertkit.extensions.generation.messages import Conversation, read_conversations
from bertkit.extensions.generation.tasks.language import LanguageTask, TextScore, check_decoder_only
from bertkit.tasks.capabilities import UsesDecoder
from bertkit.tasks.choose import check_no_columns
from bertkit.tasks.task import ErrorRecord, Feature, Reader, Reading
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer


class ConversationReader(Reader[Conversation]):
    """Reader of conversations in .jsonl files."""

    def read(
        self, source: Source, reading: Reading, *, labeled: bool
    ) -> tuple[list[Conversation], str]:
        """Read rows of the form {"messages": [{"role": "user", "content": ...}, ...]}."""
        check_no_columns(reading, "chat")
        read = read_conversations(source)
        return read, f"{source}: {len(read):,} conversations"

    def example(self, text: str, others: Sequence[str]) -> Conversation:
        raise DataError("not supported by chat models; use `bertkit chat MODEL`")


class Chat(LanguageTask[Conversation], UsesDecoder):
    """Chat: next-token prediction, trained only on the messages of the assistant.

    Source: Ouyang et al. 2022, section 3.5 (supervised fine-tuning).
    """

    name = "chat"
    reader = ConversationReader()
    long = ("truncate", "error")

    def with_decoder(self, begin: Sequence[int], tokenizer: Tokenizer) -> Self:
        check_decoder_only(begin, tokenizer)
        return self

    def features(
        self,
        examples: Sequence[Conversation],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labeled: bool,
    ) -> list[Feature]:
        chat, features = Writer(tokenizer), []
        for number, example in enumerate(examples):
            ids, weights = chat.encode(example.messages, answer=False)
            truncated = len(ids) > length
            if truncated and long == "error":
                raise DataError(
                    f"{example.where}: the conversation has {len(ids):,} tokens, but the "
                    f"maximum length is {length:,}; shorten the conversation"
                )
            ids, weights = ids[:length], weights[:length]
            # At each of these positions, the model predicts the next token of the assistant.
            positions = np.flatnonzero(weights[1:])
            if not len(positions):
                raise DataError(
                    f"{example.where}: the assistant's first message starts after {length:,} "
                    "tokens, the maximum length; shorten the messages before it"
                )
            encoding = Encoding.of_ids(ids, truncated=truncated)
            target = ids[positions + 1] if labeled else None
            features.append(Feature(encoding, number, positions, target))
        return features

    def error_record(self, answer: TextScore, example: Conversation) -> ErrorRecord:
        last = next(m for m in reversed(example.messages) if m.role == "assistant")
        query = " | ".join(m.content for m in example.messages if m.role != "assistant")
        nats = -answer.log_probability
        return ErrorRecord(query, last.content, f"{nats:.2f} nats per token", nats)
