"""Conversion of rotary positions that several families share."""

from __future__ import annotations

from bertkit.errors import ConfigError
from bertkit.models.config import RotaryPositions, TransformerConfig


def rotary_base(config: TransformerConfig, family: str) -> float:
    """Return the base of a configuration's rotary positions, and check that they are not scaled.

    Args:
        config: Configuration of the encoder.
        family: Name of the family, for error messages.

    Raises:
        ConfigError: If the positions are not rotary, or if they are scaled.
    """
    positions = config.positions
    if not isinstance(positions, RotaryPositions):
        raise ConfigError(f'model.positions must have kind = "rotary" for {family}')
    if positions.factor != 1.0:
        raise ConfigError(f"model.positions.factor is not supported by {family}; remove the factor")
    return positions.base
