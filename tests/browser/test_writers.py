"""Pages of generative models in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser.test_window import watched
from tests.extensions.serving.test_processes import process
from tests.pipelines.test_translate import folder as marian  # noqa: F401  (the fixture)

import bertkit
from bertkit.extensions.generation.decode_view import DecoderSteps, decoder_steps
from bertkit.extensions.generation.pipeline import Generate
from bertkit.view.arrays import decoded

TEXT = "Assignments are illegal"


@pytest.fixture(scope="module")
def address(marian: Path, bert: Path) -> Iterator[str]:  # noqa: F811
    with process(str(marian), str(bert)) as (_, address):
        yield address


@pytest.fixture(scope="module")
def expected_steps(marian: Path) -> DecoderSteps:  # noqa: F811
    return decoder_steps(Generate(bertkit.load(marian)), TEXT, beams=3)


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Any]:
    page, wrong = watched(browser, address)
    yield page
    page.close()
    assert [event for event in wrong if not event.startswith("blob:")] == []


@pytest.fixture
def steps(tab: Any) -> Any:
    tab.get_by_role("link", name="Step by step").click()
    tab.get_by_label("Text", exact=True).fill(TEXT)
    tab.get_by_label("Beams").select_option("3")
    tab.get_by_role("button", name="Generate", exact=True).click()
    tab.wait_for_selector("html[data-ready=true]")
    return tab


def candidate_rows(page: Any) -> list[list[str]]:
    table = page.locator("table", has=page.get_by_text("The most probable tokens of this step"))
    read = "table => [...table.tBodies[0].rows].map(r => [...r.cells].map(c => c.innerText))"
    return list(table.evaluate(read))


def generated_tokens(page: Any) -> list[str]:
    return list(page.locator("#steps .flow > span").all_inner_texts())


def test_slider_shows_text_and_candidates_of_step(steps: Any, expected_steps: DecoderSteps) -> None:
    assert generated_tokens(steps) == expected_steps.target[:1]
    slider = steps.get_by_role("slider")
    slider.focus()
    for step in range(1, min(5, len(expected_steps.target))):
        slider.press("ArrowRight")
        assert generated_tokens(steps) == expected_steps.target[: step + 1]
        rows = candidate_rows(steps)
        assert [row[0] for row in rows] == [item.token for item in expected_steps.candidates[step]]
        scores = [item.score for item in expected_steps.candidates[step]]
        np.testing.assert_allclose([float(row[1]) for row in rows], scores, atol=0.0006)
    looking = steps.get_by_role("radiogroup", name="The generated token").get_by_role("radio")
    assert looking.all_inner_texts() == expected_steps.target[:5]
    looking.nth(2).click()
    assert generated_tokens(steps) == expected_steps.target[:3]
    steps.get_by_role("button", name="Step forward").click()
    assert generated_tokens(steps) == expected_steps.target[:4]
    steps.get_by_role("button", name="Step back").press("Enter")
    assert generated_tokens(steps) == expected_steps.target[:3]


def test_play_button_stops_at_end(steps: Any, expected_steps: DecoderSteps) -> None:
    slider = steps.get_by_role("slider")
    slider.focus()
    slider.press("End")
    slider.press("ArrowLeft")
    assert len(generated_tokens(steps)) == len(expected_steps.target) - 1
    steps.get_by_role("button", name="Play").click()
    # Playing stops at the end.
    steps.get_by_role("button", name="Play").wait_for()
    assert generated_tokens(steps) == expected_steps.target
    assert steps.get_by_role("button", name="Step forward").is_disabled()


def test_selected_head_shows_cross_attention_weights(
    steps: Any, expected_steps: DecoderSteps
) -> None:
    steps.get_by_role("radio", name="Layer 1, head 3", exact=True).click()
    matrix = steps.get_by_label("Attention to the source.")
    matrix.focus()
    for key in ("Home", "ArrowDown", "ArrowRight"):
        matrix.press(key)
    weight = decoded(expected_steps.attention[0])[2, 1, 1]
    message = matrix.locator("xpath=following-sibling::output").inner_text()
    query, key = expected_steps.target[1], expected_steps.source[1]
    assert message == f"“{query}” attends to “{key}” with weight {weight:.3f}"
    assert generated_tokens(steps) == expected_steps.target[:2]


def test_beam_tree_marks_the_result(steps: Any, expected_steps: DecoderSteps) -> None:
    tree = steps.locator(".tree")
    assert tree.locator("th").count() == len(expected_steps.beams)
    assert tree.locator(".beam").count() == sum(map(len, expected_steps.beams))
    assert tree.locator(".beam.wins b").all_inner_texts() == expected_steps.target
    dropped = sum(beam.state == "dropped" for step in expected_steps.beams for beam in step)
    assert tree.locator(".beam.dropped").count() == dropped > 0
    blue = """canvas => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let count = 0;
      for (let i = 0; i < data.length; i += 4)
        count += data[i + 3] > 200 && Math.abs(data[i] - 42) + Math.abs(data[i + 2] - 196) < 30;
      return count;
    }"""
    # The page draws the line of the result after it is ready.
    steps.wait_for_function(f"({blue})(document.querySelector('.tree canvas')) > 20", timeout=10000)


def test_single_beam_explains_missing_tree(steps: Any) -> None:
    steps.get_by_text("Another text").click()
    steps.locator("#ask-beams").select_option("1")
    steps.get_by_role("button", name="Generate", exact=True).click()
    steps.wait_for_url("**beams=1**")
    steps.wait_for_selector("html[data-ready=true]")
    assert steps.get_by_text("There was only one beam").is_visible()
    assert steps.locator(".tree").count() == 0


def test_steps_page_is_accessible_and_fits_phone(steps: Any) -> None:
    unnamed = steps.evaluate(
        "[...document.querySelectorAll('button, input, [tabindex=\"0\"]')].filter(e => "
        "e.type !== 'hidden' && !(e.getAttribute('aria-label') || e.textContent.trim() || "
        "e.labels?.length)).length"
    )
    assert unnamed == 0
    steps.set_viewport_size({"width": 360, "height": 740})
    assert steps.evaluate("document.documentElement.scrollWidth") <= 360


def test_figures_save_as_png(steps: Any) -> None:
    names = set()
    for button in steps.get_by_role("button", name="Save as picture").all():
        with steps.expect_download() as download:
            button.click()
        assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
        names.add(download.value.suggested_filename)
    assert {"cross-attention.png", "beams.png"} <= names


def test_corruption_page_changes_with_seed(tab: Any) -> None:
    # No served model supports this page.
    assert tab.get_by_role("link", name="A gap").count() == 0
    tab.get_by_role("link", name="Corrupted text").click()
    tab.get_by_label("Corruption").select_option("Prefix LM: the first part")
    tab.get_by_role("button", name="Corrupt").click()
    tab.wait_for_selector("mark")
    before = tab.locator("mark").first.inner_text()
    tab.get_by_role("link", name="Seed 1").click()
    tab.get_by_role("link", name="Seed 2").wait_for()
    assert tab.locator("mark").first.inner_text() != before
    tab.set_viewport_size({"width": 360, "height": 740})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
