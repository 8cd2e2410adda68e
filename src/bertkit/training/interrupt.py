"""Stopping a run where nothing is lost."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupt:
    """Ctrl-C and SIGTERM ask for a stop at the end of the step; a second one does not wait.

    A `patient` one always does: what started the process passes a signal on, so that it may come
    twice, and kills by itself what takes too long.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.asked, self.patient = False, patient

    def __enter__(self) -> Interrupt:
        self._before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        except ValueError:  # not the main thread: whoever runs us handles signals
            pass
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and not self.patient:
            raise KeyboardInterrupt("stopped at once; the last checkpoint stands")
        self.asked = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
