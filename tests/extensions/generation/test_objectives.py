"""Generative objectives reject the settings that only encoders have."""

from __future__ import annotations

from typing import Any

import pytest

from bertkit.config import decode, merged
from bertkit.errors import ConfigError
from bertkit.recipes.pretrain_config import PretrainConfig, config_class

MODEL: dict[str, Any] = {"vocab": 100, "hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}
CAUSAL = {**MODEL, "attention": {"causal": True}}
RUN = {"model": MODEL, "sampling": {"pairs": "none"}, "train": {"steps": 10}}
NEXT = {**RUN, "model": CAUSAL, "objective": "next"}
SPANS = {**RUN, "decoder": CAUSAL, "objective": "spans"}


def read(run: dict[str, Any], settings: dict[str, Any]) -> PretrainConfig:
    """Return the settings of a run of a Transformer, with changes."""
    data = merged(run, settings)
    return decode(config_class(data), data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"masking": {"unit": "word"}},
            r"masking\.unit: not supported with objective = 'next'; rem",
        ),
        ({"masking": {"first_mlm_probability": 0.3}}, r"masking\.first_mlm_probability: not supp"),
        ({"generator": {"hidden": 16, "heads": 2, "intermediate": 32}}, "generator: not supported"),
        ({"sampling": {"cross_documents": True}}, r"sampling\.cross_documents: not supported"),
        ({"sampling": {"short_seq_probability": 0.0}}, r"sampling\.short_seq_probability: not sup"),
        ({"teacher": {"model": "m"}}, "teacher: not supported with objective = 'next'"),
        (
            {"model": {"attention": {"causal": False}}},
            r"requires a causal model, .*; use masked, or",
        ),
        ({"decoder": CAUSAL}, "those of an encoder with a decoder; use translate or spans"),
    ],
)
def test_next_token_objective_rejects_a_setting(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(NEXT, settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"train": {"z_loss": 0.1}},
        {"train": {"first_window": 8}},
        {"masking": {"unit": "token"}},
        {"sampling": {"first_length": 16}},
    ],
)
def test_next_token_objective_accepts_a_setting(settings: dict[str, Any]) -> None:
    assert read(NEXT, settings).heads == ("lm",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"decoder": None},
            "requires an encoder with a decoder, .* a bidirectional model; use mask",
        ),
        ({"sampling": {"first_length": 16}}, r"sampling\.first_length: not supported"),
        ({"sampling": {"cross_documents": True}}, r"sampling\.cross_documents: not supported"),
        ({"corruption": {"permute": True}}, r"corruption\.permute: not supported with .*'spans'"),
        ({"corruption": {"rate": 0.0}}, r"corruption\.rate: expected `float` > 0"),
    ],
)
def test_denoising_objective_rejects_a_setting(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(SPANS, settings)


def test_infilling_accepts_permuted_sentences() -> None:
    assert read(SPANS, {"objective": "infill", "corruption": {"permute": True}}).heads == ("lm",)
