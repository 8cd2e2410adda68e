"""Tests that `bertkit info` counts every weight once."""

from pathlib import Path

import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit.families import FAMILIES
from bertkit.pipelines.model_info import info


def test_info_counts_parameters_of_minilm(minilm: Path) -> None:
    loaded = bertkit.load(minilm)
    found = info(loaded)
    assert found["parameters"]["all"] == sum(p.numel() for p in loaded.model.parameters())
    assert found["parameters"]["all"] == 22_713_216  # the model card specifies 22.7 million
    assert found["shape"]["layers"] == 6
    assert found["pooling"] == {
        "mode": "mean",
        "normalize": True,
        "dimension": 384,
        "prompts": {},
        "default prompt": None,
        "similarity": "cosine",
    }
    assert found["length"] == 256


@pytest.mark.parametrize("name", ["modernbert", "mpnet", "deberta-v2"])
def test_info_counts_parameters_outside_layers(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    folder = tiny_folder(tmp_path / "m", tiny_tokenizer("abc", family=family), "mlm", family=family)
    loaded = bertkit.load(folder)
    weights = sum(p.numel() for p in loaded.model.parameters())
    assert info(loaded)["parameters"]["all"] == weights
