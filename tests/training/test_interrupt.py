"""The first signal asks, the second stops at once, and both leave the handlers as they were."""

import signal
import threading

import pytest

from bertkit.training.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_first_then_at_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupt() as stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt, match="the last checkpoint can be used"):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_another_thread_goes_without() -> None:
    asked = []

    def work() -> None:
        with Interrupt() as stop:
            asked.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert asked == [False]


def test_a_patient_one_takes_a_second_signal_for_the_same() -> None:
    with Interrupt(patient=True) as stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
            assert stop.requested
