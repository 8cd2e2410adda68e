"""A family's table names every weight once, both ways."""

import itertools

import pytest
import torch

from bertkit.errors import ConfigError
from bertkit.families import FAMILIES, Family
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build

CONFIG = TransformerConfig(vocab=30, hidden=16, layers=3, heads=2, intermediate=24, length=20)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_table_is_a_bijection(family: Family) -> None:
    for heads in family.architectures:
        state = build(CONFIG, sorted(heads), labels=("O", "B-x")).state_dict()
        theirs = list(itertools.chain(*family.names(state).values()))
        assert len(theirs) == len(set(theirs))
        back = family.read(state, family.write(state))
        assert back.keys() == state.keys()
        assert all(torch.equal(back[name], state[name]) for name in state)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_settings_go_there_and_back(family: Family) -> None:
    for activation in ("gelu", "gelu_tanh", "relu", "silu"):
        values = {name: getattr(CONFIG, name) for name in CONFIG.__struct_fields__}
        config = TransformerConfig(**{**values, "activation": activation, "dropout": 0.25})
        assert family.read_config(family.write_config(config)) == config


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "absolute positions only"),
        ({"is_decoder": True}, "as an encoder only"),
        ({"hidden_act": "mish"}, "known are gelu"),
    ],
)
def test_settings_that_bert_has_not_are_refused(wrong: dict[str, object], message: str) -> None:
    written = FAMILIES["bert"].write_config(CONFIG)
    with pytest.raises(ValueError, match=message):
        FAMILIES["bert"].read_config({**written, **wrong})


def test_impossible_settings_are_refused() -> None:
    written = FAMILIES["bert"].write_config(CONFIG)
    with pytest.raises(ConfigError, match="cannot be divided"):
        FAMILIES["bert"].read_config({**written, "num_attention_heads": 3})
