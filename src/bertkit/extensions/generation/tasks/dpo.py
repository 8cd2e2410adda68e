"""Direct preference optimization (DPO). Rafailov et al. 2023."""

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
from bertkit.extensions.generation.tasks.language import NextTokenTask, check_decoder_only
from bertkit.extensions.generation.tasks.reference_model import add_reference
from bertkit.models.model import Model
from bertkit.objectives.distill import TEACHER_OUTPUTS
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.capabilities import ChanceLevel, NeedsReference, UsesDecoder
from bertkit.tasks.choose import check_no_columns
from bertkit.tasks.task import ErrorRecord, ExampleOutput, Feature, Reader, Reading, Serving
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer


class DpoOptions(Settings, frozen=True):
    """Options for DPO."""

    beta: Positive = 0.1
    """Scale of the log-probability ratios (β). With larger values, the model stays closer to the
    reference model."""


class PreferenceAnswer(msgspec.Struct, frozen=True):
    """Rewards of the chosen and the rejected answer (equation 5 without its constant).

    If `relative` is true, a reward is β times the log-probability ratio of the model to the
    reference model, in nats. Otherwise, the outputs of the reference model are unknown, and a
    reward is β times the log-probability under the model.
    """

    chosen: float
    rejected: float
    relative: bool

    @property
    def margin(self) -> float:
        """Reward of the chosen answer minus the reward of the rejected answer."""
        return self.chosen - self.rejected


class PreferenceReader(Reader[Preference]):
    """Reader of conversations with a chosen and a rejected answer, in .jsonl files."""

    def read(
        self, source: Source, reading: Reading, *, labeled: bool
    ) -> tuple[list[Preference], str]:
        """Read rows of the form {"messages": [...], "chosen": ..., "rejected": ...}.

        Instead of messages, a row may have a "prompt" with a single message of the user.
        """
        check_no_columns(reading, "dpo")
        read = read_preferences(source)
        return read, f"{source}: {len(read):,} pairs of answers"

    def example(self, text: str, others: Sequence[str]) -> Preference:
        raise DataError("not supported by DPO models; use `bertkit chat MODEL`")


class Dpo(NextTokenTask[Preference, PreferenceAnswer], ChanceLevel, NeedsReference, UsesDecoder):
    """Preferences (DPO): preferred answers become more probable than rejected answers.

    As in the paper's code, both answers of a pair are in the same batch, and dropout is disabled.
    The loss depends only on the tokens of the two answers.

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
        check_decoder_only(begin, tokenizer)
        return self

    def features(
        self,
        examples: Sequence[Preference],
        tokenizer: Tokenizer,
        length: int,
        *,
        long: Long,
        labeled: bool,
    ) -> list[Feature]:
        """Return two features per example: the chosen answer (target 1), then the rejected (-1).

        Raises:
            DataError: If a conversation is too long.
        """
        chat, features = ChatFormat(tokenizer), []
        for number, example in enumerate(examples):
            begin = len(chat.encode(example.messages)[0])
            for text, sign in ((example.chosen, 1.0), (example.rejected, -1.0)):
                messages = [*example.messages, Message("assistant", text)]
                ids, weights = chat.encode(messages, answer=False)
                truncated = len(ids) > length
                if begin >= length or (truncated and long == "error"):
                    raise DataError(
                        f"{example.where}: the conversation has {len(ids):,} tokens, but the "
                        f"maximum length is {length:,}; shorten the messages before the answers"
                    )
                ids, weights = ids[:length], weights[:length]
                # At each of these positions, the model predicts the next token of the answer.
                positions = begin - 1 + np.flatnonzero(weights[begin:])
                encoding = Encoding.of_ids(ids, truncated=truncated)
                features.append(Feature(encoding, number, positions, sign if labeled else None))
        return features

    def targets(self, features: Sequence[Feature]) -> Tensor:
        return torch.tensor([feature.target for feature in features])

    def loss(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        # The outputs of the reference model were also computed without dropout.
        model.eval()
        return super().loss(model, batch, totals)

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        """Compute the mean of -log sigmoid(β · (gain of chosen - gain of rejected)).

        The gain of an answer is its log-probability under the model minus its log-probability
        under the reference model.
        """
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
        """Compute scores from the rewards of pairs of answers.

        Returns:
            If the reference model is known: `accuracy`, the fraction of pairs with a positive
            margin; the mean `margin`; and `log_probability`, the mean logarithm of the preference
            probability sigmoid(margin) (Bradley & Terry 1952). Otherwise: `chosen_more_likely`, the
            fraction of pairs in which the chosen answer is more probable.
        """
        margins = np.array([answer.margin for answer in answers])
        fraction = float(np.mean(margins > 0))
        if not answers[0].relative:
            return {"chosen_more_likely": fraction}
        logprob = float(-np.logaddexp(0.0, -margins).mean())
        return {"accuracy": fraction, "margin": float(margins.mean()), "log_probability": logprob}

    def chance(self, examples: Sequence[Preference]) -> dict[str, float]:
        return {"accuracy": 0.5}

    def error_record(self, answer: PreferenceAnswer, example: Preference) -> ErrorRecord:
        query = " | ".join(message.content for message in example.messages)
        rejected = f"{example.rejected} (by {-answer.margin:.3f})"
        preferred = rejected if answer.margin <= 0 else example.chosen
        return ErrorRecord(query, example.chosen, preferred, max(0.0, -answer.margin))


def _gain(rows: NDArray[np.float32], start: NDArray[np.float32] | None) -> float:
    """Sum the log-probability ratios of the tokens of a text, in nats.

    Without reference values, the result is the log-probability of the text.

    Args:
        rows: Log-probability of each token under the model.
        start: Log-probability of each token under the reference model, if it is known.

    Shapes:
        rows, start: (P, 1).
    """
    return float((rows if start is None else rows - start).sum(dtype=np.float64))
