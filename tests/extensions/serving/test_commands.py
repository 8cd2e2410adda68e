"""What the commands that serve models make of their words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertkit import cli
from bertkit.extensions.serving import processes as run


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be served."""
    made: list[Any] = []
    monkeypatch.setattr(run, "serve", made.append)
    return made


def run_in(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("run.json", "journal.jsonl", *files):
        (folder / name).touch()
    return folder


def test_a_folder_is_a_model_a_run_or_both(plans: list[Any], tmp_path: Path) -> None:
    learned = run_in(tmp_path / "learned", "config.json")
    begun = run_in(tmp_path / "begun")
    sweep = run_in(tmp_path / "sweep" / "a", "config.json").parent
    words = [str(learned), str(begun), str(sweep), "org/model", "--run", str(sweep / "a")]
    assert cli.run(["view", *words]) == 0
    assert plans[0].models == [str(learned), "org/model"]
    assert plans[0].runs == [learned, begun, sweep, sweep / "a"]
    assert plans[0].browser


def test_a_server_takes_models_and_runs_as_they_are_named(plans: list[Any], tmp_path: Path) -> None:
    learned = run_in(tmp_path / "learned", "config.json")
    assert cli.run(["serve", str(learned)]) == 0
    assert (plans[0].models, plans[0].runs) == ([str(learned)], ())


def test_there_is_something_to_serve(plans: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["view"]) == 2
    assert "no model to serve" in capsys.readouterr().err
    assert plans == []
