"""ELMo: contextual word vectors from a bidirectional LSTM language model.

Source: Peters et al. 2018, "Deep contextualized word representations", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import torch
from msgspec import Meta
from torch import Tensor, nn

from bertkit.config import Positive, Rate
from bertkit.extensions.classic.recurrent import ProjectedLSTM, Steps
from bertkit.nn.dropout import Dropout
from bertkit.nn.embedding import EmbeddingTable

Count = Annotated[int, Meta(ge=1, le=1 << 20)]

WORDS_PER_CHUNK = 256
"""Number of distinct words that one call of the convolutions processes.

The memory for each word is proportional to its number of characters times the total number of
filters.
"""

State = tuple[Tensor, Tensor]
"""Outputs and cells of the LSTMs, of shapes (directions, layers, S, P) and (directions, layers, S,
dim)."""


class LSTMConfig(msgspec.Struct, frozen=True):
    """Settings of the LSTMs. They are the same for both directions."""

    dim: Count
    """Size of a cell."""
    projection_dim: Count
    """Size of an output of one direction, and of a word vector (layer 0)."""
    n_layers: Count
    cell_clip: Positive | None = None
    """Maximum absolute value of a cell. Larger values are clipped."""
    proj_clip: Positive | None = None
    """Maximum absolute value of an output. Larger values are clipped."""
    use_skip_connections: bool = False
    """Whether the input of each layer except the first is added to its output."""


class CharacterEmbedding(msgspec.Struct, frozen=True):
    """Settings of the character embeddings."""

    dim: Count


class CharacterConfig(msgspec.Struct, frozen=True):
    """Settings of the convolutions that compute a word vector from the characters of a word."""

    embedding: CharacterEmbedding
    filters: Annotated[tuple[tuple[Count, Count], ...], Meta(min_length=1)]
    """Width in characters and number of filters, for each convolution."""
    n_highway: Annotated[int, Meta(ge=0, le=1 << 10)]
    activation: Literal["relu", "tanh"]
    max_characters_per_token: Annotated[int, Meta(ge=3, le=1 << 12)]
    n_characters: Literal[261, 262] = 262
    """Number of character ids: 256 bytes and five markers. 262 also counts the id 0, which stands
    for the absence of a word. Both values have the same effect."""

    def __post_init__(self) -> None:
        widest = max(width for width, _ in self.filters)
        if widest > self.max_characters_per_token:
            raise ValueError(
                f"filters: the width must not exceed max_characters_per_token, got {widest}"
            )


class ElmoConfig(msgspec.Struct, frozen=True):
    """Settings of an ELMo, with the names of the published `options.json`."""

    lstm: LSTMConfig
    char_cnn: CharacterConfig
    dropout: Rate = 0.0
    """Dropout rate during training for the input of each layer and of the softmax."""

    @property
    def layers(self) -> int:
        """Number of LSTM layers, without layer 0, the word vectors."""
        return self.lstm.n_layers

    @property
    def hidden(self) -> int:
        """Size D of a state, which contains the outputs of both directions."""
        return 2 * self.lstm.projection_dim


class Highway(nn.Module):
    """Highway layer (Srivastava et al. 2015).

    It computes g ⊙ relu(W x + b) + (1 - g) ⊙ x, where g = sigmoid(W' x + b').
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).sigmoid()
        out: Tensor = gate * self.transform(x).relu() + (1 - gate) * x
        return out


class CharacterCNN(nn.Module):
    """Convolutional network that computes word vectors from characters.

    Source: Kim et al. 2016, "Character-aware neural language models", sections 2.2 and 2.3.

    Shapes:
        characters: (N, characters per word); returns (N, P).
    """

    def __init__(self, config: CharacterConfig, characters: int, outputs: int) -> None:
        super().__init__()
        width = config.embedding.dim
        total = sum(count for _, count in config.filters)
        self.embedding = EmbeddingTable(characters, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, n, size) for size, n in config.filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(config.n_highway))
        self.projection = nn.Linear(total, outputs)
        self.activation = torch.relu if config.activation == "relu" else torch.tanh

    def forward(self, characters: Tensor) -> Tensor:
        distinct, indices = characters.unique(dim=0, return_inverse=True)
        vectors = torch.cat([self._words(part) for part in distinct.split(WORDS_PER_CHUNK)])
        return vectors[indices]

    def _words(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters.flatten()).view(*characters.shape, -1).transpose(1, 2)
        x = torch.cat([self.activation(filters(x).amax(-1)) for filters in self.convolutions], -1)
        for highway in self.highways:
            x = highway(x)
        out: Tensor = self.projection(x)
        return out


class Elmo(nn.Module):
    """Bidirectional language model without its softmax layer, which computes the states of words.

    Args:
        config: Settings of the model.
        characters: Number of character ids.
    """

    def __init__(self, config: ElmoConfig, characters: int) -> None:
        super().__init__()
        self.config = config
        lstm = config.lstm
        self.words = CharacterCNN(config.char_cnn, characters, lstm.projection_dim)
        self.dropout = Dropout(config.dropout)
        self.directions = nn.ModuleList(
            nn.ModuleList(
                ProjectedLSTM(
                    lstm.projection_dim,
                    lstm.dim,
                    lstm.projection_dim,
                    cell_clip=lstm.cell_clip,
                    output_clip=lstm.proj_clip,
                )
                for _ in range(lstm.n_layers)
            )
            for _ in ("forward", "backward")
        )

    def forward(
        self, characters: Tensor, lengths: Sequence[int], state: State | None = None
    ) -> tuple[Tensor, State]:
        """Compute the states of packed sentences, which need not be sorted by length.

        Layer 0 contains each word vector twice. In the other layers, a state consists of the output
        of the forward LSTM, followed by the output of the backward LSTM. Each sentence includes
        markers for its beginning and end.

        Args:
            characters: Character ids of all words.
            lengths: Number of words in each sentence.
            state: Initial state of the LSTMs. Default: zeros.

        Returns:
            The states of all words, and the final state of the LSTMs.

        Shapes:
            characters: (N, characters per word).
            returns: states (layers + 1, N, D).
        """
        words = self.words(characters)
        outputs, cells = self.start(len(lengths)) if state is None else state
        sides, ends = [], []
        for number, layers in enumerate(self.directions):
            steps = Steps.of(lengths, words.device, backward=number == 1)
            start = outputs[number][:, steps.sequences], cells[number][:, steps.sequences]
            side, final = self._run(layers, words[steps.tokens], steps.sizes.tolist(), start)
            sides.append(side[:, steps.tokens.argsort()])
            ends.append([part[:, steps.sequences.argsort()] for part in final])
        states = torch.cat([torch.cat([words, words], -1)[None], torch.cat(sides, -1)])
        return states, (torch.stack([e[0] for e in ends]), torch.stack([e[1] for e in ends]))

    def start(self, sequences: int) -> State:
        """Return an initial state of zeros for a number of sequences."""
        lstm, weight = self.config.lstm, self.words.projection.weight
        shape = (2, lstm.n_layers, sequences)
        return weight.new_zeros(*shape, lstm.projection_dim), weight.new_zeros(*shape, lstm.dim)

    def _run(
        self, layers: nn.Module, x: Tensor, sizes: list[int], start: State
    ) -> tuple[Tensor, State]:
        """Run the LSTMs of one direction.

        Shapes:
            x: (N, P); returns states (layers, N, P).
        """
        states, ends = [], []
        assert isinstance(layers, nn.ModuleList)
        for number, (layer, *state) in enumerate(zip(layers, *start, strict=True)):
            out, end = layer(self.dropout(x), sizes, tuple(state))
            has_skip = self.config.lstm.use_skip_connections and number > 0
            x = out + x if has_skip else out
            states.append(x)
            ends.append(end)
        return torch.stack(states), (
            torch.stack([output for output, _ in ends]),
            torch.stack([cell for _, cell in ends]),
        )
