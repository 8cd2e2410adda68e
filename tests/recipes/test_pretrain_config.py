"""Validation of pretraining settings."""

from __future__ import annotations

from typing import Any

import pytest

from bertkit.config import decode, merged
from bertkit.errors import ConfigError
from bertkit.recipes.pretrain_card import CODE
from bertkit.recipes.pretrain_config import OBJECTIVES, PretrainConfig, complete, config_class

RUN: dict[str, Any] = {
    "model": {"vocab": 100, "hidden": 32, "layers": 1, "heads": 2, "intermediate": 64},
    "sampling": {"pairs": "none"},
    "train": {"steps": 10},
}
GENERATOR = {"hidden": 16, "heads": 2, "intermediate": 32}
CAUSAL = {"attention": {"causal": True}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"train": {"z_loss": 0.1}, "generator": GENERATOR},
      r"train\.z_loss cannot be combined with generator"),
     ({"train": {"z_loss": 0.1}, "teacher": {"model": "m"}},
      r"train\.z_loss cannot be combined with teacher"),
     ({"train": {"zero_init": True}, "teacher": {"model": "m", "start": True}},
      r"train\.zero_init cannot be combined with teacher\.start"),
     ({"train": {"first_window": 8}, "teacher": {"model": "m"}},
      r"train\.first_window requires .* without a teacher"),
     ({"train": {"label_smoothing": 0.1}, "generator": GENERATOR},
      r"train\.label_smoothing cannot be combined with generator; remove train"),
     ({"train": {"label_smoothing": 0.1}, "teacher": {"model": "m"}},
      r"train\.label_smoothing cannot be combined with teacher"),
     ({"terms": {"labels": 3.0}}, "terms requires a teacher"),
     ({"train": {"first_window_share": 0.2}}, "train: first_window_share requires first_window")],
)  # fmt: skip
def test_config_rejects_incompatible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(config_class(settings), merged(RUN, settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"train": {"zero_init": True}, "teacher": {"model": "m"}},
        {"train": {"zero_init": True}, "generator": GENERATOR},
        {"masking": {"first_mlm_probability": 0.3}, "generator": GENERATOR},
        {"train": {"label_smoothing": 0.1}},
        {"train": {"compile": True}, "generator": GENERATOR},
        {"train": {"decay_steps": 5, "schedule": "wsd"}},
        {"sampling": {"first_length": 16, "first_share": 0.5}},
        {"terms": {"labels": 3.0}, "teacher": {"model": "m"}},
        {"masking": {"unit": "word"}},
        {"train": {"first_window": 8}, "generator": GENERATOR},
    ],
)
def test_config_accepts_compatible_settings(settings: dict[str, Any]) -> None:
    assert decode(config_class(settings), merged(RUN, settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"objective": "nxt"}, r"objective = 'nxt' is not supported; did you mean 'next'\?"),
     ({"objective": ["next"]}, r"objective = \"\['next'\]\" is not supported"),
     ({"corruption": {"rate": 0.3}}, r"corruption: no such setting"),
     ({"decoder": RUN["model"]},
      r"objective = 'masked' requires a bidirectional model, .*; use translate or spans"),
     ({"model": CAUSAL},
      r"objective = 'masked' requires a bidirectional model, .* a causal model; use next")],
)  # fmt: skip
def test_run_file_rejects_an_objective(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(config_class(settings), merged(RUN, settings))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_describe_their_method(name: str) -> None:
    assert issubclass(OBJECTIVES[name], PretrainConfig)
    family = {"masked": "bert", "next": "gpt2", "translate": "marian"}.get(name, "t5")
    config = complete({**RUN, "family": family, "objective": name}, vocab=100, pad=0)
    assert config.objective == name
    assert config.method
    assert config.hub_task in CODE


@pytest.mark.parametrize("table", ["model", "decoder"])
@pytest.mark.parametrize(
    ("head", "scaled"),
    [({}, True), ({"lm_tied": True}, True), ({"lm_tied": False}, False),
     ({"lm_tied": False, "lm_scaled": True}, True), ({"lm_scaled": False}, False)],
)  # fmt: skip
def test_t5_scales_states_if_output_is_tied(
    head: dict[str, bool], scaled: bool, table: str
) -> None:
    size = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 64}
    data = merged({"family": "t5", "objective": "spans", "model": size}, {table: {"head": head}})
    data |= {"sampling": {"pairs": "none"}, "train": {"steps": 10}}
    config = complete(data, vocab=100, pad=0)
    assert config.decoder is not None
    assert config.decoder.head.lm_scaled == scaled
    assert config.decoder.head.lm_tied == head.get("lm_tied", True)
