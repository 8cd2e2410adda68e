"""Rotary positions of families."""

from __future__ import annotations

from bertkit.errors import ConfigError
from bertkit.models.config import RotaryPositions, TransformerConfig


def rotary_base(config: TransformerConfig, family: str) -> float:
    """Return the base of rotary positions without scaling.

    Args:
        config: Configuration of the encoder.
        family: Name of the family, for error messages.

    Raises:
        ConfigError: If positions are not rotary, or are scaled.
    """
    positions = config.positions
    if not isinstance(positions, RotaryPositions):
        raise ConfigError(f'model.positions must have kind = "rotary" for {family}')
    if positions.factor != 1.0:
        raise ConfigError(f"model.positions.factor is not supported by {family}; remove it")
    return positions.base
