"""Hidden states of frozen models as input features of a BiLSTM (the feature-based approach).

Source: Devlin et al. 2019, section 5.3.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor

from bertkit.batch import Batch
from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.hub import model_files
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError
from bertkit.nn.attention import Trace
from bertkit.text.tokenizer import Tokenizer

BASE = "base"
"""Directory of the frozen Transformer in a model directory."""

How = Literal["one", "sum", "mix", "concat"]

PATTERN = re.compile(r"(-?[1-9][0-9]{0,3})|(sum|mix|concat):(all|0|-[1-9][0-9]{0,3})")


@dataclass(frozen=True)
class LayerChoice:
    """Choice of the layers whose hidden states are used as features, and of their combination.

    Args:
        how: "one" for a single layer. For several layers: "sum", "mix" (weighted sum with learned
            weights), or "concat" (concatenation).
        layers: Numbers of the layers, where 0 is the embedding layer.
    """

    how: How
    layers: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, num_layers: int) -> Self:
        """Parse the value of the setting `features`.

        Args:
            text: The value, such as "embeddings", "-1" or "mix:0".
            num_layers: Number of layers of the model.

        Raises:
            ConfigError: If the value is invalid, or the model does not have these layers.
        """
        if text == "embeddings":
            return cls("one", (0,))
        match = PATTERN.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"features: unknown value {text!r}; use embeddings, a layer such as 3 or -1, or "
                "sum:, mix:, or concat: followed by -4 (the last four layers), all, or 0 (all "
                "layers and the embeddings)"
            )
        layer, last = match[1], match[3]
        how = cast(How, match[2])
        if last == "0":
            return cls(how, tuple(range(num_layers + 1)))
        count = num_layers if last == "all" else abs(int(layer or last))
        if count > num_layers:
            raise ConfigError(
                f"features: {text!r} requires {count} layers, but the model has {num_layers}; use "
                "fewer layers"
            )
        if layer:
            return cls("one", (int(layer) % (num_layers + 1),))
        return cls(how, tuple(range(num_layers + 1 - count, num_layers + 1)))

    @property
    def parts(self) -> int:
        """Number of hidden states that `select` returns for each token."""
        return 1 if self.how == "sum" else len(self.layers)

    def select(self, states: Sequence[Tensor] | Tensor) -> Tensor:
        """Select the hidden states of the chosen layers, and sum or concatenate them.

        For "mix", they are concatenated, and the learned weights are applied later.

        Shapes:
            states: (N, D) for each layer, starting with layer 0; returns (N, parts · D).
        """
        chosen = [states[layer] for layer in self.layers]
        return torch.stack(chosen).sum(0) if self.how == "sum" else torch.cat(chosen, 1)


class FrozenFeatures(ABC):
    """Base class of frozen models that compute hidden states, word vectors, or both for tokens."""

    num_layers = 0
    """Number of layers, without the embedding layer."""
    hidden = 0
    """Size of a hidden state, or 0 if there are no hidden states."""
    dimensions = 0
    """Size of a word vector, which follows the hidden states, or 0 if there are no word vectors."""
    length: int | None = None
    """Default maximum number of tokens in a text, if it differs from the maximum of the
    tokenizer."""
    max_positions = 1 << 20
    """Maximum number of tokens that the model supports."""
    files: Mapping[str, Path]
    """Files of the model, by their names in the directory of a fine-tuned model."""

    def __deepcopy__(self, memo: Any) -> Self:
        """Return this object itself, so that copies of a model share the frozen weights."""
        return self

    @abstractmethod
    def read_tokenizer(self, source: str) -> Tokenizer:
        """Return the tokenizer. Its messages name `source` as its directory."""

    @abstractmethod
    def compute(self, batch: Batch, choice: LayerChoice, device: torch.device) -> Tensor:
        """Compute the features of the tokens in a batch, in fp16.

        Shapes:
            batch: N tokens; returns (N, parts · hidden + dimensions).
        """


class TransformerFeatures(FrozenFeatures):
    """Hidden states of a frozen Transformer.

    Args:
        loaded: The Transformer, loaded from a directory with all of its weights.
    """

    def __init__(self, loaded: Loaded) -> None:
        config = loaded.model.config
        self.tokenizer, self.length = loaded.tokenizer, loaded.length
        self.num_layers, self.hidden = config.layers, config.hidden
        self.max_positions = config.max_positions
        self.files = {f"{BASE}/{name}": loaded.folder / name for name in model_files(loaded.folder)}
        self._engine = cache(partial(Engine, loaded.model))

    def read_tokenizer(self, source: str) -> Tokenizer:
        return self.tokenizer

    @torch.no_grad()
    def compute(self, batch: Batch, choice: LayerChoice, device: torch.device) -> Tensor:
        engine, trace = self._engine(device=str(device)), Trace(weights=False)
        engine.model.encoder(replace(batch.to(device), token_indices=None), trace)
        return choice.select(trace.states).half()
