"""A browser to open pages in, and what must not happen in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from tests.extensions.conftest import folders as folders  # the fixture

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")  # while it is open, this thread has an event loop
def browser() -> Iterator[Any]:
    """Headless Chromium; it skips where there is none, or no playwright to drive it."""
    reason = "playwright is not installed: pip install 'bertkit[dev]'"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)})")
    with playwright.sync_playwright() as driver:
        # pages are our own, and containers often lack what the sandbox needs
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A new tab; at the end nothing was asked of any host, and no error said."""
    page = browser.new_page()
    wrong: list[str] = []
    page.on("request", lambda request: wrong.append(request.url) if "//" in request.url else None)
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    yield page
    page.close()
    assert [one for one in wrong if not one.startswith(("file://", "blob:", "data:"))] == []
