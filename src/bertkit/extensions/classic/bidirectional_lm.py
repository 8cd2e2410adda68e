"""The language model by which an ELMo learns: each word from those before it, and from those
behind it.

Source: Peters et al. 2018, section 3.1; where it begins is that of allenai/bilm-tf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from bertkit.batch import Batch
from bertkit.extensions.classic.elmo import CharacterCNN, Elmo, ElmoConfig
from bertkit.extensions.classic.recurrent import ProjectedLSTM
from bertkit.nn.embedding import hold_at_zero

DIRECTIONS = ("forward", "backward")

KEPT = -2.0
"""Where the gates of a highway begin: most of a word's vector goes through as it is."""


class BiLM(nn.Module):
    """An ELMo under the softmax that both of its directions share. It is called as a `Model` is.

    Shapes: the softmax is (V, P) over the most frequent words; it reads either half of a state.
    """

    def __init__(self, elmo: Elmo, words: int) -> None:
        super().__init__()
        self.elmo = elmo
        self.softmax = nn.Linear(elmo.config.lstm.projection_dim, words)

    @property
    def config(self) -> ElmoConfig:
        return self.elmo.config

    def states(self, batch: Batch) -> Tensor:
        """Those of the last layer. Shapes: ids (N, characters of a word) -> (N, 2P)."""
        states, _ = self.elmo(batch.ids, batch.layout.lengths)
        out: Tensor = self.elmo.dropout(states[-1])
        return out

    def forward(self, batch: Batch, compute: Callable[[BiLM, Batch], Any]) -> Any:
        """What an objective makes of the batch."""
        return compute(self, batch)


def new_bilm(config: ElmoConfig, characters: int, words: int) -> BiLM:
    """One with fresh weights from torch's generator."""
    model = BiLM(Elmo(config, characters), words)
    cnn = model.elmo.words
    with torch.no_grad():
        cnn.embedding.weight.uniform_(-1.0, 1.0)
        nn.init.normal_(model.softmax.weight, std=config.lstm.projection_dim**-0.5)
        nn.init.zeros_(model.softmax.bias)
        _begin_words(cnn, config.char_cnn.activation)
        for one in model.elmo.modules():
            if isinstance(one, ProjectedLSTM):
                _begin_lstm(one)
    hold_at_zero(cnn.embedding, 0)  # of places without a word: files have no row for it
    return model


def _begin_words(cnn: CharacterCNN, activation: str) -> None:
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
            nn.init.constant_(linear.bias, KEPT if name == "gate" else 0.0)
    nn.init.normal_(cnn.projection.weight, std=cnn.projection.in_features**-0.5)
    nn.init.zeros_(cnn.projection.bias)


def _begin_lstm(lstm: ProjectedLSTM) -> None:
    """Glorot's bounds over inputs and outputs together, as TensorFlow has them in one matrix; the
    forget gate begins open.
    """
    outputs, width = lstm.projection.weight.shape
    fan = lstm.input.in_features + outputs + 4 * width
    for linear in (lstm.input, lstm.recurrent):
        nn.init.uniform_(linear.weight, -((6 / fan) ** 0.5), (6 / fan) ** 0.5)
    nn.init.xavier_uniform_(lstm.projection.weight)
    nn.init.zeros_(lstm.input.bias)
    lstm.input.bias[width : 2 * width] = 1.0
