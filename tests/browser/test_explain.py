"""Page of `bertkit view explain` with clicks and keys in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser.test_window import FIRST
from tests.factories import tiny_folder
from tests.parity.test_decoders import writer as writer  # the fixture

import bertkit
from bertkit.checkpoint.directory import Loaded
from bertkit.view.arrays import decoded
from bertkit.view.explain import Explained, explain
from bertkit.view.page import write_page
from bertkit.view.page_data import Explanation

SECONDS = 1.0
"""Time limit of the first paint."""


NAMES = {
    "previous": "previous token",
    "next": "next token",
    "same": "same word",
    "delimiter": "delimiters",
    "broad": "broad",
    "mixed": "mixed",
}

EMBEDDED = ["token", "+ position", "+ segment", "= sum", "after LayerNorm"]

CUT = """[...document.querySelectorAll("table, .heads, canvas, svg")].filter(one => {
    const { left, right, width } = one.getBoundingClientRect()
    const box = one.closest(".scroll")
    const slides = box && box.scrollWidth > box.clientWidth + 1
    return width && (right > innerWidth + 1 || left < 0 || slides)
}).map(one => one.outerHTML.slice(0, 200))"""
"""Script that lists elements that are wider than the window."""

HOSTILE = "a </script><script>alert(1)</script> <!-- & \u2028 <img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def explanation(bert: Path) -> Explained:
    return explain(bert, "We sat on the bank, crossing the river.", "The bank lent us money.")


def number(text: str) -> float:
    return float(text.replace("−", "-"))


@pytest.fixture
def shown(tab: Any, tmp_path: Path, explanation: Explanation) -> Any:
    return opened(tab, tmp_path / "page.html", explanation)


def opened(tab: Any, path: Path, explanation: Explanation) -> Any:
    write_page(path, explanation)
    tab.goto(path.as_uri())
    tab.wait_for_selector("html[data-ready]")
    return tab


def cells(page: Any, caption: str) -> list[list[str]]:
    """Return the rows of the table with this caption."""
    table = page.locator("table", has=page.get_by_text(caption, exact=True))
    read = "table => [...table.tBodies[0].rows].map(r => [...r.cells].map(c => c.innerText))"
    return list(table.evaluate(read))


def test_first_view_appears_within_a_second(shown: Any) -> None:
    assert shown.evaluate(FIRST) / 1000 < SECONDS


def test_tokens_and_norms_match_model(shown: Any, explanation: Explanation) -> None:
    rows = cells(shown, "The tokens of the text and the norms of their vectors")
    assert len(rows) == len(explanation.tokens)
    for position, row in enumerate(rows):
        norms = [number(cell) for cell in row[-5:]]
        expected = [part.norms[position] for part in explanation.embeddings.parts]
        np.testing.assert_allclose(norms, expected, atol=0.0051)
    # A word of two tokens.
    assert rows[7][:2] == ["crossing", "cross"]
    assert rows[8][0] == "##ing"


def test_selected_head_and_word_show_weights(shown: Any, explanation: Explanation) -> None:
    assert explanation.steps is not None
    shown.get_by_role("radio", name="Layer 2, head 3", exact=True).click()
    words = shown.get_by_role("radiogroup", name="The query token").first
    words.get_by_role("radio").nth(5).click()
    shown.get_by_role("heading", name="Layer 2, head 3").wait_for()
    rows = cells(shown, "Computation of the weights of the chosen token")
    weights = decoded(explanation.attention[1])[2, 5]
    q, k, _ = decoded(explanation.steps[1])[:, 2]
    assert [row[0] for row in rows] == [token.piece for token in explanation.tokens]
    products = k @ q[5]
    np.testing.assert_allclose([number(row[2]) for row in rows], products, atol=0.0051)
    scores = products / np.sqrt(q.shape[-1])
    np.testing.assert_allclose([number(row[3]) for row in rows], scores, atol=0.0051)
    np.testing.assert_allclose([number(row[4]) for row in rows], weights, atol=0.0015)
    message = shown.get_by_text("maximum difference").inner_text()
    off = re.search(r"the model’s weights is (\S+)\.$", message)
    assert off is not None
    assert float(off[1]) < 1e-3


def test_arrow_keys_move_through_attention_matrix(shown: Any, explanation: Explanation) -> None:
    matrix = shown.get_by_label("Attention of one head.")
    matrix.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowRight"):
        matrix.press(key)
    weights = decoded(explanation.attention[explanation.begin.layer])[explanation.begin.head]
    # The page starts at the largest weight of the row.
    row, column = explanation.begin.token + 2, int(weights[explanation.begin.token].argmax()) - 1
    assert column > 0
    weight = weights[row, column]
    message = matrix.locator("xpath=following-sibling::output").inner_text()
    tokens = [token.piece for token in explanation.tokens]
    read = re.fullmatch(
        rf"“{tokens[row]}” attends to “{tokens[column]}” with weight (\d.+)", message
    )
    assert read is not None, message
    assert float(read[1]) == pytest.approx(weight, abs=0.0006)


def test_arrow_keys_move_focus_during_rendering(shown: Any) -> None:
    shown.evaluate(
        """() => {
            document.querySelector("[aria-label='Layer 1, head 1']").focus();
            for (const key of ["ArrowRight", "ArrowRight", "ArrowDown"]) {
                const given = { key, bubbles: true, cancelable: true };
                document.activeElement.dispatchEvent(new KeyboardEvent("keydown", given));
            }
        }"""
    )
    assert shown.locator(":focus").get_attribute("aria-label") == "Layer 2, head 3"
    shown.get_by_role("heading", name="Layer 2, head 3").wait_for()


def test_arrow_keys_select_heads(shown: Any, explanation: Explanation) -> None:
    first = shown.get_by_role("radio", name="Layer 1, head 1", exact=True)
    first.click()
    first.press("ArrowDown")
    focused = shown.locator("[aria-label='Layer 2, head 1']:focus")
    # The page renders before it moves the focus.
    focused.wait_for()
    focused.press("End")
    focused = shown.locator(":focus")
    assert focused.get_attribute("aria-label") == "Rollout from layer 3 to the tokens"
    shown.get_by_role("heading", name="Rollout from layer 3").wait_for()
    rows = cells(shown, "Attention weights of the chosen token")
    expected = decoded(explanation.rollout[2])[explanation.begin.token]
    np.testing.assert_allclose([number(row[1]) for row in rows], expected, atol=0.0011)


def test_page_starts_at_a_distinct_head_pattern(shown: Any, explanation: Explanation) -> None:
    layer, head, token = explanation.begin.layer, explanation.begin.head, explanation.begin.token
    heading = shown.get_by_role("heading", name=f"Layer {layer + 1}, head {head + 1}")
    kind = explanation.patterns[layer][head].kind
    assert heading.inner_text().startswith(f"Layer {layer + 1}, head {head + 1}: {NAMES[kind]}")
    chosen = shown.get_by_role("radiogroup", name="The query token").first
    assert chosen.locator("[aria-checked=true]").inner_text() == explanation.tokens[token].piece


def test_pattern_filter_grays_other_heads(shown: Any, explanation: Explanation) -> None:
    every = [(layer, head) for layer in range(3) for head in range(4)]
    kinds = {(layer, head): explanation.patterns[layer][head].kind for layer, head in every}
    group = shown.get_by_role("radiogroup", name="Attention patterns")
    pale = "[...document.querySelectorAll('.heads .pale')].map(one => one.ariaLabel)"
    assert shown.evaluate(pale) == []
    for kind in {*kinds.values()}:
        count = [*kinds.values()].count(kind)
        group.get_by_role("radio", name=f"{NAMES[kind]} {count}", exact=True).click()
        others = [f"Layer {layer + 1}, head {head + 1}" for layer, head in every
                  if kinds[layer, head] != kind]  # fmt: skip
        paled = [name for name in shown.evaluate(pale) if ", head " in name]
        assert paled == others
        chosen = shown.locator(".heads [aria-checked=true]").get_attribute("aria-label")
        assert chosen not in others
    group.get_by_role("radio").first.press("Home")
    assert shown.evaluate(pale) == []


def test_layer_slider_compares_attention_maps(shown: Any, explanation: Explanation) -> None:
    position, head = explanation.begin.token, explanation.begin.head
    slider = shown.get_by_role("slider", name="Layer", exact=True)
    matrix = shown.get_by_label("Attention of one head.")
    sizes = set()
    for layer, key in enumerate(("Home", "ArrowRight", "ArrowRight")):
        slider.press(key)
        shown.get_by_role("heading", name=f"Layer {layer + 1}, head {head + 1}").wait_for()
        rows = cells(shown, "Computation of the weights of the chosen token")
        weights = decoded(explanation.attention[layer])[head, position]
        np.testing.assert_allclose([number(row[4]) for row in rows], weights, atol=0.0015)
        sizes.add(tuple(matrix.bounding_box().items()))
    # The maps overlap exactly.
    assert len(sizes) == 1
    slider.press("Home")
    shown.get_by_role("button", name="Play").first.click()
    shown.get_by_role("heading", name=f"Layer 3, head {head + 1}").wait_for()


def test_walk_table_shows_norms_of_each_step(shown: Any, explanation: Explanation) -> None:
    assert explanation.walk is not None
    assert explanation.steps is not None
    layer, head, token = explanation.begin.layer, explanation.begin.head, explanation.begin.token
    rows = cells(shown, "The chosen token in the layer, step by step")
    steps = {part.name: part.norms[token] for part in explanation.walk[layer].steps}
    vectors = [*decoded(explanation.steps[layer])[:, head, token]]
    vectors.append(decoded(explanation.walk[layer].heads)[head, token])
    (state, *others) = steps.values()
    expected = [state, *(float(np.linalg.norm(vector)) for vector in vectors), *others]
    np.testing.assert_allclose([number(row[2]) for row in rows], expected, atol=0.0051)
    firsts = [row[0].split("\n")[0].split(" ")[0] for row in rows]
    assert firsts == ["x", "q", "k", "v", f"h{head + 1}", "a", "x", "y", "u", "f", "y", "x′"]
    shown.get_by_role("radio", name=f"Layer {layer + 1}, mean of its heads").click()
    shown.get_by_text("Choose a single head to follow").wait_for()


def test_masked_word_candidates_match_model(shown: Any, explanation: Explanation) -> None:
    assert explanation.masked is not None
    group = shown.get_by_role("radiogroup", name="The masked word")
    # "on" is one token, "crossing" is two.
    for position in (2, 6):
        word = explanation.words[position]
        group.get_by_role("radio", name=word.text, exact=True).click()
        for token, candidates in zip(
            explanation.tokens[word.first : word.end], explanation.masked[position], strict=True
        ):
            rows = cells(shown, f"The most probable tokens for {token.piece}")
            assert [row[0] for row in rows] == [candidate.token for candidate in candidates]
            chances = [candidate.score for candidate in candidates]
            np.testing.assert_allclose([number(r[1]) for r in rows], chances, atol=0.0006)


def test_state_slider_shows_cosines_of_each_layer(shown: Any, explanation: Explanation) -> None:
    slider = shown.get_by_role("slider", name="Layer of the states")
    slider.focus()
    for key, layer in (("Home", 0), ("ArrowRight", 1), ("End", 3)):
        slider.press(key)
        shown.wait_for_function(
            "layer => document.querySelector('#layers output').textContent.startsWith(layer)",
            arg=str(layer),
        )
        cosines = decoded(explanation.similarity[layer])[1]
        for piece, position, cosine in cells(shown, "Cosines of the chosen token"):
            assert explanation.tokens[int(position) - 1].piece == piece
            assert number(cosine) == pytest.approx(cosines[int(position) - 1], abs=0.0011)
    rows = cells(shown, "Cosines of two occurrences of the word, by layer")
    bank = explanation.repeats[0]
    expected = [layer[0][1] for layer in bank.cosines]
    np.testing.assert_allclose([number(cell) for cell in rows[0][1:]], expected, atol=0.0051)


def test_figures_save_as_png(shown: Any) -> None:
    buttons = shown.get_by_role("button", name="Save as picture")
    names = set()
    for button in buttons.all():
        with shown.expect_download() as download:
            button.click()
        picture = Path(download.value.path()).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 500
        names.add(download.value.suggested_filename)
    assert len(names) == buttons.count() >= 8
    assert "attention-of-all-heads.png" in names


def test_html_in_text_is_escaped(tab: Any, tmp_path: Path, bert: Path) -> None:
    page = opened(tab, tmp_path / "page.html", explain(bert, HOSTILE))
    assert page.locator("blockquote").text_content() == HOSTILE
    assert page.locator("img").count() == 0


@pytest.mark.slow
def test_large_page_appears_within_a_second(tab: Any, tmp_path: Path, bert: Path) -> None:
    shape = {"hidden": 120, "layers": 12, "heads": 12, "intermediate": 96, "length": 512}
    tiny_folder(tmp_path / "model", bertkit.load(bert).tokenizer, **shape)
    long = explain(tmp_path / "model", "we sat on the bank " * 120, long="truncate")
    page = opened(tab, tmp_path / "page.html", long)
    assert page.evaluate(FIRST) / 1000 < SECONDS
    assert page.get_by_text("truncated to 512 tokens").count() == 1
    page.get_by_role("radio", name="Layer 12, head 12", exact=True).click()
    page.get_by_role("heading", name="Layer 12, head 12").wait_for()
    rows = cells(page, "Attention weights of the chosen token")
    weights = decoded(long.attention[11])[11, long.begin.token]
    np.testing.assert_allclose([number(row[1]) for row in rows], weights, atol=0.0001)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_shows_page_without_horizontal_scrolling(
    tab: Any, tmp_path: Path, explanation: Explanation, scheme: str
) -> None:
    tab.set_viewport_size({"width": 360, "height": 740})
    tab.emulate_media(color_scheme=scheme)
    page = opened(tab, tmp_path / "page.html", explanation)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (color == "rgb(255, 255, 255)") == (scheme == "light")


def test_phone_shows_complete_tables(tab: Any, tmp_path: Path, explanation: Explanation) -> None:
    tab.set_viewport_size({"width": 390, "height": 844})
    page = opened(tab, tmp_path / "page.html", explanation)
    assert page.evaluate(CUT) == []
    names = page.locator("#embeddings tbody tr").nth(1).locator("td")
    labels = names.evaluate_all("cells => cells.map(cell => cell.dataset.name)")
    assert labels == ["text", "id", "characters", "segment", *EMBEDDED]
    # The row above it contains the word and its first token.
    row = page.locator("#embeddings tbody tr").nth(8)
    assert row.locator("td").first.get_attribute("data-name") == "text"
    # The picture contains the table in its desktop layout.
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as picture: Tokens and embeddings").click()
    from PIL import Image

    with Image.open(download.value.path()) as picture:
        assert picture.width > 2 * 390
    tab.set_viewport_size({"width": 1280, "height": 844})
    assert page.evaluate(CUT) == []


def test_phone_shows_attention_near_the_top(
    tab: Any, tmp_path: Path, explanation: Explanation
) -> None:
    tab.set_viewport_size({"width": 400, "height": 844})
    page = opened(tab, tmp_path / "page.html", explanation)
    top = "document.querySelector('#attention').getBoundingClientRect().top + scrollY"
    assert page.evaluate(top) < 2 * 844


def test_every_control_has_a_name(shown: Any) -> None:
    unnamed = shown.evaluate(
        "[...document.querySelectorAll('button, input, [tabindex=\"0\"]')].filter(e => "
        "!(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).length"
    )
    assert unnamed == 0


@pytest.fixture
def causal(tab: Any, tmp_path: Path, writer: tuple[Any, Loaded]) -> tuple[Any, Explanation]:
    shown = explain(writer[1], "The class statement, and the class.")
    return opened(tab, tmp_path / "causal.html", shown), shown


def test_causal_mask_is_gray(causal: tuple[Any, Explanation]) -> None:
    page, shown = causal
    tokens = len(shown.tokens)
    gray = page.evaluate(
        """() => {
          const canvas = document.querySelector(".heads canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const pixel = (x, y) => data.slice(4 * (y * canvas.width + x)).slice(0, 4).join();
          return [canvas.width, pixel(canvas.width - 1, 0), pixel(0, canvas.width - 1)];
        }"""
    )
    size, unseen, seen = gray
    assert size == tokens
    assert unseen.startswith("128,128,128")
    assert not seen.startswith("128,128,128")
    matrix = page.get_by_label("Attention of one head.")
    matrix.focus()
    for key in ("Home", *["ArrowRight"] * 2):
        matrix.press(key)
    message = matrix.locator("xpath=following-sibling::output").inner_text()
    first, third = shown.tokens[0].piece, shown.tokens[2].piece
    assert message == f"“{first}” cannot attend to “{third}”"
    rows = cells(page, "Computation of the weights of the chosen token")
    # The first token attends only to itself.
    assert [row[0] for row in rows] == [first]


def test_next_word_selection_shows_candidates(causal: tuple[Any, Explanation]) -> None:
    page, shown = causal
    assert shown.masked is not None
    page.get_by_role("radiogroup", name="The next word").get_by_role("radio").nth(2).click()
    word, (first, *_) = shown.words[2], shown.masked[2]
    own = shown.tokens[word.first].piece
    rows = cells(page, f"The most probable tokens for {own}")
    assert [row[0].strip() for row in rows] == [candidate.token.strip() for candidate in first]
    page.get_by_role("radiogroup", name="The next word").get_by_role("radio").nth(0).click()
    assert page.get_by_text("There are no tokens before it.").is_visible()
    assert page.get_by_role("link", name="Next tokens").is_visible()


def test_notebook_shows_page_in_a_frame(tab: Any, tmp_path: Path, explanation: Explained) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><h1>A cell</h1>{explanation._repr_html_()}", encoding="utf-8")
    tab.goto(path.as_uri())
    frame = tab.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for()
    assert frame.get_by_text("Attention").first.is_visible()
