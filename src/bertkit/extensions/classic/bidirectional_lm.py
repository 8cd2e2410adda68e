"""Bidirectional language model, on which ELMo is pretrained.

It predicts each word from the words before it and, separately, from the words after it.
Source: Peters et al. 2018, section 3.1. Weights are initialized as in allenai/bilm-tf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.extensions.classic.elmo import CharacterCNN, Elmo, ElmoConfig
from bertkit.extensions.classic.recurrent import ProjectedLSTM
from bertkit.nn.embedding import freeze_at_zero

DIRECTIONS = ("forward", "backward")

CARRY_BIAS = -2.0
"""Initial bias of the highway gates. With this value, most of a word vector passes unchanged."""


class BiLM(nn.Module):
    """ELMo with a softmax layer that both directions share. It has the interface of a `Model`.

    Args:
        elmo: The ELMo.
        words: Number of words that the softmax layer predicts, the most frequent words.

    Shapes:
        softmax: (V, P), applied to the forward and the backward half of a state separately.
    """

    def __init__(self, elmo: Elmo, words: int) -> None:
        super().__init__()
        self.elmo = elmo
        self.softmax = nn.Linear(elmo.config.lstm.projection_dim, words)

    @property
    def config(self) -> ElmoConfig:
        return self.elmo.config

    def states(self, batch: Batch) -> Tensor:
        """Compute the states of the last layer.

        Shapes:
            batch.ids: (N, characters per word); returns (N, 2P).
        """
        states, _ = self.elmo(batch.ids, batch.layout.lengths)
        out: Tensor = self.elmo.dropout(states[-1])
        return out

    def forward(self, batch: Batch, compute: Callable[[BiLM, Batch], Any]) -> Any:
        """Call `compute` with the model and the batch, and return its result."""
        return compute(self, batch)


def new_bilm(config: ElmoConfig, characters: int, words: int) -> BiLM:
    """Build a model with new weights, which are sampled with torch's default random generator.

    Args:
        config: Settings of the ELMo.
        characters: Number of character ids.
        words: Number of words that the softmax layer predicts.
    """
    model = BiLM(Elmo(config, characters), words)
    cnn = model.elmo.words
    with torch.no_grad():
        cnn.embedding.weight.uniform_(-1.0, 1.0)
        nn.init.normal_(model.softmax.weight, std=config.lstm.projection_dim**-0.5)
        nn.init.zeros_(model.softmax.bias)
        _init_words(cnn, config.char_cnn.activation)
        for module in model.elmo.modules():
            if isinstance(module, ProjectedLSTM):
                _init_lstm(module)
    # Row 0 stands for the absence of a word. Published files do not contain this row.
    freeze_at_zero(cnn.embedding, 0)
    return model


def _init_words(cnn: CharacterCNN, activation: str) -> None:
    for filters in cast(list[nn.Conv1d], cnn.convolutions):
        if activation == "relu":
            nn.init.uniform_(filters.weight, -0.05, 0.05)
        else:
            inputs = filters.in_channels * filters.kernel_size[0]
            nn.init.normal_(filters.weight, std=inputs**-0.5)
        nn.init.zeros_(cast(Tensor, filters.bias))
    for highway in cnn.highways:
        for name in ("transform", "gate"):
            linear = getattr(highway, name)
            nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            nn.init.constant_(linear.bias, CARRY_BIAS if name == "gate" else 0.0)
    nn.init.normal_(cnn.projection.weight, std=cnn.projection.in_features**-0.5)
    nn.init.zeros_(cnn.projection.bias)


def _init_lstm(lstm: ProjectedLSTM) -> None:
    """Initialize an LSTM as TensorFlow does, with a bias of 1 for the forget gate.

    TensorFlow stores the weights of the inputs and of the previous outputs in one matrix, so the
    bounds of Glorot's initialization are computed for both together.
    """
    outputs, width = lstm.projection.weight.shape
    fan = lstm.input.in_features + outputs + 4 * width
    for linear in (lstm.input, lstm.recurrent):
        nn.init.uniform_(linear.weight, -((6 / fan) ** 0.5), (6 / fan) ** 0.5)
    nn.init.xavier_uniform_(lstm.projection.weight)
    nn.init.zeros_(lstm.input.bias)
    lstm.input.bias[width : 2 * width] = 1.0
