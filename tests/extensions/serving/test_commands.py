"""Arguments of `bertkit serve` and `bertkit view`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertkit import cli
from bertkit.extensions.serving import processes as run


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Server settings of each command, which starts no server."""
    served: list[Any] = []
    monkeypatch.setattr(run, "serve", served.append)
    return served


def make_run(folder: Path, *files: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("run.json", "journal.jsonl", *files):
        (folder / name).touch()
    return folder


def test_view_distinguishes_models_and_runs(plans: list[Any], tmp_path: Path) -> None:
    finished_run = make_run(tmp_path / "learned", "config.json")
    unfinished_run = make_run(tmp_path / "begun")
    sweep = make_run(tmp_path / "sweep" / "a", "config.json").parent
    arguments = [finished_run, unfinished_run, sweep, "org/model", "--run", sweep / "a"]
    assert cli.run(["view", *map(str, arguments)]) == 0
    assert plans[0].models == [str(finished_run), "org/model"]
    assert plans[0].runs == [finished_run, unfinished_run, sweep, sweep / "a"]
    assert plans[0].browser


def test_serve_does_not_treat_model_as_run(plans: list[Any], tmp_path: Path) -> None:
    finished_run = make_run(tmp_path / "learned", "config.json")
    assert cli.run(["serve", str(finished_run)]) == 0
    assert (plans[0].models, plans[0].runs) == ([str(finished_run)], ())
