"""Tests of the `bertkit finetune` commands and their options."""

from __future__ import annotations

import msgspec
import pytest

from bertkit import cli
from bertkit.recipes.finetune import Finetune
from bertkit.tasks import TASKS, find

Captured = pytest.CaptureFixture[str]


def help_of(words: list[str], capsys: Captured) -> str:
    assert cli.run([*words, "--help"]) == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_is_an_option(name: str, capsys: Captured) -> None:
    text = help_of(["finetune", name], capsys)
    for kind in (Finetune, find(name).Options):
        for field in msgspec.structs.fields(kind):
            assert f"--{field.name.replace('_', '-')}" in text
    assert "Number of examples per step" in text  # a setting's docstring
    assert "empty-" not in text  # cyclopts adds such an option for each list by default


def test_help_groups_settings_under_titles(capsys: Captured) -> None:
    text = help_of(["finetune", "classify"], capsys)
    titles = ["─ Parameters", "─ Settings ─", "─ Settings of the task ─", "─ Columns of files ─"]
    positions = [text.index(title) for title in titles]
    assert positions == sorted(positions)
    options = ["--train ", "--epochs ", "--threshold ", "--text-column "]
    for option, start, end in zip(options, positions, [*positions[1:], len(text)], strict=True):
        assert option in text[start:end]


def test_help_of_group_lists_tasks(capsys: Captured) -> None:
    text = help_of(["finetune"], capsys)
    assert all(f" {name} " in text for name in TASKS)
