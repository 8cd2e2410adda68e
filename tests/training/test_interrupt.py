"""Handling of the first and the second interrupt signal."""

import signal
import threading

import pytest

from bertkit.training.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_raises_keyboard_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupt() as stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt, match="the last checkpoint can be used"):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_interrupt_ignores_signals_in_another_thread() -> None:
    requested = []

    def work() -> None:
        with Interrupt() as stop:
            requested.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert requested == [False]


def test_patient_interrupt_ignores_second_signal() -> None:
    with Interrupt(patient=True) as stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
            assert stop.requested
