"""The window of a real server in a real browser: a text is written, and what is seen is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.serve.test_run import process

from bertkit.view.explain import explain


def test_a_text_is_written_and_looked_into(browser: Any, bert: Path) -> None:
    with process(str(bert)) as (_, address):
        page = browser.new_page()
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(address) else wrong.append(r.url))
        page.goto(address)
        page.get_by_label("Text", exact=True).fill("we sat on the bank")
        page.get_by_label("A second text").fill("the bank lent us money")
        page.get_by_role("button", name="Look", exact=True).click()
        page.wait_for_selector("html[data-ready=true]")
        pieces = page.locator("#embeddings tbody tr td:first-of-type").all_inner_texts()
        found = explain(bert, "we sat on the bank", "the bank lent us money")
        assert pieces == [token.piece for token in found.tokens]
        page.get_by_text("Another text").click()
        page.get_by_label("Text", exact=True).fill("<script>alert(1)</script> us")
        page.get_by_role("button", name="Look", exact=True).click()
        page.wait_for_selector("html[data-ready=true]")
        assert page.locator("#text").inner_text().startswith("<script>alert(1)</script> us")
        page.goto(f"{address}/?text=us&model=none")
        assert "no model 'none' answers this" in page.get_by_role("alert").inner_text()
        page.close()
    assert len(wrong) == 1
    assert "422" in wrong[0]  # the browser tells of the refusal
