"""Background calls return their result, or raise their error."""

import threading

import pytest

from bertkit.extensions.export.background import start_in_background


def test_start_in_background_returns_result_or_raises() -> None:
    waited = threading.Event()
    result = start_in_background(lambda: waited.wait(60))
    waited.set()
    assert result() is True
    assert result() is True
    failed = start_in_background(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed()
