"""Web UI of a running server in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.extensions.serving.test_processes import process

import bertkit
from bertkit.view.explain import explain

FIRST = """new Promise(found => {
    const look = () => {
        const [paint] = performance.getEntriesByName("first-contentful-paint")
        paint ? found(paint.startTime) : setTimeout(look, 10)
    }
    look()
})"""
"""Script that returns the time of the first contentful paint in milliseconds."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "mine"
    directory.mkdir()
    (directory / "run.json").write_text('{"config": {"train": {"steps": 40}}}', encoding="utf-8")
    write_journal(directory, 40)
    return directory


def write_journal(directory: Path, steps: int) -> None:
    lines = [{"step": n, "loss": 9.0 - n / 10} for n in range(1, steps + 1)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "journal.jsonl").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def address(folders: Path, run: Path) -> Iterator[str]:
    names = [str(folders / name) for name in ("pretrained", "entities", "reader")]
    with process(*names, "--run", str(run)) as (_, address):
        yield address


def watched(browser: Any, address: str) -> tuple[Any, list[str]]:
    """Open a page and record its errors and its requests to other hosts."""
    page = browser.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith(address) else wrong.append(r.url))
    page.goto(address)
    return page, wrong


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Any]:
    """Open a new tab of the web UI. At the end, check that it recorded no errors."""
    page, wrong = watched(browser, address)
    yield page
    page.close()
    assert [event for event in wrong if not event.startswith("blob:")] == []


def column(tab: Any, index: int) -> list[str]:
    """Return the cells of a column of the first table."""
    read = "(table, n) => [...table.tBodies[0].rows].map(row => row.cells[n].innerText.trim())"
    return list(tab.locator("table").first.evaluate(read, index))


def test_ask_pages_match_pipelines(tab: Any, folders: Path) -> None:
    tab.get_by_role("link", name="Ask", exact=True).click()
    tab.get_by_role("link", name="Similar texts").click()
    tab.get_by_label("Text", exact=True).fill("a b c")
    tab.get_by_label("Other texts, one per line").fill("c d\na b")
    tab.get_by_role("button", name="Ask").click()
    tab.wait_for_selector("html[data-ready=true]")
    assert tab.evaluate(FIRST) < 1000
    first, *others = bertkit.pipeline("embed", folders / "pretrained")(["a b c", "c d", "a b"])
    cosines = [float(first @ o / np.linalg.norm(first) / np.linalg.norm(o)) for o in others]
    found = dict(zip(column(tab, 0), map(float, column(tab, 1)), strict=True))
    assert found == pytest.approx(dict(zip(["c d", "a b"], cosines, strict=True)), abs=6e-4)

    tab.get_by_role("link", name="Masked words").click()
    tab.get_by_label("Text with [MASK]").fill("a [MASK] c")
    tab.keyboard.press("Tab")
    tab.get_by_role("button", name="Ask").press("Enter")
    tab.wait_for_selector("table")
    tokens = bertkit.pipeline("fill-mask", folders / "pretrained")("a [MASK] c", top_k=10)
    assert column(tab, 0) == [token["token_str"] for token in tokens]

    tab.get_by_role("link", name="Question answering").click()
    tab.get_by_label("Question", exact=True).fill("a b")
    tab.get_by_label("Passage").fill("c d <b> e")
    tab.get_by_role("button", name="Ask").click()
    tab.wait_for_selector(".passage")
    answered = bertkit.pipeline("answer", folders / "reader")(("a b", "c d <b> e"))
    assert tab.locator(".passage").inner_text() == "c d <b> e"
    assert tab.locator("mark").all_inner_texts() == ([answered.answer] if answered.answer else [])


def test_compare_page_shows_cosines_of_word(tab: Any) -> None:
    tab.get_by_role("link", name="One word").click()
    tab.get_by_label("A word").fill("c")
    tab.get_by_label("Texts, one per line").fill("a c\nc d e\nb c")
    tab.get_by_role("button", name="Compare").click()
    tab.wait_for_selector("html[data-ready=true]")
    names = tab.get_by_label("Model", exact=True).locator("option").all_inner_texts()
    assert tab.locator("svg.chart").count() == len(names) - 1 > 1
    tab.get_by_label("Model", exact=True).select_option("pretrained")
    tab.get_by_role("button", name="Compare").click()
    tab.wait_for_selector("html[data-ready=true]")
    assert column(tab, 0) == ["1 and 2", "1 and 3", "2 and 3"]
    assert tab.locator("svg.chart").count() == 2
    assert tab.locator("li mark").all_inner_texts() == ["c", "c", "c"]
    code = tab.get_by_text("def compare(")
    assert not code.is_visible()
    tab.get_by_text("src/bertkit/extensions/classic/contexts.py").last.click()
    assert code.is_visible()


def test_run_chart_saves_as_picture(tab: Any, tmp_path: Path) -> None:
    tab.get_by_role("link", name="Training").click()
    tab.wait_for_selector("html[data-ready=true]")
    assert [column(tab, index) for index in (0, 1, 2)] == [["mine"], ["40 of 40"], ["finished"]]
    with tab.expect_download() as waiting:
        tab.get_by_role("button", name="Save as picture: Results").click()
    waiting.value.save_as(tmp_path / "loss.png")
    from PIL import Image

    picture = np.asarray(Image.open(tmp_path / "loss.png").convert("RGB"), dtype=np.int64)
    blue = (abs(picture - [58, 124, 224]).sum(-1) < 60).sum()
    # The loss curve is visible.
    assert blue > 200


def test_saved_picture_keeps_line_breaks(tab: Any, tmp_path: Path) -> None:
    tab.get_by_role("link", name="Ask", exact=True).click()
    tab.get_by_role("link", name="Question answering").click()
    tab.get_by_label("Question", exact=True).fill("a b")
    tab.get_by_label("Passage").fill(f"{'a b c d e ' * 40}{'x' * 200}")
    tab.get_by_role("button", name="Ask").click()
    tab.wait_for_selector("html[data-ready=true]")
    tab.set_viewport_size({"width": 1200, "height": 2000})
    tab.locator(".scroll").first.screenshot(path=tmp_path / "seen.png")
    with tab.expect_download() as waiting:
        tab.get_by_role("button", name="Save as picture").first.click()
    waiting.value.save_as(tmp_path / "saved.png")
    assert lines_of(tmp_path / "saved.png") == lines_of(tmp_path / "seen.png") > 4


def test_long_text_is_sent_in_request_body(tab: Any) -> None:
    tab.get_by_role("link", name="Ask", exact=True).click()
    tab.get_by_role("link", name="Question answering").click()
    tab.get_by_label("Question", exact=True).fill("a b")
    tab.get_by_label("Passage").fill("c d " * 2500)
    tab.get_by_role("button", name="Ask").click()
    tab.wait_for_selector(".passage")
    assert "text=" not in tab.url
    assert tab.locator(".passage").inner_text().strip() == ("c d " * 2500).strip()


def lines_of(path: Path) -> int:
    """Return the number of text lines in a picture."""
    from PIL import Image

    ink = (np.asarray(Image.open(path).convert("L")) < 200).any(1)
    return int((np.diff(ink.astype(np.int8), prepend=0) == 1).sum())


def test_training_page_reloads_automatically(tab: Any, run: Path) -> None:
    write_journal(run, 20)
    tab.get_by_role("link", name="Training").click()
    tab.get_by_text("20 of 40").wait_for()
    write_journal(run, 21)
    # The page reloads automatically.
    tab.get_by_text("21 of 40").wait_for()
    tab.get_by_role("link", name="Stop reloading").click()
    tab.get_by_role("link", name="Reload automatically").wait_for()
    assert tab.locator("meta[http-equiv=refresh]").count() == 0


def test_head_can_be_switched_off_and_on(tab: Any, folders: Path) -> None:
    head = {"role": "radio", "name": "Layer 1, head 2"}
    tab.get_by_label("Text", exact=True).fill("a b c")
    tab.get_by_role("button", name="Look inside", exact=True).click()
    tab.wait_for_selector("html[data-ready=true]")
    tab.get_by_role(**head, exact=True).click()
    tab.get_by_role("button", name="Switch this head off").click()
    tab.wait_for_url("**off=1.2**")
    tab.wait_for_selector("html[data-ready=true]")
    assert "Switched off: 1.2" in tab.locator("#shape").inner_text()
    # The page shows the same head again.
    assert tab.get_by_role("heading", name="Layer 1, head 2").is_visible()
    change = explain(folders / "pretrained", "a b c", off=[(1, 2)]).off_change
    assert change is not None
    shown = tab.locator("#layers table").first.locator("tbody tr").all()
    rows = [list(map(float, row.locator("td").all_inner_texts())) for row in shown]
    np.testing.assert_allclose(rows, np.transpose(change), atol=5e-3)

    tab.get_by_role("button", name="Switch this head on").click()
    tab.wait_for_url(lambda url: "off=1.2" not in url)
    tab.wait_for_selector("html[data-ready=true]")
    assert "Switched off" not in tab.locator("#shape").inner_text()
    assert tab.get_by_role(**head, exact=True).count() == 1


def test_example_link_opens_results(tab: Any) -> None:
    cards = tab.get_by_role("list", name="Examples").get_by_role("link")
    assert cards.count() >= 5
    tab.get_by_label("Model", exact=True).select_option("entities")
    tab.get_by_role("link", name="We sat on the bank").click()
    tab.wait_for_selector("html[data-ready=true]")
    # The page scrolls to its results.
    assert tab.url.endswith("#layers")
    assert abs(tab.locator("#layers").bounding_box()["y"]) < 60
    # The page keeps the selected model.
    assert tab.locator("#shape strong").inner_text() == "entities"
    assert tab.locator("#text p").all_inner_texts() == [
        "We sat on the bank of the river.",
        "The bank lent us money for a boat.",
    ]
    tab.get_by_role("link", name="One word").click()
    tab.get_by_role("link", name="light").click()
    # The vocabulary of letters does not contain the word.
    tab.wait_for_selector("[role=alert], svg.chart")
    assert tab.get_by_label("A word").input_value() == "light"
    assert tab.get_by_label("Texts, one per line").input_value().count("\n") == 3


def test_several_words_can_be_masked_together(tab: Any, folders: Path) -> None:
    tab.get_by_label("Text", exact=True).fill("a b c d")
    tab.get_by_role("button", name="Look inside", exact=True).click()
    tab.wait_for_selector("html[data-ready=true]")
    tab.get_by_text("Another text").click()
    tab.get_by_label("Text", exact=True).fill("what is being written is another question")
    tab.get_by_label("Mask several words together").check()
    group = tab.get_by_role("group", name="The masked words")
    # The last click removes a word again.
    for word in ("d", "b", "a", "a"):
        group.get_by_role("button", name=word, exact=True).click()
    assert not tab.get_by_role("radiogroup", name="The masked word").is_visible()
    tab.get_by_role("button", name="Run the model with these 2 words masked").click()
    tab.wait_for_url("**hide=1+3**")
    tab.wait_for_selector("html[data-ready=true]")
    assert tab.locator("#text").inner_text() == "a b c d"
    assert tab.get_by_text("“b” and “d” are masked together").is_visible()
    fill = bertkit.pipeline("fill-mask", folders / "pretrained", top_k=10)
    tables = tab.locator("#masked table").all()
    for table, mask in zip(tables, fill("a [MASK] c [MASK]"), strict=True):
        tokens = table.locator("tbody tr th").all_inner_texts()
        assert tokens == [token["token_str"] for token in mask]
    tab.get_by_label("Mask several words together").uncheck()
    assert tab.get_by_role("radiogroup", name="The masked word").is_visible()
    assert tab.locator("#masked table").count() == 1


def test_inspector_shows_tokens_of_new_text(browser: Any, bert: Path) -> None:
    with process(str(bert)) as (_, address):
        page, wrong = watched(browser, address)
        page.get_by_label("Text", exact=True).fill("we sat on the bank")
        page.get_by_label("Second text of a pair").fill("the bank lent us money")
        page.get_by_role("button", name="Look inside", exact=True).click()
        page.wait_for_selector("html[data-ready=true]")
        tokens = page.locator("#embeddings tbody tr td:first-of-type").all_inner_texts()
        found = explain(bert, "we sat on the bank", "the bank lent us money")
        assert tokens == [token.piece for token in found.tokens]
        page.get_by_text("Another text").click()
        page.get_by_label("Text", exact=True).fill("<script>alert(1)</script> us")
        page.get_by_role("button", name="Look inside", exact=True).click()
        page.wait_for_selector("html[data-ready=true]")
        assert page.locator("#text").inner_text().startswith("<script>alert(1)</script> us")
        page.goto(f"{address}/?text=us&model=none")
        assert (
            "this server has no model 'none' for this route"
            in page.get_by_role("alert").inner_text()
        )
        page.close()
    assert len(wrong) == 1
    # The browser logs the rejection.
    assert "404" in wrong[0]
