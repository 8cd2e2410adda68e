"""Browser fixtures that fail on requests, console errors, and dialogs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from tests.extensions.conftest import folders as folders  # the fixture

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


# The thread has an event loop while the browser is open.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return headless Chromium. Skip if Chromium or playwright is not installed."""
    reason = "playwright is not installed: pip install 'bertkit[dev]'"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)})")
    with playwright.sync_playwright() as driver:
        # The pages are trusted, and containers often lack what the sandbox requires.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """Open a new tab. At the end, check that it sent no requests and logged no errors."""
    page = browser.new_page()
    wrong: list[str] = []
    page.on("request", lambda request: wrong.append(request.url) if "//" in request.url else None)
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    yield page
    page.close()
    assert [event for event in wrong if not event.startswith(("file://", "blob:", "data:"))] == []
