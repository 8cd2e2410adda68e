"""The model of a fine-tuning that was stopped answers, and it is said that more was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit import cli
from bertkit.checkpoint.unfinished import say_unfinished
from bertkit.errors import at_command_line
from bertkit.tasks.classify import Classify, Example

ROWS = [
    Example(f"{letter} {letter}", None, "ab"[place % 2]) for place, letter in enumerate("abcdef")
]


class Stopped(Exception):
    """Raised in place of a kill."""


def stop(epoch: int, scores: object) -> None:
    if epoch == 2:
        raise Stopped


def test_a_stopped_fine_tuning_says_how_far_it_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, out = tiny_folder(tmp_path / "base", tiny_tokenizer("abcdef")), tmp_path / "out"
    given: dict[str, Any] = {"train": ROWS, "dev": ROWS, "test": ROWS, "out": out, "epochs": 3}
    with pytest.raises(Stopped):
        bertkit.finetune(Classify, base, **given, on_epoch=stop)
    capsys.readouterr()
    bertkit.predict(out, ["a a"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"warning: {out}: its fine-tuning has not ended: this is the best model after epoch 2 of "
        "3; the same fine-tuning goes on with resume=True"
    )
    (tmp_path / "rows.tsv").write_text("text\tlabel\na a\ta\nb b\tb\n", encoding="utf-8")
    for words in (
        ["predict", str(out), "a a"],
        ["evaluate", str(out), str(tmp_path / "rows.tsv")],
        ["embed", str(out), "a a"],
    ):
        assert cli.run(words) == 0
        told = [line for line in capsys.readouterr().err.splitlines() if "has not ended" in line]
        assert len(told) == 1
        assert told[0].endswith("goes on with --resume")
    bertkit.finetune(Classify, base, **given, resume=True)
    assert "has not ended" not in capsys.readouterr().err  # the run itself knows
    bertkit.predict(out, ["a a"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("run", "journal"),
    [
        ({"settings": {"epochs": 3}, "data": {"dev": {}}}, '{"step": 1, "epoch": 1, "scores"'),
        ({"settings": {"epochs": 3}, "data": {"dev": {}}}, None),
        ({"config": {"train": {"steps": 9}}}, '{"step": 1}\n'),  # of pretraining
        ([], ""),
        (None, ""),
    ],
)
def test_nothing_is_said_of_other_folders_and_before_the_first_epoch(
    run: object, journal: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text("{" if run is None else json.dumps(run), encoding="utf-8")
    if journal is not None:
        (tmp_path / "journal.jsonl").write_text(journal, encoding="utf-8")
    with at_command_line():
        say_unfinished(tmp_path)
    assert capsys.readouterr().err == ""
