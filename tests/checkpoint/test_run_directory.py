"""Models of unfinished runs predict, with a warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit import cli
from bertkit.checkpoint.directory import load
from bertkit.checkpoint.run_directory import warn_unfinished
from bertkit.errors import at_command_line
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import LabelExample
from bertkit.training.run import Run

ROWS = [
    LabelExample(f"{letter} {letter}", None, "ab"[index % 2])
    for index, letter in enumerate("abcdef")
]


class Stopped(Exception):
    """Exception that simulates a kill."""


def stop(epoch: int, scores: object) -> None:
    if epoch == 2:
        raise Stopped


def test_unfinished_fine_tuning_warns_with_its_epoch(
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
        f"warning: {out}: fine-tuning has not finished; this is the best model after epoch 2 of "
        "3; resume it with resume=True"
    )
    (tmp_path / "rows.tsv").write_text("text\tlabel\na a\ta\nb b\tb\n", encoding="utf-8")
    for words in (
        ["predict", str(out), "a a"],
        ["evaluate", str(out), str(tmp_path / "rows.tsv")],
        ["embed", str(out), "a a"],
    ):
        assert cli.run(words) == 0
        warned = [
            line for line in capsys.readouterr().err.splitlines() if "has not finished" in line
        ]
        assert len(warned) == 1
        assert warned[0].endswith("resume it with --resume")
    bertkit.finetune(Classify, base, **given, resume=True)
    # The run itself does not warn.
    assert "has not finished" not in capsys.readouterr().err
    bertkit.predict(out, ["a a"])
    assert capsys.readouterr().err == ""


def test_unfinished_pretraining_warns_with_its_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("\n\n".join(["a b c d e f. f e d c b a."] * 40), encoding="utf-8")
    corpus = prepare([text], tokenizer=tiny_tokenizer("abcdef."), out=tmp_path / "corpus")
    run: dict[str, Any] = {
        "model": {"layers": 1, "hidden": 8, "heads": 2, "intermediate": 8, "max_positions": 32},
        "sampling": {"pairs": "none", "length": 16, "held_out": 0.0},
        "train": {"steps": 7, "batch_size": 4, "save_every": 2, "precision": "fp32"},
    }
    shown = Run.show

    def stop(self: Run, step: int, *rest: Any, **named: Any) -> None:
        if step == 5:
            raise Stopped
        shown(self, step, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "show", stop)
        with pytest.raises(Stopped):
            pretrain(run, corpus=corpus.folder, out=out)
    capsys.readouterr()
    assert cli.run(["embed", str(out), "a a"]) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "has not finished" in line]
    assert warned == [
        f"warning: {out}: pretraining has not finished; this is the model after step 4 of 7; "
        "resume it with --resume"
    ]
    pretrain(run, corpus=corpus.folder, out=out, resume=True)
    load(out)
    assert "has not finished" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "journal"),
    [
        ({"settings": {"epochs": 3}, "data": {"dev": {}}}, '{"step": 1, "epoch": 1, "scores"'),
        ({"settings": {"epochs": 3}, "data": {"dev": {}}}, None),
        (
            {"config": {"train": {"steps": 9}}},
            '{"step": 9, "loss": 1.0}\n',
            # The run has no checkpoints.
        ),
        ({"config": {"train": {}}}, '{"step": 1, "loss": 1.0}\n'),
        ([], ""),
        (None, ""),
    ],
)
def test_other_directories_do_not_warn(
    run: object, journal: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text("{" if run is None else json.dumps(run), encoding="utf-8")
    if journal is not None:
        (tmp_path / "journal.jsonl").write_text(journal, encoding="utf-8")
    with at_command_line():
        warn_unfinished(tmp_path)
    assert capsys.readouterr().err == ""
