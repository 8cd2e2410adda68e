"""Pipeline for token embeddings: the hidden states of tokens, in any layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.directory import Loaded
from bertkit.config import Settings
from bertkit.data.rows_in_memory import as_list
from bertkit.engine.engine import Engine, Forward
from bertkit.engine.word_states import layer_states
from bertkit.errors import ConfigError
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import BYTES_PER_NUMBER, ModelPipeline
from bertkit.synonyms import check_keywords
from bertkit.tasks.inference import ITEMS_PER_CHUNK, Work, batched
from bertkit.text.long_texts import Long

Layer = int | Sequence[int]
"""One layer or several layers. 0 is the embedding layer, and -1 is the last layer."""


@dataclass(frozen=True, eq=False)
class TokenEmbeddings:
    """Tokens of a text, including special tokens, and their hidden states.

    Shapes:
        offsets: (T, 2), start and end of each token in the text, in characters. They are (0, 0) for
            special tokens that the tokenizer added.
        embeddings: (T, D), or (J, T, D) for J layers.
    """

    tokens: list[str]
    offsets: NDArray[np.int64]
    embeddings: NDArray[np.float32]
    truncated: bool


class LayerOptions(Settings, frozen=True):
    """Options of `EmbedTokens`."""

    layer: int = -1
    """Layer whose hidden states are returned. 0 is the embedding layer, and -1 is the last layer.
    """


class EmbedTokens(ModelPipeline):
    """Compute the hidden states of the tokens of texts.

    Args:
        loaded: The model.
        engine: Engine of the model, or the precision of a new engine.

    Raises:
        ConfigError: If the model is not a Transformer.
    """

    options = LayerOptions

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        _ = loaded.model.transformer
        super().__init__(loaded, engine)
        self.layers = loaded.model.config.layers

    @check_keywords
    def __call__(
        self, texts: str | Sequence[str], *, layer: Layer = -1, long: Long = "error"
    ) -> list[TokenEmbeddings]:
        """Compute the hidden states of the tokens of each text.

        They equal `hidden_states[layer]` of `AutoModel` in transformers, without padding.

        Args:
            texts: One text, or several.
            layer: One layer or several layers. 0 is the embedding layer, and -1 is the last layer.
            long: Policy for texts longer than the maximum length: error or truncate.

        Returns:
            The tokens of each text, with their hidden states.

        Raises:
            ConfigError: If the model does not have the layer.
            DataError: If a text is too long and the policy is `error`.
        """
        return [
            answer
            for part in batched(as_list(texts), ITEMS_PER_CHUNK)
            for answer in self.run(self.prepare(part, layer=layer, long=long))
        ]

    def prepare(
        self, texts: Sequence[str], *, layer: Layer = -1, long: Long = "error"
    ) -> list[Work]:
        """Encode texts for `run`.

        Args:
            texts: The texts.
            layer: One layer or several layers.
            long: Policy for texts longer than the maximum length: error or truncate.

        Raises:
            ConfigError: If the model does not have the layer, or the policy is not supported.
            DataError: If a text is too long and the policy is `error`.
        """
        if long == "window":
            raise ConfigError("long: window is not supported for token embeddings; use truncate")
        size = BYTES_PER_NUMBER * self.loaded.model.config.hidden * len(self._indices(layer))
        return [
            replace(work, item=layer, answer_bytes=size * work.tokens)
            for work in self._encode(texts, None, long)
        ]

    def run(self, works: Sequence[Work]) -> list[TokenEmbeddings]:
        """Compute the hidden states of the tokens of each encoded text."""
        encodings = [work.features[0].encoding for work in works]
        layers = sorted({index for work in works for index in self._indices(work.item)})
        positions = [np.arange(len(encoding)) for encoding in encodings]
        answers = []
        states = self.engine.run(encodings, _float32(layers), positions) if works else []
        for work, encoding, rows in zip(works, encodings, states, strict=True):
            chosen = [layers.index(index) for index in self._indices(work.item)]
            embeddings = np.ascontiguousarray(rows[:, chosen].swapaxes(0, 1))
            if isinstance(work.item, int):
                embeddings = embeddings[0]
            tokens = self.tokenizer.pieces(encoding.ids)
            answers.append(
                TokenEmbeddings(tokens, encoding.offsets, embeddings, encoding.truncated)
            )
        return answers

    def _indices(self, layer: Layer) -> list[int]:
        """Convert `layer` to a list of layer indices, in which 0 is the embedding layer."""
        count = self.layers + 1
        layers = [layer] if isinstance(layer, int) else list(layer)
        for index in layers:
            if not -count <= index < count:
                raise ConfigError(
                    f"layer: {index} does not exist; use 0 (embeddings) to {self.layers}, or -1 "
                    "for the last layer"
                )
        return [index % count for index in layers]


def _float32(layers: Sequence[int]) -> Forward:
    """Return a function that computes the hidden states of some layers in fp32.

    Shapes:
        The function returns (N, J, D).
    """
    states = layer_states(layers)
    return lambda model, batch: states(model, batch).float()
