"""The guide to run files names every setting with its default, and none that is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_type_hints

import msgspec

from bertkit.config import Settings
from bertkit.recipes.pretrain import FREE, PretrainConfig

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "pretrain.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+\.\w+)` \| ([^|]+) \| ([^|]+) \|$", re.M)


def documented(page: str) -> dict[str, str]:
    """The settings that the page's tables explain, each with the default as written."""
    rows = [row for row in ROW.findall(page) if row[2].strip()]
    assert len({name for name, *_ in rows}) == len(rows), "a setting is explained twice"
    return {name: default.strip() for name, default, _ in rows}


def settings() -> dict[str, str]:
    """The settings there are, each with its default as TOML has it."""
    found = {}
    for group, kind in get_type_hints(PretrainConfig).items():
        assert issubclass(kind, Settings)
        for field in msgspec.structs.fields(kind):
            found[f"{group}.{field.name}"] = _written(field.default)
    return {**found, "model.vocab": "the tokenizer's"}  # read_config fills it in


def _written(default: object) -> str:
    if default is msgspec.NODEFAULT:
        return "required"
    return "none" if default is None else f"`{json.dumps(default)}`"


def test_every_setting_is_documented_with_its_default() -> None:
    assert documented(GUIDE) == settings()


def test_what_may_change_on_resume_is_documented() -> None:
    sentence = re.search(r"may differ when a run is resumed: (.*?)\.\s", GUIDE, re.S)
    assert sentence is not None
    assert tuple(re.findall(r"`(\w+)`", sentence[1])) == FREE


def test_a_setting_left_out_or_made_up_is_caught() -> None:
    row = "| `train.clip` | `1.0` | Largest norm of the gradient. |\n"
    assert documented(row) == {"train.clip": "`1.0`"}
    assert documented(row) != settings()
    assert documented("| `train.clip` | `1.0` |  |\n") == {}
