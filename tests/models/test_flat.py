"""The flat names of before: read with a note, and still what fingerprints are made with."""

from __future__ import annotations

from typing import Any

import pytest
from tests.factories import ENCODERS

from bertkit.config import decode, plain
from bertkit.errors import ConfigError
from bertkit.families import ALBERT, BERT, GTE, MODERNBERT, MPNET, NOMIC_BERT, Family
from bertkit.models.config import NormSettings, RotaryPositions, TransformerConfig, WindowSettings
from bertkit.models.flat import flat, grouped
from bertkit.recipes.run_file import complete, renamed

SHAPE: dict[str, Any] = {"vocab": 30, "hidden": 16, "layers": 4, "heads": 2, "intermediate": 24}


OLDER = [family for family in ENCODERS.values() if family not in (NOMIC_BERT, GTE)]
"""Those that flat names can say; those that have biases in some places alone came after them."""


def config_of(family: Family) -> TransformerConfig:
    return family.config(SHAPE | ({"layer_sharing": (0, 0, 1, 1)} if family is ALBERT else {}))


@pytest.mark.parametrize("family", OLDER, ids=lambda family: family.name)
def test_flat_names_say_all_that_decides_a_vector(family: Family) -> None:
    config = config_of(family)
    names = flat(config)
    assert not [name for name in names if "." in name]
    again = decode(TransformerConfig, grouped(names)[0])
    assert flat(again) == names
    assert (again.positions, again.norm, again.attention.window, again.feedforward) == (
        config.positions,
        config.norm,
        config.attention.window,
        config.feedforward,
    )


def test_what_flat_names_cannot_say_changes_the_hash() -> None:
    for path, value in {
        "norm.final": True,
        "norm.kind": "rms",
        "attention.kv_heads": 1,
        "attention.width": 4,
        "positions": {"kind": "sinusoidal"},
    }.items():
        more = {path: value} | ({"norm.bias": False} if value == "rms" else {})
        assert path in flat(BERT.config({**SHAPE, **more})), path
    training = {"attention.output_dropout": 0.3, "head.tag_dropout": 0.3}  # the control
    assert flat(BERT.config({**SHAPE, **training})) == flat(BERT.config(SHAPE))


OLD: dict[str, Any] = {
    "model": {
        "layers": 4,
        "hidden": 32,
        "heads": 2,
        "intermediate": 32,
        "length": 64,
        "rotary": 50_000.0,
        "window": 8,
        "window_rotary": 900.0,
        "global_every": 2,
    },
    "family": "modernbert",
    "sampling": {"pairs": "none", "length": 64},
    "train": {"steps": 2},
}


def test_an_old_run_file_is_read_and_says_the_new_names(capfd: pytest.CaptureFixture[str]) -> None:
    config = complete(OLD, vocab=30, pad=0).model
    said = " ".join(capfd.readouterr().err.split())
    assert "model.rotary is now model.positions" in said
    assert config.positions == RotaryPositions(base=50_000.0)
    assert config.attention.window == WindowSettings(tokens=8, global_every=2, base=900.0)
    assert config.norm == NormSettings(
        place="pre", first=False, final=True, bias=False, eps=1e-5
    )  # the family's
    new = {**OLD, "model": plain(config)}
    assert complete(new, vocab=30, pad=0).model == config
    assert not capfd.readouterr().err  # the control: nothing to say


@pytest.mark.parametrize("family", [BERT, MODERNBERT, MPNET], ids=lambda family: family.name)
def test_the_record_of_an_old_run_is_the_same_model(family: Family) -> None:
    config = config_of(family)
    old = flat(config)
    training = {"attention_output_dropout": "dropout", "tag_dropout": "head_dropout"}
    training |= {"dense_dropout": "dropout"} if family is MPNET else {}
    training |= {"answer_dropout": "head_dropout"} if family is MODERNBERT else {}
    record = {"config": {"model": {**old, **training}}}
    expected = plain(config)
    expected["head"].pop("mlm_activation", None)  # newer than flat names
    found = renamed(record)["config"]["model"]
    found["head"].pop("mlm_activation", None)
    assert found == expected
    other = {"config": {"model": {**old, **training, "norm_eps": 0.5}}}
    assert renamed(other) != renamed(record)
    assert renamed({"step": 1}) == {"step": 1}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"positions": {"kind": "rotry"}}, r"model\.positions\.kind: .*did you mean 'rotary'\?"),
        ({"positions": {"kind": "rotary", "bse": 9.0}}, r"positions\.bse: .*did you mean 'base'"),
        ({"positions": {"base": 9.0}}, r"model\.positions\.kind: this setting is required"),
        ({"attention": {"window": {"base": 9.0}}}, r"window\.tokens: this setting is required"),
        ({"attention": {"window": {"tokens": 9, "base": 9.0}}}, "belongs to rotary positions"),
        ({"norm": {"kind": "rms"}}, "RMSNorm has none"),
        ({"norm": {"first": False}}, "before sublayers"),
        ({"norm": {"plce": "pre"}}, r"model\.norm\.plce: .*did you mean 'place'"),
        ({"attention": {"kv_heads": 5}}, "cannot share"),
    ],
)
def test_what_no_model_can_be_is_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(TransformerConfig, {**SHAPE, **model}, "model")
