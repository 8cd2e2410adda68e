"""Settings of a run that cannot go together are refused in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from bertkit.config import decode, merged
from bertkit.errors import ConfigError
from bertkit.recipes.run_file import PretrainConfig, complete

RUN: dict[str, Any] = {
    "model": {"vocab": 100, "hidden": 32, "layers": 1, "heads": 2, "intermediate": 64},
    "sampling": {"pairs": "none"},
    "train": {"steps": 10},
}
GENERATOR = {"hidden": 16, "heads": 2, "intermediate": 32}
CAUSAL = {"attention": {"causal": True}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": {"z_loss": 0.1}, "generator": GENERATOR}, r"train\.z_loss = 0\.1: a model that"),
        ({"train": {"z_loss": 0.1}, "teacher": {"model": "m"}}, r"train\.z_loss = 0\.1: a model"),
        (
            {"train": {"zero_init": True}, "teacher": {"model": "m", "start": True}},
            r"train\.zero_init: a model that begins as its teacher",
        ),
        (
            {"train": {"zero_init": True}, "model": {"recurrent": {}}},
            r"train\.zero_init: .* made of LSTMs",
        ),
        (
            {"train": {"first_window": 8}, "model": {"recurrent": {}}},
            r"train\.first_window = 8: .* one stack of attention; leave it out",
        ),
        (
            {"train": {"first_window": 8}, "teacher": {"model": "m"}},
            r"train\.first_window = 8: .* without a teacher",
        ),
        (
            {"train": {"label_smoothing": 0.1}, "generator": GENERATOR},
            r"train\.label_smoothing = 0\.1: .* has no label smoothing; leave it out",
        ),
        (
            {"train": {"label_smoothing": 0.1}, "teacher": {"model": "m"}},
            r"train\.label_smoothing = 0\.1: a model that learns",
        ),
        (
            {"train": {"compile": True}, "model": {"recurrent": {}}},
            r"train\.compile: .* made of LSTMs",
        ),
        ({"terms": {"labels": 3.0}}, r"terms: .* a teacher, and there is none"),
        (
            {"masking": {"unit": "word"}, "objective": "next", "model": CAUSAL},
            r"masking\.unit: objective = 'next' masks no words; leave it out",
        ),
        ({"train": {"first_window_share": 0.2}}, r"train: first_window_share: .* there is none"),
        (
            {
                "masking": {"first_mlm_probability": 0.3},
                "objective": "next",
                "model": CAUSAL,
            },
            r"masking\.first_mlm_probability: objective = 'next' masks no words; leave it out",
        ),
    ],
)
def test_what_cannot_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(PretrainConfig, merged(RUN, settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"train": {"zero_init": True}, "teacher": {"model": "m"}},
        {"train": {"zero_init": True}, "generator": GENERATOR},
        {"train": {"z_loss": 0.1}, "objective": "next", "model": CAUSAL},
        {"masking": {"first_mlm_probability": 0.3}, "generator": GENERATOR},
        {"train": {"label_smoothing": 0.1}},
        {"train": {"compile": True}, "generator": GENERATOR},
        {"train": {"decay_steps": 5, "schedule": "wsd"}},
        {"sampling": {"first_length": 16, "first_share": 0.5}},
        {"terms": {"labels": 3.0}, "teacher": {"model": "m"}},
        {"masking": {"unit": "word"}},
        {"masking": {"unit": "token"}, "objective": "next", "model": CAUSAL},
        {"train": {"first_window": 8}, "generator": GENERATOR},
        {"train": {"first_window": 8}, "objective": "next", "model": CAUSAL},
    ],
)
def test_what_can_is_not(settings: dict[str, Any]) -> None:
    assert decode(PretrainConfig, merged(RUN, settings))


@pytest.mark.parametrize("table", ["model", "decoder"])
@pytest.mark.parametrize(
    ("head", "scaled"),
    [
        ({}, True),
        ({"lm_tied": True}, True),
        ({"lm_tied": False}, False),
        ({"lm_tied": False, "lm_scaled": True}, True),
        ({"lm_scaled": False}, False),
    ],
)
def test_t5_scales_states_by_default_if_output_is_tied(
    head: dict[str, bool], scaled: bool, table: str
) -> None:
    size = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}
    data = merged({"family": "t5", "objective": "spans", "model": size}, {table: {"head": head}})
    data |= {"sampling": {"pairs": "none"}, "train": {"steps": 10}}
    config = complete(data, vocab=100, pad=0)
    assert config.decoder is not None
    assert config.decoder.head.lm_scaled == scaled
    assert config.decoder.head.lm_tied == head.get("lm_tied", True)
