"""Conversations of which a model learns the assistant's turns (instruction tuning)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.data.messages import Conversation, read_conversations
from bertkit.errors import DataError
from bertkit.models.heads import LanguageModelHead
from bertkit.models.model import Model
from bertkit.nn.cross_entropy import linear_cross_entropy, target_logprobs
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.choose import refuse_columns
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reading, Task
from bertkit.text.chat import Chat as Writer
from bertkit.text.encoding import Encoding
from bertkit.text.long import Long
from bertkit.text.tokenizer import Tokenizer


class ConversationScore(msgspec.Struct, frozen=True):
    """How likely a model says what the assistant said.

    Units: log_probability natural, a token, of `tokens` with the ends of turns.
    """

    log_probability: float
    tokens: int


class Chat(Task[Conversation, ConversationScore]):
    """Answers in a conversation: the next word, learned from the assistant's turns alone.

    Source: Ouyang et al. 2022, section 3.5 (supervised fine-tuning).
    """

    name = "chat"
    metric = "log_probability"
    Answer = ConversationScore
    long = ("truncate", "error")

    @property
    def head(self) -> str:
        return "lm"

    @classmethod
    def read(
        cls, path: Path, reading: Reading, *, labelled: bool
    ) -> tuple[list[Conversation], str]:
        """Rows {"messages": [{"role": "user", "content": ...}, ...]} of a .jsonl file."""
        refuse_columns(reading, cls.name)
        read = read_conversations(path)
        return read, f"{path}: {len(read):,} conversations"

    @classmethod
    def example(cls, text: str, others: Sequence[str]) -> Conversation:
        raise DataError("a model that converses is asked by `bertkit chat MODEL`")

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
            none = np.zeros(len(ids), dtype=np.int64)
            encoding = Encoding(
                ids, none, np.zeros((len(ids), 2), dtype=np.int64),
                [None] * len(ids), [0] * len(ids), truncated,
            )  # fmt: skip
            target = ids[places + 1] if labelled else None
            features.append(Feature(encoding, number, places, target))
        return features

    def targets(self, features: Sequence[Feature]) -> Tensor:
        return torch.from_numpy(np.concatenate([feature.target for feature in features]))

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """The log-probability of what follows each chosen place. Shapes: (P, 1)."""
        head, places = cast(LanguageModelHead, model.heads[self.head]), batch.token_indices
        assert places is not None
        features = head.features(model.states(batch), batch)
        return target_logprobs(features, head.weight, head.bias, batch.ids[places + 1])[:, None]

    def loss(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        """The mean over the tokens that the assistant says."""
        head, targets = cast(LanguageModelHead, model.heads[self.head]), batch.targets[self.head]
        features = head.features(model.states(batch), batch)
        loss, correct = linear_cross_entropy(features, head.weight, head.bias, targets)
        loss = loss / max(totals[self.head], 1)
        return Loss(loss, {self.head: loss.detach()}, {self.head: correct})

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        loss = -outputs.sum() / max(totals[self.head], 1)
        return Loss(loss, {self.head: loss.detach()})

    def answers(
        self, outputs: Sequence[ExampleOutput[Conversation]], head: nn.Module
    ) -> list[ConversationScore]:
        return [
            ConversationScore(float(one.outputs[0].mean()), len(one.outputs[0])) for one in outputs
        ]

    def score(
        self, answers: Sequence[ConversationScore], examples: Sequence[Conversation]
    ) -> dict[str, float]:
        tokens = sum(answer.tokens for answer in answers)
        mean = sum(answer.log_probability * answer.tokens for answer in answers) / tokens
        return {"log_probability": mean, "perplexity": math.exp(-mean)}

    def error_record(self, answer: ConversationScore, example: Conversation) -> ErrorRecord:
        last = next(m for m in reversed(example.messages) if m.role == "assistant")
        asked = " | ".join(m.content for m in example.messages if m.role != "assistant")
        nats = -answer.log_probability
        return ErrorRecord(asked, last.content, f"{nats:.2f} nats a token", nats)
