"""The pages on models that write, of a real server in a real browser."""

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
def wanted(marian: Path) -> DecoderSteps:  # noqa: F811
    return decoder_steps(Generate(bertkit.load(marian)), TEXT, beams=3)


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Any]:
    page, wrong = watched(browser, address)
    yield page
    page.close()
    assert [one for one in wrong if not one.startswith("blob:")] == []


@pytest.fixture
def steps(tab: Any) -> Any:
    tab.get_by_role("link", name="Step by step").click()
    tab.get_by_label("Text", exact=True).fill(TEXT)
    tab.get_by_label("Beams").select_option("3")
    tab.get_by_role("button", name="Generate", exact=True).click()
    tab.wait_for_selector("html[data-ready=true]")
    return tab


def likeliest(page: Any) -> list[list[str]]:
    table = page.locator("table", has=page.get_by_text("The most probable tokens of this step"))
    read = "table => [...table.tBodies[0].rows].map(r => [...r.cells].map(c => c.innerText))"
    return list(table.evaluate(read))


def grown(page: Any) -> list[str]:
    return list(page.locator("#steps .flow > span").all_inner_texts())


def test_the_text_grows_with_its_candidates_and_lines(steps: Any, wanted: DecoderSteps) -> None:
    assert grown(steps) == wanted.target[:1]
    slider = steps.get_by_role("slider")
    slider.focus()
    for step in range(1, min(5, len(wanted.target))):
        slider.press("ArrowRight")
        assert grown(steps) == wanted.target[: step + 1]
        rows = likeliest(steps)
        assert [row[0] for row in rows] == [one.token for one in wanted.candidates[step]]
        scores = [one.score for one in wanted.candidates[step]]
        np.testing.assert_allclose([float(row[1]) for row in rows], scores, atol=0.0006)
    looking = steps.get_by_role("radiogroup", name="The generated token").get_by_role("radio")
    assert looking.all_inner_texts() == wanted.target[:5]
    looking.nth(2).click()
    assert grown(steps) == wanted.target[:3]
    steps.get_by_role("button", name="Step forward").click()
    assert grown(steps) == wanted.target[:4]
    steps.get_by_role("button", name="Step back").press("Enter")
    assert grown(steps) == wanted.target[:3]


def test_it_plays_to_the_end(steps: Any, wanted: DecoderSteps) -> None:
    slider = steps.get_by_role("slider")
    slider.focus()
    slider.press("End")
    slider.press("ArrowLeft")
    assert len(grown(steps)) == len(wanted.target) - 1
    steps.get_by_role("button", name="Play").click()
    steps.get_by_role("button", name="Play").wait_for()  # it has stopped by itself
    assert grown(steps) == wanted.target
    assert steps.get_by_role("button", name="Step forward").is_disabled()


def test_a_chosen_head_shows_its_weights(steps: Any, wanted: DecoderSteps) -> None:
    steps.get_by_role("radio", name="Layer 1, head 3", exact=True).click()
    matrix = steps.get_by_label("Attention to the source.")
    matrix.focus()
    for key in ("Home", "ArrowDown", "ArrowRight"):
        matrix.press(key)
    weight = decoded(wanted.attention[0])[2, 1, 1]
    said = matrix.locator("xpath=following-sibling::output").inner_text()
    assert said == f"“{wanted.target[1]}” attends to “{wanted.source[1]}” with weight {weight:.3f}"
    assert grown(steps) == wanted.target[:2]


def test_the_tree_marks_the_text_that_won(steps: Any, wanted: DecoderSteps) -> None:
    tree = steps.locator(".tree")
    assert tree.locator("th").count() == len(wanted.beams)
    assert tree.locator(".beam").count() == sum(map(len, wanted.beams))
    assert tree.locator(".beam.wins b").all_inner_texts() == wanted.target
    dropped = sum(beam.state == "dropped" for step in wanted.beams for beam in step)
    assert tree.locator(".beam.dropped").count() == dropped > 0
    blue = """canvas => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let count = 0;
      for (let i = 0; i < data.length; i += 4)
        count += data[i + 3] > 200 && Math.abs(data[i] - 42) + Math.abs(data[i + 2] - 196) < 30;
      return count;
    }"""
    # the line of the result, which is drawn after the page
    steps.wait_for_function(f"({blue})(document.querySelector('.tree canvas')) > 20", timeout=10000)


def test_one_beam_says_why_there_is_no_tree(steps: Any) -> None:
    steps.get_by_text("Another text").click()
    steps.locator("#ask-beams").select_option("1")
    steps.get_by_role("button", name="Generate", exact=True).click()
    steps.wait_for_url("**beams=1**")
    steps.wait_for_selector("html[data-ready=true]")
    assert steps.get_by_text("There was only one beam").is_visible()
    assert steps.locator(".tree").count() == 0


def test_every_control_of_the_steps_has_a_name_and_a_phone_shows_them(steps: Any) -> None:
    unnamed = steps.evaluate(
        "[...document.querySelectorAll('button, input, [tabindex=\"0\"]')].filter(e => "
        "e.type !== 'hidden' && !(e.getAttribute('aria-label') || e.textContent.trim() || "
        "e.labels?.length)).length"
    )
    assert unnamed == 0
    steps.set_viewport_size({"width": 360, "height": 740})
    assert steps.evaluate("document.documentElement.scrollWidth") <= 360


def test_figures_are_saved_as_pictures(steps: Any) -> None:
    names = set()
    for button in steps.get_by_role("button", name="Save as picture").all():
        with steps.expect_download() as download:
            button.click()
        assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
        names.add(download.value.suggested_filename)
    assert {"cross-attention.png", "beams.png"} <= names


def test_a_damaged_text_by_clicks(tab: Any) -> None:
    assert tab.get_by_role("link", name="A gap").count() == 0  # only masked models are here
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
