"""Progress output on terminals, in logs, and in notebooks."""

from __future__ import annotations

import re
import sys
import types

import pytest

from bertkit import console, progress


def test_progress_is_silent_without_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.progress() as bar:
        bar.update(bar.add_task("steps", total=2, note=""), completed=2)
    assert capfd.readouterr() == ("", "")


def test_log_has_one_line_per_30_seconds(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.progress() as bar:
        task = bar.add_task("learning", total=2000, note="")
        for step in range(1, 101):
            now += 1.0
            bar.update(task, completed=10 * step, note="loss 0.5")
    lines = capfd.readouterr().err.splitlines()
    assert [re.sub(r"  0:\d\d:\d\d left$", "", line) for line in lines] == [
        "learning  300/2,000  loss 0.5",
        "learning  600/2,000  loss 0.5",
        "learning  900/2,000  loss 0.5",
    ]
    with progress.progress(watched=False) as bar:
        task = bar.add_task("learning", total=2, note="")
        now += 100.0
        bar.advance(task)
    assert capfd.readouterr().err == ""


def test_notebook_updates_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Cell:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            shown.append(data["text/plain"])

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        Cell().update(data, raw=raw)
        return Cell()

    module = types.ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(console.console(), "is_jupyter", True)
    monkeypatch.setattr(progress, "REDRAWN", 0.0)
    with progress.progress() as bar:
        task = bar.add_task("learning", total=2, note="")
        bar.advance(task)
        bar.advance(task)
    assert shown[0] == "learning  1/2"
    assert shown[-1].startswith("learning  2/2")
