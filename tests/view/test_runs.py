"""What a run's folder says of how it goes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import CheckpointError
from bertkit.view.runs import MOST, QUIET, read_run, shown, thin


def folder(place: Path, record: dict[str, Any], *lines: dict[str, Any]) -> Path:
    (place / "run.json").write_text(json.dumps(record), encoding="utf-8")
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (place / "journal.jsonl").write_text(text, encoding="utf-8")
    return place


def test_a_run_that_is_quiet_has_stopped(tmp_path: Path) -> None:
    place = folder(tmp_path, {"task": "classify"}, {"step": 3, "loss": 1.0})
    run = read_run(place)
    assert (run.step, run.steps, run.learns) == (3, None, True)
    then = time.time() - QUIET - 5
    os.utime(place / "journal.jsonl", (then, then))
    assert not read_run(place).learns
    assert "stopped, or done" in shown([read_run(place)])


def test_scores_of_epochs_are_drawn(tmp_path: Path) -> None:
    lines = [{"step": n, "epoch": n, "scores": {"f1": 0.5 + n / 10}} for n in (1, 2)]
    html = shown([read_run(folder(tmp_path, {}, *lines))])
    assert "f1 0.700" in html
    assert html.count('class="chart"') == 1


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    assert read_run(folder(tmp_path, {})).step == 0
    assert "chart" not in shown([read_run(tmp_path)])


@pytest.mark.parametrize("missing", ["run.json", "journal.jsonl"])
def test_a_folder_without_a_run(missing: str, tmp_path: Path) -> None:
    folder(tmp_path, {})
    (tmp_path / missing).unlink()
    with pytest.raises(CheckpointError, match="no run learns here; name the --out"):
        read_run(tmp_path)


@given(st.integers(1, 5000))
def test_long_curves_keep_their_ends(count: int) -> None:
    line = [(float(n), 0.0) for n in range(count)]
    kept = thin(line)
    assert len(kept) <= MOST + 1
    assert kept[0] == line[0]
    assert kept[-1] == line[-1]
    assert kept == sorted(set(kept))
