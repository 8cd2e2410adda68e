"""Calls in background threads."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

WORKER_NAME = "bertkit-background"
"""Name of background threads. If an error occurs elsewhere, their result may never be used."""


def start_in_background(work: Callable[[], T]) -> Callable[[], T]:
    """Call a function in a background thread.

    An executor of `concurrent.futures` could do this too, but its import takes 5 ms.

    Args:
        work: The function to call.

    Returns:
        A function that waits until `work` has finished. It returns the result of `work`, or raises
        the error that `work` raised.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    def result() -> T:
        thread.join()
        for error in errors:
            # Otherwise, the traceback would become longer with each call.
            raise error.with_traceback(None)
        return results[0]

    # The thread is not a daemon: a daemon thread that runs library code while Python exits aborts
    # the process.
    thread = Thread(target=run, name=WORKER_NAME)
    thread.start()
    return result
