"""Display of a command's progress on stderr, in terminals, notebooks, and log files."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bertkit.console import console, say

LINES, REDRAWN = 30.0, 0.5
"""Seconds between two progress lines in a log, and between two updates of a notebook's line."""


class Bar(Progress):
    """Progress display that includes a changing note and the remaining time.

    A terminal shows a progress bar, and a notebook shows a line that is updated. For any other
    output, such as a log file, a new line is printed every 30 seconds.
    """

    def __init__(self, *, watched: bool) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console(),
            disable=not (watched and console().is_terminal) or console().quiet,
        )
        self._lines = self.disable and watched and not console().quiet
        self._last_time = time.monotonic()
        self._cell: Any = None

    def update(self, *args: Any, **values: Any) -> None:
        super().update(*args, **values)
        self._report()

    def advance(self, *args: Any, **values: Any) -> None:
        super().advance(*args, **values)
        self._report()

    def stop(self) -> None:
        if self._cell is not None:
            self._report(last=True)
        super().stop()

    def line(self, text: str) -> None:
        """Print a message. The next progress line of a log follows 30 seconds later."""
        self._last_time = time.monotonic()
        say(text)

    def _report(self, *, last: bool = False) -> None:
        now, notebook = time.monotonic(), console().is_jupyter
        if not (self._lines and self.tasks):
            return
        if not last and now - self._last_time < (REDRAWN if notebook else LINES):
            return
        self._last_time = now
        text = _format(self.tasks[-1])
        if not notebook:
            say(text)
            return
        from IPython.display import display

        shown = {"text/plain": text}
        if self._cell is None:
            self._cell = display(shown, raw=True, display_id=True)
        else:
            self._cell.update(shown, raw=True)


def _format(task: Task) -> str:
    """Format the state of a task as one line."""
    count = f"{task.completed:,.0f}" + (f"/{task.total:,.0f}" if task.total else "")
    parts = [task.description, count, task.fields["note"]]
    if task.time_remaining:
        parts.append(f"{timedelta(seconds=task.time_remaining)} left")
    return "  ".join(filter(None, parts))


def progress(*, watched: bool = True) -> Bar:
    """Return a progress display.

    Args:
        watched: Whether to show the display.
    """
    return Bar(watched=watched)
