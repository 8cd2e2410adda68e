"""Base classes of tasks that are based on next-token prediction at selected positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from bertkit.batch import Batch
from bertkit.errors import CheckpointError
from bertkit.models.heads import LanguageModelHead
from bertkit.models.model import Model
from bertkit.nn.cross_entropy import linear_cross_entropy, rows_per_part
from bertkit.objectives.loss import Loss, Totals
from bertkit.tasks.task import A, E, ExampleOutput, Feature, Serving, Task
from bertkit.text.tokenizer import Tokenizer


class TextScore(msgspec.Struct, frozen=True):
    """Log-probability of a target text."""

    log_probability: float
    """Mean natural log-probability per token."""
    tokens: int
    """Number of target tokens, including EOS tokens."""


class NextTokenTask(Task[E, A]):
    """Base class of tasks that use the log-probabilities of next tokens.

    Only the tokens that follow a feature's `token_indices` are used.
    """

    @property
    def head(self) -> str:
        return "lm"

    def outputs(self, model: Model, batch: Batch) -> Tensor:
        """Compute the log-probability of the token after each selected position.

        Shapes:
            Returns (P, 1).
        """
        head, indices = cast(LanguageModelHead, model.heads[self.head]), batch.token_indices
        assert indices is not None
        features = head.features(model.states(batch), batch)
        return target_logprobs(features, head.weight, head.bias, batch.ids[indices + 1])[:, None]


class LanguageTask(NextTokenTask[E, TextScore]):
    """Base class of tasks that train a model to generate text.

    After each epoch, the model is evaluated by the log-probability of the target texts.
    """

    metric = "log_probability"
    serving = Serving(TextScore)

    def targets(self, features: Sequence[Feature]) -> Tensor:
        return torch.from_numpy(np.concatenate([feature.target for feature in features]))

    def loss(self, model: Model, batch: Batch, totals: Totals) -> Loss:
        """Compute the mean cross-entropy over the target tokens."""
        head, targets = cast(LanguageModelHead, model.heads[self.head]), batch.targets[self.head]
        features = head.features(model.states(batch), batch)
        loss, correct = linear_cross_entropy(features, head.weight, head.bias, targets)
        loss = loss / max(totals[self.head], 1)
        return Loss(loss, {self.head: loss.detach()}, {self.head: correct})

    def loss_of(self, outputs: Tensor, batch: Batch, totals: Totals, head: nn.Module) -> Loss:
        loss = -outputs.sum() / max(totals[self.head], 1)
        return Loss(loss, {self.head: loss.detach()})

    def answers(self, outputs: Sequence[ExampleOutput[E]], head: nn.Module) -> list[TextScore]:
        return [TextScore(float(x.outputs[0].mean()), len(x.outputs[0])) for x in outputs]

    def score(self, answers: Sequence[TextScore], examples: Sequence[E]) -> dict[str, float]:
        tokens = sum(answer.tokens for answer in answers)
        mean = sum(answer.log_probability * answer.tokens for answer in answers) / tokens
        return {"log_probability": mean, "perplexity": math.exp(-mean)}


def check_decoder_only(begin: Sequence[int], tokenizer: Tokenizer) -> None:
    """Check that a model is a decoder-only model.

    Args:
        begin: Tokens that start the decoder's input. Empty for a decoder-only model.
        tokenizer: The tokenizer of the model.

    Raises:
        CheckpointError: If the model has an encoder.
    """
    if begin:
        raise CheckpointError(
            f"{tokenizer.source}: conversations are not supported by encoder-decoder models; use a "
            "decoder-only model such as GPT-2 or SmolLM2"
        )


def target_logprobs(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Compute the log-probability of each target in fp32, without storing all logits at once.

    If gradients are enabled, the backward pass computes the logits again, for some rows at a time.

    Args:
        x: Input vectors of the linear layer.
        weight: Weights of the linear layer: the output embeddings.
        bias: Bias of the linear layer.
        targets: Target id for each row of `x`.

    Shapes:
        x: (M, D).
        weight: (V, D).
        bias: (V,).
        targets: (M,).
        returns: (M,).
    """
    count = rows_per_part(x, weight)
    parts = zip(x.split(count), targets.split(count), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([_logprobs(part, weight, bias, labels) for part, labels in parts])
    logprobs = [
        checkpoint(
            _logprobs, part, weight, bias, labels, use_reentrant=False, preserve_rng_state=False
        )
        for part, labels in parts
    ]
    return torch.cat(logprobs)


def _logprobs(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = F.linear(x, weight, bias).float()
    return logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)
