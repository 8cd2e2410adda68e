"""Handling of Ctrl-C and SIGTERM, which stop a run at the end of a training step."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupt:
    """Context in which Ctrl-C and SIGTERM request a stop at the end of the step.

    A second signal stops the process immediately.

    Args:
        patient: Whether to ignore the second signal. This is needed with torchrun: it forwards
            signals, so that a process can receive a signal twice. torchrun also kills processes
            that do not stop in time.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.requested, self.patient = False, patient

    def __enter__(self) -> Interrupt:
        self._before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        except ValueError:  # Only the main thread can handle signals.
            pass
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and not self.patient:
            raise KeyboardInterrupt("stopped at once; the last checkpoint can be used to resume")
        self.requested = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
