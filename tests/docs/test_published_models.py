"""The commands and the program that use published models run with small models instead."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.docs.test_settings import section
from tests.docs.test_tutorial import DOCS
from tests.extensions.transformers_pipelines.models import write_models

from bertkit import cli

START = DOCS / "get-started"
TITLE = "Use a published model"
MODELS = {
    "facebook/bart-large-mnli": "nli",
    "deepset/roberta-base-squad2": "reader",
    "dslim/bert-base-NER": "tagger",
    "facebook/bart-large-cnn": "bart",
    "sentence-transformers/all-MiniLM-L6-v2": "bert",
}
"""Directory of a small model with the same head, by the hub id of the published model."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_models(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def code_of(page: str, language: str) -> str:
    """Return the block of a page with small models, all of which it must use."""
    text = section((START / page).read_text(encoding="utf-8"), TITLE)
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    for name, small in MODELS.items():
        assert name in block
        block = block.replace(name, small)
    return block


def test_commands_print_documented_results(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documented = section((START / "command-line.md").read_text(encoding="utf-8"), TITLE)
    for line in code_of("command-line.md", "console").replace("\\\n", "").split("$ bertkit")[1:]:
        words = shlex.split(line.replace("$(cat article.txt)", "the cat sat"))
        assert cli.run(words) == 0, capsys.readouterr().err
        printed = capsys.readouterr().out
        assert printed.strip()
        if words[0] == "predict":
            shown = [key for key in json.loads(printed) if f"`{key}`" in documented]
            assert len(shown) >= (1 if "tagger" in words else 2)


def test_program_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(code_of("python.md", "py"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] in ("sports", "politics")
    assert printed[-1] == "(1, 32)"
