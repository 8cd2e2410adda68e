"""Tests that each command has a help page, a summary, and an entry in the reference."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from bertkit import cli, tasks
from bertkit.commands.table import COMMANDS, GROUPS, REPLACED, SECTIONS, summary

Captured = pytest.CaptureFixture[str]
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"


def target(name: str) -> Any:
    module, _, attribute = COMMANDS[name].partition(":")
    return getattr(importlib.import_module(f"bertkit.{module}"), attribute)


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_help_of_each_command_contains_its_summary(name: str, capsys: Captured) -> None:
    assert cli.run([*name.split(), "--help"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert f"Usage: bertkit {name}" in page
    assert summary(name).replace("`", "") in page


def test_help_lists_each_command_once_in_its_section(capsys: Captured) -> None:
    listed = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(listed) == sorted({name.split()[0] for name in COMMANDS})
    assert cli.run(["--help"]) == 0
    page = capsys.readouterr().out
    assert page.count("\n") < 60
    positions = [page.index(f" {section} ") for section in SECTIONS]
    assert positions == sorted(positions)


@pytest.mark.parametrize("name", REPLACED)
def test_replaced_command_prints_new_command(name: str, capsys: Captured) -> None:
    assert name not in COMMANDS
    assert cli.run([*name.split(), "model", "--out", "folder"]) == 2
    assert f"`bertkit {name}` is now `bertkit {REPLACED[name]}`" in capsys.readouterr().err
    assert cli.run([*REPLACED[name].split(" --")[0].split(), "--help"]) == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_summary_is_first_sentence_of_docstring(name: str) -> None:
    text = " ".join((inspect.getdoc(target(name)) or "").split())
    assert text.startswith(summary(name))
    assert len(summary(name)) <= (100 if "finetune" in name else 70)


def test_finetune_commands_match_tasks() -> None:
    listed = {name.split()[1] for name in COMMANDS if name.startswith("finetune ")}
    assert listed == set(tasks.TASKS)
    for name in tasks.TASKS:
        assert target(f"finetune {name}") is tasks.find(name)


def test_reference_lists_each_command_once() -> None:
    rows = re.findall(r"^\| [A-Z].+ \| (.+) \|$", REFERENCE.read_text("utf-8"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall("`([^`]+)`", row)]
    assert sorted(listed) == sorted([*COMMANDS, "finetune"])


def test_site_describes_each_command() -> None:
    page = cli.app.generate_docs()  # docs/_ext/site_reference.py writes it into the reference
    sections = re.split("^##+ bertkit ", page, flags=re.MULTILINE)[1:]
    texts = {name: text for name, _, text in (part.partition("\n") for part in sections)}
    assert [name for name in texts if name in COMMANDS] == list(COMMANDS)
    for name in COMMANDS:
        assert summary(name) in " ".join(texts[name].split())
