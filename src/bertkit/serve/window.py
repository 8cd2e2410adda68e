"""The window: pages on what the models do with a text, what they answer, and how runs go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import numpy as np
from fastapi import FastAPI, Request, Response

from bertkit.errors import BertkitError, DataError
from bertkit.pipelines import Answer, Embed, FillMask, NextSentence, Rerank
from bertkit.recipes.inspect import readable, samples_of_run
from bertkit.retrieval.search import Searcher
from bertkit.serve.context import RequestContext, refusal
from bertkit.serve.refused import Refused
from bertkit.serve.registry import require_finite
from bertkit.view import answers, runs
from bertkit.view.contexts import ContextsPipeline, compared
from bertkit.view.page import Field, form, navigation, page, window_page

LIVE = 5
"""Seconds after which a page asks again how a run goes."""

ALL = "all of them"
"""Of models, where several may answer side by side."""

PIECES, DOCUMENTS, SAMPLES = 10, 10, 3
"""How many are shown of each."""


class Panel(NamedTuple):
    """A question that the page puts to models: its two boxes, and what becomes of the answers."""

    title: str
    text: str
    other: str
    """What the second box is for; "" for none."""
    items: Callable[[str, str], Sequence[Any]]
    show: Callable[[Sequence[Any], str, str], str]
    computed_by: Callable[..., Any]
    asked: Mapping[str, Any] = {}


def _lines(text: str) -> list[str]:
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found:
        raise DataError("the second box is empty; write a line for each")
    return found


def _labels(found: Sequence[Any], text: str, other: str) -> str:
    (one,) = found
    return answers.labels(one.scores, number=not all(0 <= s <= 1 for s in one.scores.values()))


def _likeness(found: Sequence[Any], text: str, other: str) -> str:
    rows = require_finite(np.stack(found))
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return answers.likeness(_lines(other), (rows[1:] @ rows[0]).tolist())


PANELS: Mapping[str, Panel] = {
    "predict": Panel(
        "Labels",
        "Text",
        "A second text, for a model of pairs",
        lambda text, other: [(text, other) if other.strip() else text],
        _labels,
        Answer.run,
    ),
    "ner": Panel(
        "Entities",
        "Text",
        "",
        lambda text, other: [text],
        lambda found, text, other: answers.entities(text, found[0]),
        Answer.run,
    ),
    "answer": Panel(
        "An answer from a passage",
        "Question",
        "Passage",
        lambda text, other: [(text, other)],
        lambda found, text, other: answers.answer(other, found[0]),
        Answer.run,
    ),
    "choose": Panel(
        "One of several",
        "Text",
        "Choices, a line each",
        lambda text, other: [(text, _lines(other))],
        lambda found, text, other: answers.choices(_lines(other), found[0]),
        Answer.run,
    ),
    "fill-mask": Panel(
        "Masked words",
        "Text, with [MASK] for a word",
        "",
        lambda text, other: [text],
        lambda found, text, other: "",  # of several models: shown side by side
        FillMask.candidates,
        {"top": PIECES},
    ),
    "next-sentence": Panel(
        "Next sentence",
        "A sentence",
        "Another, which may have followed it",
        lambda text, other: [(text, other)],
        lambda found, text, other: answers.next_sentence(found[0]),
        NextSentence.run,
    ),
    "embed": Panel(
        "Similar texts",
        "Text",
        "Others, a line each",
        lambda text, other: [text, *_lines(other)],
        _likeness,
        Embed.run,
    ),
    "rerank": Panel(
        "Passages in order",
        "Query",
        "Passages, a line each",
        lambda text, other: [(text, line) for line in _lines(other)],
        lambda found, text, other: answers.order(_lines(other), np.array(found, np.float64)),
        Rerank.run,
    ),
    "search": Panel(
        "Search",
        "Query",
        "",
        lambda text, other: [text],
        lambda found, text, other: answers.hits(found[0]),
        Searcher.__call__,
        {"top": DOCUMENTS, "where": [], "hybrid": False},
    ),
}
"""By the ability that a model needs for it."""


def add_window(app: FastAPI, folders: Sequence[Path]) -> None:
    """The pages, which are not of the interface that /openapi.json describes.

    `folders` are those of runs, which the page of training shows.
    """
    registry = app.state.registry
    models = bool(registry.models)
    panels = {name: panel for name, panel in PANELS.items() if registry.supporting(name)}
    there = [
        *(["/"] if models else []),
        *(["/ask"] if panels else []),
        *(["/word"] if models else []),
        *(["/training"] if folders else []),
    ]
    page_at = partial(app.api_route, methods=["GET", "POST"], include_in_schema=False)

    @page_at("/")
    async def look(request: Request) -> Response:
        text, pair, model, off = await _asked(request, "text", "pair", "model", "off")
        if not models:
            return Response(status_code=303, headers={"location": "/training"})
        context = RequestContext(request)
        names = list(registry.supporting("explain"))

        def asked(said: str = "") -> str:
            fields = (
                Field("text", "Text", text, rows=2, required=True),
                Field("pair", "A second text, to be read with it (may be left out)", pair),
                Field("off", "Heads to switch off, as LAYER.HEAD (may be left out)", off),
                Field("model", "Model", model, options=names),
            )
            return form("/", fields, "Look", said=said)

        def alone(said: str = "") -> str:
            return window_page(
                "What does a model do with a text?",
                "Write one, and see its pieces, whom they attend to in every head, what could "
                "stand in each word’s place, and how the states change from layer to layer.",
                navigation=navigation("/", there),
                form=asked(said),
            )

        if not text.strip():
            return _html(alone())
        try:
            _, pipeline = context.pipeline("explain", model or None)
            items = [(text, pair.strip() or None, tuple(off.replace(",", " ").split()))]
            (found,), _ = await context.answers(pipeline, items, field="text", truncate=True)
        except (BertkitError, Refused) as error:
            return _refused(error, alone)
        other = f"<details><summary>Another text</summary>{asked()}</details>"
        return _html(page(found, other, navigation("/", there)))

    @page_at("/ask")
    async def ask(request: Request) -> Response:
        what, text, other, model = await _asked(request, "what", "text", "other", "model")
        context = RequestContext(request)
        name = what if what in panels else next(iter(panels), "")
        if not name:
            return Response(status_code=303, headers={"location": "/"})
        panel, able = panels[name], registry.supporting(name)
        several = name == "fill-mask" and len(able) > 1

        def shown(said: str = "", body: str = "") -> str:
            options = [*([ALL] if several else []), *able]
            fields = [
                Field("what", value=name, hidden=True),
                Field("text", panel.text, text, rows=2, required=True),
            ]
            if panel.other:
                fields.append(Field("other", panel.other, other, rows=4))
            fields.append(Field("model", "Model", model, options=options))
            kinds = "".join(
                f'<a href="/ask?what={key}"{" aria-current=true" if key == name else ""}>'
                f"{one.title}</a>"
                for key, one in panels.items()
            )
            asked = form("/ask", fields, "Ask", said=said)
            return window_page(
                panel.title,
                "What a model answers to your own words. The numbers are those that the same "
                "question has through the server’s interface.",
                navigation=navigation("/ask", there),
                form=f'<nav aria-label="Questions">{kinds}</nav>{asked}',
                body=body,
                computed_by=[panel.computed_by],
            )

        if not text.strip():
            return _html(shown())
        try:
            chosen = list(able) if several and model in ("", ALL) else [model or next(iter(able))]
            found = {}
            for one in chosen:
                _, pipeline = context.pipeline(name, one)
                items = panel.items(text, other)
                found[one], _ = await context.answers(pipeline, items, field="text", **panel.asked)
            if name == "fill-mask":
                return _html(shown(body=answers.candidates({n: f[0] for n, f in found.items()})))
            return _html(shown(body=panel.show(found[chosen[0]], text, other)))
        except (BertkitError, Refused) as error:
            return _refused(error, shown)

    @page_at("/word")
    async def word(request: Request) -> Response:
        word, texts, model = await _asked(request, "word", "texts", "model")
        context = RequestContext(request)

        def shown(said: str = "", body: str = "") -> str:
            fields = (
                Field("word", "A word", word, required=True),
                Field("texts", "Texts with it, a line each", texts, rows=5, required=True),
                Field("model", "Model", model, options=list(registry.supporting("contexts"))),
            )
            return window_page(
                "One word in several texts",
                "The embedding of a word is the same wherever it stands, but for its position. "
                "Layer by layer its states become those of this sentence, and those of another "
                "meaning part from them.",
                navigation=navigation("/word", there),
                form=form("/word", fields, "Compare", said=said),
                body=body,
                computed_by=[ContextsPipeline.run, compared],
            )

        if not (word.strip() and texts.strip()):
            return _html(shown())
        try:
            _, pipeline = context.pipeline("contexts", model or None)
            items = [(word.strip(), tuple(_lines(texts)))]
            (found,), _ = await context.answers(pipeline, items, field="texts")
            return _html(shown(body=answers.contexts(found)))
        except (BertkitError, Refused) as error:
            return _refused(error, shown)

    samples: dict[Path, list[str]] = {}

    def with_samples(folder: Path, run: runs.Run) -> str:
        if folder not in samples:  # the same however long it runs
            try:
                samples[folder] = samples_of_run(run.record, SAMPLES)
            except BertkitError as error:
                return f'<p role="alert">{escape(f"{folder}: no samples are shown: {error}")}</p>'
        return runs.with_samples(run, samples[folder])

    @app.get("/training", include_in_schema=False)
    async def training(live: Literal["yes", "no"] = "yes") -> Response:
        def shown(said: str = "", body: str = "", refresh: int | None = None) -> str:
            alert = f'<p role="alert">{escape(said)}</p>' if said else ""
            return window_page(
                "Runs",
                "How runs learn, side by side: their loss on what they learn from, and on what "
                "they never see. While one of them learns the page asks again every few seconds.",
                navigation=navigation("/training", there),
                body=alert + body,
                computed_by=[runs.read_run, readable],
                refresh=refresh,
            )

        def read() -> tuple[list[runs.Run], str]:
            found = [runs.read_run(folder) for folder in folders]
            return found, "".join(map(with_samples, folders, found))

        try:
            found, drawn = await asyncio.to_thread(read)
        except BertkitError as error:
            return _html(shown(str(error)), 422)
        body = runs.shown(found) + drawn
        if not any(run.learns for run in found):
            return _html(shown(body=body))
        if live == "no":
            return _html(shown(body=f'<p><a href="/training">Ask again by itself</a></p>{body}'))
        pause = '<p><a href="/training?live=no">Stop context again</a></p>'
        return _html(shown(body=pause + body, refresh=LIVE))

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)  # browsers ask; there is none


async def _asked(request: Request, *names: str) -> list[str]:
    """What the address says of each, or a form's body; "" of what is left out."""
    said = dict(request.query_params)
    with contextlib.suppress(ValueError):  # no form: nothing is asked
        said |= parse_qsl((await request.body()).decode(), max_num_fields=len(names))
    return [said.get(name, "") for name in names]


def _refused(error: BertkitError | Refused, shown: Callable[[str], str]) -> Response:
    refused = refusal(error)
    return _html(shown(refused.sentence), refused.status)


def _html(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="text/html; charset=utf-8")
