"""Pages need no other files, show their data, and do not run code from texts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from bertkit.errors import ConfigError
from bertkit.extensions.classic.charts import scatter
from bertkit.extensions.generation.decode_view import Beam, DecoderSteps
from bertkit.extensions.generation.pages import StepsPage
from bertkit.pipelines import Candidate
from bertkit.recipes.error_report import MistakeRow, PairCell
from bertkit.tasks.task import ErrorRecord
from bertkit.view.arrays import coded
from bertkit.view.chart import score_bars
from bertkit.view.explain import explain
from bertkit.view.figures import (
    Beside,
    Example,
    Field,
    Figure,
    Form,
    Lines,
    Marked,
    Share,
    Spans,
    Table,
)
from bertkit.view.page import (
    FILES,
    check_page_path,
    document_values,
    environment,
    framed,
    modules,
    page,
    render,
    write_page,
    write_report,
)
from bertkit.view.page_data import Explanation, Shape, Source

HOSTILE = (
    "a </script><script>alert(1)</script> <!-- & \" ' \u2028 \u2029 <img src=x onerror=alert(2)>"
)


RIGHT_TO_LEFT = "\u202e\u2067 \u05e9\u05dc\u05d5\u05dd"

TEXT = f"{HOSTILE} '{RIGHT_TO_LEFT}"


def table(text: str) -> Table:
    rows = [(text, text, 0.5, Share(0.5), Marked(text, [(2, 9, text)]))]
    return Table(text, rows, [text] * 5)


def errors(text: str) -> dict[str, Any]:
    """Return the values of an error list."""
    cell = PairCell(2, "0-1", text)
    record = ErrorRecord(text, text, text, 0.5)
    return {
        "name": text,
        "wrong": 3,
        "of": 4,
        "listed": 1,
        "errors": [MistakeRow(text, record, "0-1", True), MistakeRow(text, record, "", False)],
        "labels": [(text, 0.5, 0.5, 0.5, 2, cell, PairCell(0, ""))],
        "matrix": ([text], [(text, [cell])]),
        "confused": [(text, text, cell)],
    }


def pages(text: str) -> Mapping[str, dict[str, Any]]:
    """Return the values of each template with this text wherever text can appear."""
    chart = score_bars({text: {"mean": 0.5, "sd": 0.1, "each": [0.4, 0.6]}}, text)
    points = scatter([(0, 0), (1, 1)], [text, text], text)
    fields = [
        Field(text, text, text),
        Field("rows", text, text, rows=2),
        Field("choice", text, text, options=[text, "a"]),
        Field("hidden", value=text, hidden=True),
    ]
    examples = [Example({text: text}, text, text, "part")]
    parts = [table(text), Lines(text), Beside("maps", [points]), Marked(text, [(0, 3, text)])]
    parts.append(Spans([(text, None), (text, 1)]))
    file = {"file": text, "rows": 3, "sentences": 3}
    scores = {"train": file, "dev": file, "table": table(text), "chart": chart}
    scores |= {"settings": Table(text, [(text, text)])}
    return {
        "window.html": {"title": text, "lead": text,
                        "form": Form("/", fields, text, alert=text, examples=examples),
                        "texts": [Marked(text)], "link": ("/", text), "links": {"/": text},
                        "questions": {text: text}, "question": text,
                        "sources": [Source("a.py", 1, text, text)], "alerts": [text],
                        "figures": [Figure(text, text, parts)]},
        "errors.html": errors(text),
        "contexts.html": {"word": text, "layer": text, "texts": table(text), "charts": [chart],
                          "models": [(text, text, text, table(text))]},
        "experiment.html": {"charts": {text: chart}, "runs": table(text),
                            "failed": Table(text, [(text, text)]),
                            "settings": Table(text, [(text, text)])},
    }  # fmt: skip


PAGES = list(pages(""))


@pytest.fixture(scope="module")
def explanation(bert: Path) -> Explanation:
    return explain(bert, "We sat on the bank, crossing the river.", "The bank lent us money.")


class Reader(HTMLParser):
    """Parser that collects tags, attributes, and the contents of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[int, str] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))

    def handle_data(self, data: str) -> None:
        index = len(self.tags) - 1
        self.inside[index] = self.inside.get(index, "") + data

    def contents(self, tag: str) -> list[str]:
        return [self.inside.get(i, "") for i, (name, _) in enumerate(self.tags) if name == tag]


def test_page_loads_no_other_files(explanation: Explanation) -> None:
    read = Reader(page(explanation))
    for _, attributes in read.tags:
        assert "src" not in attributes
        assert str(attributes.get("href", "#")).startswith("#")
    for text in (*read.contents("style"), *read.contents("script")):
        assert not re.search(r"https?:|url\(|@import|\bimport\b[ (]|^export|fetch\(", text, re.M)


def test_page_contains_the_explanation_as_json(explanation: Explanation) -> None:
    data, _ = Reader(page(explanation)).contents("script")
    assert msgspec.json.decode(data, type=type(explanation)) == explanation


def test_html_in_text_is_escaped(bert: Path) -> None:
    html = page(explain(bert, HOSTILE))
    read = Reader(html)
    assert [tag for tag, _ in read.tags].count("script") == 2
    assert not any("onerror" in attributes for _, attributes in read.tags)
    data, _ = read.contents("script")
    assert "<" not in data
    assert json.loads(data)["text"] == HOSTILE
    assert read.contents("title")[0].startswith("a </script>")


def test_decoder_page_contains_steps_as_json() -> None:
    weights = coded(torch.ones(1, 1, 1), "float16")
    steps = DecoderSteps(
        text=HOSTILE, written=HOSTILE, cut=False, model=Shape(HOSTILE, "marian", 1, 1, 8, 16),
        source=[HOSTILE], target=[HOSTILE], scores=[0.5], candidates=[[Candidate(HOSTILE, 0.5)]],
        attention=[weights], mean=[coded(torch.ones(1, 1), "float16")],
        beams=[[Beam(None, HOSTILE, -0.7, "ended", True)]],
        sources={"steps": Source("a.py", 1, HOSTILE, HOSTILE)},
    )  # fmt: skip
    values = document_values(HOSTILE, steps)
    form = Form("/steps", [], "Write")
    read = Reader(
        render(StepsPage.template, script=StepsPage.script, forms=True, form=form,
               links={"/": "a"}, here="/", **values),
    )  # fmt: skip
    assert [tag for tag, _ in read.tags].count("script") == 2
    assert "img" not in {tag for tag, _ in read.tags}
    data, _ = read.contents("script")
    assert "<" not in data
    assert msgspec.json.decode(data, type=DecoderSteps) == steps


def test_policy_allows_only_the_page_script(explanation: Explanation) -> None:
    read = Reader(page(explanation))
    policy = next(a["content"] for _, a in read.tags if a.get("http-equiv"))
    assert policy is not None
    allowed = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert allowed["default-src"] == "'none'"
    for tag, text in (("style", read.contents("style")[0]), ("script", read.contents("script")[1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert allowed[f"{tag}-src"] == f"'sha256-{digest}'"


SCRIPTS = ("main.js", StepsPage.script, "window.js", "errors.js")


def test_each_module_belongs_to_a_page() -> None:
    used = {name for script in SCRIPTS for name in modules(script)}
    assert used == {path.name for path in FILES.glob("*.js")}


@pytest.mark.parametrize("script", SCRIPTS)
def test_modules_follow_their_imports_with_unique_names(script: str) -> None:
    included = modules(script)
    names: list[str] = []
    for index, name in enumerate(included):
        text = (FILES / name).read_text(encoding="utf-8")
        imported = re.findall(r'^import .*"\./(.*)"', text, re.M)
        assert set(imported) <= set(included[:index]), name
        names += re.findall(
            r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", text, re.M
        )
        assert "innerHTML" not in text
    assert len(set(names)) == len(names)


def test_write_page_rejects_invalid_paths(tmp_path: Path, explanation: Explanation) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    write_page(tmp_path / "a.html", explanation)
    with pytest.raises(ConfigError, match="already exists"):
        write_page(tmp_path / "a.html", explanation)
    with pytest.raises(ConfigError, match=r"is a directory; pass a file such as .*page\.html"):
        check_page_path(empty)
    with pytest.raises(ConfigError, match="does not exist; create it"):
        check_page_path(tmp_path / "none" / "a.html")


def tags(html: str) -> list[str]:
    return [tag for tag, _ in Reader(html).tags]


@pytest.mark.parametrize("name", PAGES)
def test_pages_escape_their_text(name: str) -> None:
    html = render(name, **pages(TEXT)[name])
    assert tags(html) == tags(render(name, **pages("a plain text of words")[name]))
    assert not any(key.startswith("on") for _, given in Reader(html).tags for key in given)
    for part in ("<img", "<script>alert", "</script>", " <!-- &"):
        assert part not in html
    assert html.count("&lt;img") == html.count("onerror=") > 1
    assert RIGHT_TO_LEFT in html


@pytest.mark.parametrize("name", PAGES)
def test_templates_without_autoescape_do_not_escape(name: str) -> None:
    """The control: without autoescaping, the test detects unescaped text."""
    template = environment(FILES, autoescape=False).get_template(name)
    empty = {"links": {}, "here": "", "refresh": None, "policy": "", "style": "", "script": ""}
    plain = template.render(empty | pages("a plain text of words")[name])
    html = template.render(empty | pages(TEXT)[name])
    assert "<img" in html
    assert tags(html) != tags(plain)


def test_templates_are_tested_with_hostile_text() -> None:
    names = {path.name for path in FILES.glob("*.html")}
    # The data of these pages is JSON. They have separate tests.
    separate = {"explain.html", "decoder.html"}
    assert names == {*PAGES, *separate, "base.html", "parts.html"}


@pytest.mark.parametrize("name", PAGES)
def test_reports_load_no_other_files(name: str) -> None:
    read = Reader(render(name, **pages("a")[name]))
    (style,) = read.contents("style")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(given["content"] for _, given in read.tags if given.get("http-equiv"))
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert "script" not in {tag for tag, _ in read.tags}
    assert not any("style" in given or "src" in given for _, given in read.tags)


def test_error_report_keeps_lines_and_aligns_numbers(tmp_path: Path) -> None:
    record = ErrorRecord("a <b>", "x", "y", 0.12345)
    values = {**errors("a"), "of": 1000, "errors": [MistakeRow("a.jsonl:1", record, "", True)]}
    write_report(tmp_path / "page.html", "errors.html", **values)
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert "3 of 1,000 predictions are fully or partly wrong; this page lists the 1 worst." in html
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", html[html.index('id="errors"') :])
    assert cells == ["a &lt;b&gt;", "x", "y", "0.123"]
    assert '<th scope="col" class="number">severity</th>' in html


def test_render_accepts_a_custom_template(tmp_path: Path) -> None:
    separate = tmp_path / "own.html"
    separate.write_text(
        '{% extends "base.html" %}{% block title %}{{ name }}{% endblock %}', encoding="utf-8"
    )
    assert "<h1>a &amp; b</h1>" in render(separate, name="a & b")


def test_notebook_shows_page_in_sandboxed_frame(bert: Path) -> None:
    explanation = explain(bert, TEXT)
    html = explanation._repr_html_()
    frames: list[dict[str, str | None]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag == "iframe"
            frames.append(dict(attrs))

    Reader().feed(html)
    (frame,) = frames
    assert frame["srcdoc"] == page(explanation)
    assert frame["sandbox"] == "allow-scripts allow-downloads"
    assert html == framed(page(explanation))
    assert len(repr(explanation)) < 200
