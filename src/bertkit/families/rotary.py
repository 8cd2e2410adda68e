"""What families with rotary positions share."""

from __future__ import annotations

from bertkit.errors import ConfigError
from bertkit.models.config import RotaryPositions, TransformerConfig


def rotary_base(config: TransformerConfig, family: str) -> float:
    """The base of positions that nothing stretches.

    Raises: ConfigError for other positions, which no model of the family has.
    """
    positions = config.positions
    if not isinstance(positions, RotaryPositions):
        raise ConfigError(f'model.positions: every {family} model has kind = "rotary"')
    if positions.factor != 1.0:
        raise ConfigError(f"model.positions.factor: every {family} model has 1.0; leave it out")
    return positions.base
