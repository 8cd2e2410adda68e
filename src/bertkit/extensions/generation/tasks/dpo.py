"""Pairs of answers of which one was preferred: direct preference optimization.

Rafailov et al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bertkit.batch import Batch
from bertkit.config import Positive, Settings
from bertkit.data.row_readers import Source
from bertkit.errors import DataError
from bertkit.extensions.generation.chat_format import ChatFormat, Message
from bertkit.extensions.generation.messages import Preference, read_preferences
from bertkit.extensions.generation.tasks.language import WordsTask, refuse_encoders
from bertkit.extensions.generation.tasks.reference_model import add_reference
from bertkit.models.model import Model
from bertkit.objectives.distill import TEACHER_OUTPUTS
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.capabilities import ChanceLevel, NeedsReference, UsesDecoder
from bertkit.tasks.choose import refuse_columns
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reader, Reading, Serving
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer


class DpoOptions(Settings, frozen=True):
    """How far a model may go from where it began."""

    beta: Positive = 0.1
    """What differences of log-probabilities are multiplied by; with more the model stays nearer to
    where it began."""


class PreferenceAnswer(msgspec.Struct, frozen=True):
    """What a model thinks of two answers: its rewards, equation 5 but for a constant.

    Rewards are beta times how much likelier (in nats) an answer became than the model found it
    before; not `relative`, beta times its log-probability alone.
    """

    chosen: float
    rejected: float
    relative: bool

    @property
    def margin(self) -> float:
        """By how much the chosen one's reward is larger."""
        return self.chosen - self.rejected


class PreferenceReader(Reader[Preference]):
    """Pairs of answers of which one is preferred, from .jsonl rows."""

    def read(
        self, source: Source, reading: Reading, *, labelled: bool
    ) -> tuple[list[Preference], str]:
        """Read .jsonl rows {"messages": [...], "chosen": ..., "rejected": ...}.

        Rows may have a "prompt", the message of the user, instead of messages.
        """
        refuse_columns(reading, "dpo")
        read = read_preferences(source)
        return read, f"{source}: {len(read):,} pairs of answers"

    def example(self, text: str, others: Sequence[str]) -> Preference:
        raise DataError("a model that learned preferences is asked by `bertkit chat MODEL`")


class Dpo(WordsTask[Preference, PreferenceAnswer], ChanceLevel, NeedsReference, UsesDecoder):
    """Preferences (DPO): preferred answers become more probable.

    Both answers of a pair are read in one batch, without dropout, as in the paper's code; the
    assistant's last turn counts alone.
    Source: Rafailov et al. 2023, equation 7.
    """

    name = "dpo"
    reader = PreferenceReader()
    metric = "log_probability"
    score_names = ("accuracy", "margin", "log_probability")
    Options = DpoOptions
    serving = Serving(PreferenceAnswer)
    long = ("truncate", "error")
    batching = "example"
    add_reference = staticmethod(add_reference)

    def with_decoder(self, begin: Sequence[int], tokenizer: Tokenizer) -> Self:
        refuse_encoders(begin, tokenizer)
        return self

    def features(
        self,
        examples: Sequence[Preference],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labelled: bool,
    ) -> list[Feature]:
        """Two for each example, the chosen answer's first; a target is 1 or -1."""
        chat, features = ChatFormat(tokenizer), []
        for number, example in enumerate(examples):
            begin = len(chat.encode(example.messages)[0])
            for text, sign in ((example.chosen, 1.0), (example.rejected, -1.0)):
                messages = [*example.messages, Message("assistant", text)]
                ids, weights = chat.encode(messages, answer=False)
                truncated = len(ids) > length
                if begin >= length or (truncated and long == "error"):
                    raise DataError(
                        f"{example.where}: {len(ids):,} tokens, the model reads {length:,}; "
                        "shorten what stands before the answers"
                    )
                ids, weights = ids[:length], weights[:length]
                places = begin - 1 + np.flatnonzero(weights[begin:])  # each says what comes next
                encoding = Encoding.of_ids(ids, truncated=truncated)
                features.append(Feature(encoding, number, places, sign if labelled else None))
        return features

    def targets(self, features: Sequence[Feature]) -> Tensor:
        return torch.tensor([feature.target for feature in features])

    def loss(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        model.eval()  # its outputs at the start were without dropout, too
        return super().loss(model, batch, totals)

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """-log sigmoid(beta · (gain of the chosen - gain of the rejected)), the mean over pairs."""
        signs = batch.targets[self.head]
        assert batch.example is not None
        assert batch.token_indices is not None
        gains = (outputs - batch.targets[TEACHER_OUTPUTS])[:, 0]
        sequences = batch.layout.sequence_ids[batch.token_indices]
        pairs = batch.example[sequences]
        zeros = gains.new_zeros(len(signs) // 2)
        margins = self.options.beta * zeros.index_add(0, pairs, signs[sequences] * gains)
        loss = -F.logsigmoid(margins).sum() / max(totals[self.head] // 2, 1)
        return Loss(loss, {self.head: loss.detach()})

    def answers(
        self, outputs: Sequence[ExampleOutput[Preference]], head: nn.Module
    ) -> list[PreferenceAnswer]:
        answers = []
        for item in outputs:
            starts = [feature.teacher_outputs for feature in item.features]
            chosen, rejected = (
                self.options.beta * _gain(rows, start)
                for rows, start in zip(item.outputs, starts, strict=True)
            )
            answers.append(PreferenceAnswer(chosen, rejected, starts[0] is not None))
        return answers

    def score(
        self, answers: Sequence[PreferenceAnswer], examples: Sequence[Preference]
    ) -> dict[str, float]:
        """The share of pairs whose chosen answer gained more, the mean margin, and the mean log of
        the chance sigmoid(margin) of what was preferred (Bradley & Terry 1952); of a model whose
        start is not known, the share of pairs whose chosen answer is likelier.
        """
        margins = np.array([answer.margin for answer in answers])
        share = float(np.mean(margins > 0))
        if not answers[0].relative:
            return {"chosen_likelier": share}
        chance = float(-np.logaddexp(0.0, -margins).mean())
        return {"accuracy": share, "margin": float(margins.mean()), "log_probability": chance}

    def chance(self, examples: Sequence[Preference]) -> dict[str, float]:
        return {"accuracy": 0.5}

    def error_record(self, answer: PreferenceAnswer, example: Preference) -> ErrorRecord:
        asked = " | ".join(message.content for message in example.messages)
        told = f"{example.rejected} (by {-answer.margin:.3f})"
        worse = answer.margin <= 0
        return ErrorRecord(
            asked, example.chosen, told if worse else example.chosen, max(0.0, -answer.margin)
        )


def _gain(rows: NDArray[np.float32], start: NDArray[np.float32] | None) -> float:
    """How much likelier a text became, in nats. Shapes: (P, 1) both."""
    return float((rows if start is None else rows - start).sum(dtype=np.float64))
