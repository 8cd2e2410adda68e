"""Settings of LSTM and GRU encoders and decoders."""

from __future__ import annotations

from typing import ClassVar, Literal

from bertkit.config import Settings
from bertkit.errors import ConfigError
from bertkit.models.config import EncoderConfig


class RecurrentSettings(Settings, frozen=True):
    """Settings for the type of layers, the direction, and the attention."""

    cell: Literal["lstm", "gru"] = "lstm"
    """Type of the layers: lstm (Hochreiter & Schmidhuber 1997) or gru, which has no separate cell
    (Cho et al. 2014)."""
    direction: Literal["forward", "backward", "both"] = "backward"
    """Direction in which the encoder reads: forward, backward (Sutskever et al. 2014, section 3.3),
    or both, each with half of the hidden size (Bahdanau et al. 2015).
    """
    attention: Literal["none", "context", "luong", "bahdanau"] = "none"
    """Input that the decoder gets from the source, in addition to its initial state. none: no input
    (Sutskever et al. 2014). context: the last encoder state at each step (Cho et al. 2014). luong
    and bahdanau: attention to all encoder states, computed after the LSTM (Luong et al. 2015) or
    before it (Bahdanau et al. 2015).
    """


class RecurrentConfig(EncoderConfig, frozen=True):
    """Settings of a recurrent encoder or decoder."""

    encoder_class: ClassVar[str] = "bertkit.extensions.classic.seq2seq:RecurrentEncoder"
    decoder_class: ClassVar[str] = "bertkit.extensions.classic.seq2seq:RecurrentDecoder"
    is_sequential: ClassVar[bool] = True

    recurrent: RecurrentSettings = RecurrentSettings()

    def __post_init__(self) -> None:
        if self.recurrent.direction == "both" and self.hidden % 2:
            raise ValueError(
                f'hidden must be even with recurrent.direction = "both", got {self.hidden}'
            )

    def check_decoder(self, decoder: EncoderConfig) -> None:
        super().check_decoder(decoder)
        if isinstance(decoder, RecurrentConfig) and decoder.recurrent != self.recurrent:
            raise ConfigError(
                "decoder.recurrent: the decoder shares these settings with the encoder; set only "
                "model.recurrent"
            )
        if decoder.layers != self.layers:
            raise ConfigError(
                f"decoder.layers must be {self.layers}, as in the encoder, because each layer "
                f"starts from the state of an encoder layer, got {decoder.layers}"
            )

    @property
    def is_causal(self) -> bool:
        return self.recurrent.direction == "forward"

    @property
    def attends_to_source(self) -> bool:
        return self.recurrent.attention in ("luong", "bahdanau")

    @property
    def embedding_std(self) -> float:
        # With this value, embeddings that are multiplied by √D have unit variance. With smaller
        # values, LSTMs train slowly.
        return float(self.hidden**-0.5)


class WordFeaturesConfig(RecurrentConfig, frozen=True):
    """Settings of a BiLSTM on frozen features."""

    features: str = "mix:0"
    """Layers whose frozen hidden states are the input of the BiLSTM."""
