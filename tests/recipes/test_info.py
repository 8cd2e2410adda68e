"""`bertkit info` counts every weight once."""

from pathlib import Path

import bertkit
from bertkit.recipes.info import info


def test_parameters_add_up(minilm: Path) -> None:
    loaded = bertkit.load(minilm)
    found = info(loaded)
    assert found["parameters"]["all"] == sum(p.numel() for p in loaded.model.parameters())
    assert found["parameters"]["all"] == 22_713_216  # 22.7 million, as its card says
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
