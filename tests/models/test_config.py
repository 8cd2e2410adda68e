"""Validation of model settings."""

from __future__ import annotations

from typing import Any

import pytest

from bertkit.config import decode
from bertkit.errors import ConfigError
from bertkit.models.config import TransformerConfig

SHAPE: dict[str, Any] = {"vocab": 30, "hidden": 16, "layers": 4, "heads": 2, "intermediate": 24}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"positions": {"kind": "rotry"}}, r"model\.positions\.kind: .*did you mean 'rotary'\?"),
        ({"positions": {"kind": "rotary", "bse": 9.0}}, r"positions\.bse: .*did you mean 'base'"),
        ({"positions": {"base": 9.0}}, r"model\.positions\.kind: this setting is required"),
        ({"attention": {"window": {"base": 9.0}}}, r"window\.tokens: this setting is required"),
        ({"attention": {"window": {"tokens": 9, "base": 9.0}}}, "requires rotary positions"),
        ({"norm": {"kind": "rms"}}, "not supported by RMSNorm"),
        ({"norm": {"first": False}}, "requires place"),
        ({"norm": {"plce": "pre"}}, r"model\.norm\.plce: .*did you mean 'place'"),
        ({"attention": {"kv_heads": 5}}, "kv_heads must divide heads"),
    ],
)
def test_invalid_model_settings_are_rejected(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(TransformerConfig, {**SHAPE, **model}, "model")
