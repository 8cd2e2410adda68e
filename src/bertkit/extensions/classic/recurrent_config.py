"""Settings of LSTM and GRU encoders and decoders."""

from __future__ import annotations

from typing import ClassVar, Literal

from bertkit.config import Settings
from bertkit.errors import ConfigError
from bertkit.models.config import EncoderConfig


class RecurrentSettings(Settings, frozen=True):
    """Layers, direction and attention. Hochreiter & Schmidhuber 1997."""

    cell: Literal["lstm", "gru"] = "lstm"
    """Type of the layers: LSTMs, or GRUs, which have no separate cell (Cho et al. 2014)."""
    direction: Literal["forward", "backward", "both"] = "backward"
    """Direction of the encoder: right-to-left (Sutskever et al. 2014, 3.3), left-to-right, or both,
    each with half of the hidden size (Bahdanau et al. 2015).
    """
    attention: Literal["none", "context", "luong", "bahdanau"] = "none"
    """Input of the decoder from the source, in addition to its initial state: none (Sutskever et
    al. 2014), the last encoder state at each step (Cho et al. 2014), or attention to all states,
    after the LSTM (Luong et al. 2015) or before it (Bahdanau et al. 2015).
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
                "decoder.recurrent: the decoder shares these settings with the encoder; set "
                "model.recurrent only"
            )
        if decoder.layers != self.layers:
            raise ConfigError(
                f"decoder.layers must be {self.layers}, as in the encoder whose states its layers "
                f"start from, got {decoder.layers}"
            )

    @property
    def is_causal(self) -> bool:
        return self.recurrent.direction == "forward"

    @property
    def attends_to_source(self) -> bool:
        return self.recurrent.attention in ("luong", "bahdanau")

    @property
    def embedding_std(self) -> float:
        # The embedding multiplied by √D then has unit variance. With smaller values, LSTMs train
        # slowly.
        return float(self.hidden**-0.5)


class WordFeaturesConfig(RecurrentConfig, frozen=True):
    """Settings of a BiLSTM over frozen features."""

    features: str = "mix:0"
    """Frozen hidden states that are the input of the BiLSTM."""
