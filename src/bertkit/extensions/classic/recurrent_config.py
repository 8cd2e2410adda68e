"""Settings of encoders and decoders made of LSTMs or GRUs."""

from __future__ import annotations

from typing import ClassVar, Literal

from bertkit.config import Settings
from bertkit.errors import ConfigError
from bertkit.models.config import EncoderConfig


class RecurrentSettings(Settings, frozen=True):
    """Layers, reading direction and attention. Hochreiter & Schmidhuber 1997."""

    cell: Literal["lstm", "gru"] = "lstm"
    """Type of the layers: LSTMs, or GRUs, which have no cell besides their state (Cho et al.
    2014)."""
    direction: Literal["forward", "backward", "both"] = "backward"
    """Direction of the encoder: from the last token to the first (Sutskever et al. 2014, 3.3), or
    both, each with half of the width (Bahdanau et al. 2015)."""
    attention: Literal["none", "context", "luong", "bahdanau"] = "none"
    """Input of the decoder from the source, besides the state that it starts from: none (Sutskever
    et al. 2014), the last state of the encoder at each step (Cho et al. 2014), or attention to all
    states, after the LSTM (Luong et al. 2015) or before it (Bahdanau et al. 2015)."""


class RecurrentConfig(EncoderConfig, frozen=True):
    """Settings of a recurrent encoder or decoder."""

    encoder_class: ClassVar[str] = "bertkit.extensions.classic.seq2seq:RecurrentEncoder"
    decoder_class: ClassVar[str] = "bertkit.extensions.classic.seq2seq:RecurrentDecoder"
    is_sequential: ClassVar[bool] = True

    recurrent: RecurrentSettings = RecurrentSettings()

    def __post_init__(self) -> None:
        if self.recurrent.direction == "both" and self.hidden % 2:
            raise ValueError(
                f"hidden = {self.hidden} cannot be halved between the directions "
                '(recurrent.direction = "both"); choose an even width'
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
                f"decoder.layers = {decoder.layers}: the encoder has {self.layers}, and each layer "
                "starts from the state of one layer of the encoder; use one value"
            )

    @property
    def is_causal(self) -> bool:
        return self.recurrent.direction == "forward"

    @property
    def attends_to_source(self) -> bool:
        return self.recurrent.attention in ("luong", "bahdanau")

    @property
    def embedding_std(self) -> float:
        # The embedding multiplied by √D then has unit variance. LSTMs learn slowly from smaller
        # values.
        return float(self.hidden**-0.5)


class WordFeaturesConfig(RecurrentConfig, frozen=True):
    """Settings of a BiLSTM over frozen features."""

    features: str = "mix:0"
    """Frozen hidden states that the BiLSTM reads."""
