"""What tasks share whose answers are texts: the next word, learned at chosen places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.errors import CheckpointError
from bertkit.models.heads import LanguageModelHead
from bertkit.models.model import Model
from bertkit.nn.cross_entropy import linear_cross_entropy, target_logprobs
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.task import A, E, ExampleOutput, Feature, Serving, Task
from bertkit.text.tokenizer import Tokenizer


class TextScore(msgspec.Struct, frozen=True):
    """How likely a model finds the text that it was to write.

    Units: log_probability natural, a token, of `tokens` with those that end texts.
    """

    log_probability: float
    tokens: int


class WordsTask(Task[E, A]):
    """The base of tasks about what a model writes: each feature's `token_indices` are the places
    behind which a word counts.
    """

    @property
    def head(self) -> str:
        return "lm"

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """The log-probability of what follows each chosen place. Shapes: (P, 1)."""
        head, places = cast(LanguageModelHead, model.heads[self.head]), batch.token_indices
        assert places is not None
        features = head.features(model.states(batch), batch)
        return target_logprobs(features, head.weight, head.bias, batch.ids[places + 1])[:, None]


class LanguageTask(WordsTask[E, TextScore]):
    """The base of tasks that teach a model to write. An epoch is judged by how likely it finds the
    right texts.
    """

    metric = "log_probability"
    serving = Serving(TextScore)

    def targets(self, features: Sequence[Feature]) -> Tensor:
        return torch.from_numpy(np.concatenate([feature.target for feature in features]))

    def loss(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        """The mean over the words that are learned."""
        head, targets = cast(LanguageModelHead, model.heads[self.head]), batch.targets[self.head]
        features = head.features(model.states(batch), batch)
        loss, correct = linear_cross_entropy(features, head.weight, head.bias, targets)
        loss = loss / max(totals[self.head], 1)
        return Loss(loss, {self.head: loss.detach()}, {self.head: correct})

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        loss = -outputs.sum() / max(totals[self.head], 1)
        return Loss(loss, {self.head: loss.detach()})

    def answers(self, outputs: Sequence[ExampleOutput[E]], head: nn.Module) -> list[TextScore]:
        return [TextScore(float(one.outputs[0].mean()), len(one.outputs[0])) for one in outputs]

    def score(self, answers: Sequence[TextScore], examples: Sequence[E]) -> dict[str, float]:
        tokens = sum(answer.tokens for answer in answers)
        mean = sum(answer.log_probability * answer.tokens for answer in answers) / tokens
        return {"log_probability": mean, "perplexity": math.exp(-mean)}


def refuse_encoders(begin: Sequence[int], tokenizer: Tokenizer) -> None:
    """Raises: CheckpointError for a model with an encoder, whose decoder's texts `begin` with
    something: it does not converse.
    """
    if begin:
        raise CheckpointError(
            f"{tokenizer.source}: an encoder with a decoder; conversations are learned by a model "
            "of one stack that goes on with its prompt, such as GPT-2 or SmolLM2"
        )
