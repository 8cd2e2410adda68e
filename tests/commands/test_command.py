"""Commands made from settings: every setting is an option with its meaning and its bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertkit import cli
from bertkit.commands.command import command
from bertkit.config import Count, Seed, Settings
from bertkit.errors import ConfigError
from bertkit.recipes.finetune import Finetune

Captured = pytest.CaptureFixture[str]


def help_of(words: list[str], capsys: Captured) -> str:
    assert cli.run([*words, "--help"]) == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_settings_of_one_name_are_refused() -> None:
    class Length(Settings, frozen=True):
        length: int = 1

    with pytest.raises(ConfigError, match=r"Length\.length: another setting has this name"):
        command(print, "", {}, settings=Finetune, options=Length)


class Bread(Settings, frozen=True):
    loaves: Count = 1
    """How many."""


def test_settings_reach_the_recipe_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def bake(shop: Path, bread: Bread, hot: bool = False, seed: int = 0) -> None:
        print(json.dumps([str(shop), bread.loaves, hot]))

    own: Any = {
        "shop": (Path, "Where."),
        "hot": (bool, "Fresh.", False),
        "seed": (Seed, "Of chance.", 0),
    }
    cli.app.command(command(bake, "Bake bread.", own, bread=Bread), name="bake")
    try:
        assert cli.run(["bake", "--shop", "here", "--loaves", "3"]) == 0
        assert json.loads(capsys.readouterr().out) == ["here", 3, False]
        assert cli.run(["bake", "--shop", "here", "--hot"]) == 0
        assert json.loads(capsys.readouterr().out) == ["here", 1, True]
        assert cli.run(["bake", "--shop", "here", "--loaves", "0"]) == 2
        assert "loaves: expected `int` >= 1" in capsys.readouterr().err
        assert cli.run(["bake", "--shop", "here", "--seed", "-1"]) == 2
        assert "seed: Expected `int` >= 0" in capsys.readouterr().err
        assert cli.run(["bake", "--loaves", "2"]) == 2
        assert "--shop" in capsys.readouterr().err
        assert "How many." in help_of(["bake"], capsys)
    finally:
        del cli.app["bake"]
