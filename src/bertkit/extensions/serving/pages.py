"""The window: pages on what the models do with a text, what they answer, and how runs go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bertkit.errors import BertkitError
from bertkit.extensions.serving.errors import invalid
from bertkit.extensions.serving.examples import ASKS, WORDS, looks
from bertkit.extensions.serving.forms import answered, values
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.panels import PANELS, lines_of, task_panel
from bertkit.extensions.serving.request_context import RequestContext
from bertkit.extensions.serving.views import answers
from bertkit.extensions.serving.views.contexts import ContextsPipeline, compared
from bertkit.recipes.inspect_corpus import readable, samples_of_run
from bertkit.storage import distinct_names
from bertkit.view import runs
from bertkit.view.figures import Field, Figure, Form, Marked
from bertkit.view.page import FIGURES, page, render, source

REFRESH_SECONDS = 5
"""Seconds after which a page asks again how a run goes."""

ALL_MODELS = "all of them"
"""Of models, where several may answer side by side."""

LAYERS = {"the last layer": -1, "the last layer but one": -2, "the embedding": 0}
"""Which one of several models is shown, by its number."""

PAGES = {
    "/": "Look inside",
    "/steps": "Step by step",
    "/gap": "A gap",
    "/ask": "Ask",
    "/word": "One word",
    "/growing": "One vector",
    "/distance": "Far apart",
    "/damage": "Damaged text",
    "/training": "Training",
}

SAMPLES, SAMPLED = 3, 4
"""Training samples that are shown of a run, and runs of which they are."""


class Window:
    """The pages of one server: a method for each address.

    `folders` are those of runs, which the page of training shows.
    """

    def __init__(self, registry: ModelRegistry, folders: Sequence[Path]) -> None:
        self.registry, self.folders = registry, folders
        self.panels = {name: panel for name, panel in PANELS.items() if registry.supporting(name)}
        for task in registry.tasks().values():
            self.panels.setdefault(task.route.strip("/"), task_panel(task))
        there = {
            "/": registry.supporting("explain"),
            "/ask": self.panels,
            "/word": registry.supporting("contexts"),
            "/steps": registry.supporting("decode"),
            # A masked model predicts the word on its own page, with its own mask.
            "/gap": any(map(registry.supporting, ("next-token", "fill-gap"))),
            "/growing": registry.supporting("growing"),
            "/distance": registry.supporting("distance"),
            "/damage": registry.supporting("tokenize"),
            "/training": folders,
        }
        self.links = {path: name for path, name in PAGES.items() if there[path]}
        self.samples: dict[Path, list[str]] = {}

    async def look(self, request: Request) -> Response:
        """What a model does with a text."""
        text, pair, model, off, hide = await values(request, "text", "pair", "model", "off", "hide")
        able = self.registry.supporting("explain")
        if not able:
            there = next(iter(self.links), "/training")
            return Response(status_code=303, headers={"location": there})
        fields = (
            Field("text", "Text", text, rows=2, required=True),
            Field("pair", "A second text, to be read with it (may be left out)", pair),
            Field("off", "Heads to switch off, as LAYER.HEAD (may be left out)", off),
            Field("hide", hidden=True),  # of this text alone: a script fills it in
            Field("model", "Model", model, options=list(able)),
        )
        form = Form(
            "/",
            fields,
            "Look",
            examples=looks(list(able), list(self.registry.supporting("fill-mask"))),
        )

        def shown(alert: str = "") -> str:
            return self.page(
                "/",
                "What does a model do with a text?",
                "See its pieces, whom they attend to in every head, what could stand in each "
                "word’s place, and how the states change from layer to layer. Take one of these "
                "texts, or write your own.",
                form=form._replace(alert=alert),
            )

        async def explained() -> str:
            context = RequestContext(request)
            _, pipeline = context.pipeline("explain", model or None)
            listed = (tuple(one.replace(",", " ").split()) for one in (off, hide))
            items = [(text, pair.strip() or None, *listed)]
            (answer,), _ = await context.answers(pipeline, items, field="text", truncate=True)
            return page(answer, form, self.links, "/")

        return await answered(shown, explained() if text.strip() else None)

    async def ask(self, request: Request) -> Response:
        """What models answer."""
        what, text, other, model = await values(request, "what", "text", "other", "model")
        name = what if what in self.panels else next(iter(self.panels), "")
        if not name:
            return Response(status_code=303, headers={"location": "/"})
        panel, able = self.panels[name], self.registry.supporting(name)
        several = name == "fill-mask" and len(able) > 1
        fields = [
            Field("what", value=name, hidden=True),
            Field("text", panel.text, text, rows=2, required=True),
            *([Field("other", panel.other, other, rows=4)] if panel.other else []),
            Field("model", "Model", model, options=[*([ALL_MODELS] if several else []), *able]),
        ]

        def shown(figures: Sequence[Figure] = (), alert: str = "") -> str:
            return self.page(
                "/ask",
                panel.title,
                "What a model answers to your own words. The numbers are those that the same "
                "question has through the server’s interface.",
                form=Form("/ask", fields, "Ask", alert, [ASKS[name]] if name in ASKS else []),
                figures=figures,
                computed_by=[panel.computed_by],
                questions={key: one.title for key, one in self.panels.items()},
                question=name,
            )

        async def figures() -> str:
            context = RequestContext(request)
            chosen = (
                list(able) if several and model in ("", ALL_MODELS) else [model or next(iter(able))]
            )
            by_model = {}
            for one in chosen:
                _, pipeline = context.pipeline(name, one)
                items = panel.items(text, other)
                by_model[one], _ = await context.answers(
                    pipeline, items, field="text", **panel.options
                )
            if name == "fill-mask":
                return shown(answers.candidates({one: a[0] for one, a in by_model.items()}))
            figure = panel.figure(by_model[chosen[0]], text, other)
            mixture = getattr(pipeline, "mixture", None)  # of the layers of an ELMo
            return shown([figure, *([] if mixture is None else [answers.mixture(mixture)])])

        return await answered(shown, figures() if text.strip() else None)

    async def word(self, request: Request) -> Response:
        """A word in several texts."""
        word, texts, model, layer = await values(request, "word", "texts", "model", "layer")
        able = list(self.registry.supporting("contexts"))
        several = len(able) > 1
        layer = layer or next(iter(LAYERS))
        fields = [
            Field("word", "A word", word, required=True),
            Field("texts", "Texts with it, a line each", texts, rows=5, required=True),
            Field("model", "Model", model, options=[*([ALL_MODELS] if several else []), *able]),
            *(
                [Field("layer", "Layer, where all are asked", layer, options=[*LAYERS])]
                if several
                else []
            ),
        ]

        def shown(
            figures: Sequence[Figure] = (), alert: str = "", marked: Sequence[Marked] = ()
        ) -> str:
            return self.page(
                "/word",
                "One word in several texts",
                "The embedding of a word is the same wherever it stands, but for its position. "
                "Layer by layer its states become those of this sentence, and those of another "
                "meaning part from them, as far as the model sees the sentence.",
                form=Form("/word", fields, "Compare", alert, WORDS),
                figures=figures,
                computed_by=[ContextsPipeline.run, compared],
                texts=marked,
            )

        async def figures() -> str:
            if layer not in LAYERS:
                raise invalid(f"layer: expected {', '.join(LAYERS)}", "layer")
            context, by_model = RequestContext(request), {}
            items = [(word.strip(), tuple(lines_of(texts)))]
            for one in able if several and model in ("", ALL_MODELS) else [model or None]:
                name, pipeline = context.pipeline("contexts", one)
                (by_model[name],), _ = await context.answers(pipeline, items, field="texts")
            answer = next(iter(by_model.values()))
            pairs = zip(answer.texts, answer.ranges, strict=True)
            marked = [Marked(one, [(*place, "")]) for one, place in pairs]
            if len(by_model) == 1:
                return shown(answers.contexts(answer), marked=marked)
            drawn = answers.contexts_by_model(by_model, LAYERS[layer], layer)
            return shown(drawn, marked=marked)

        return await answered(shown, figures() if word.strip() and texts.strip() else None)

    async def training(self, request: Request) -> Response:
        """How runs learn."""
        live = request.query_params.get("live", "yes")
        if live not in ("yes", "no"):
            raise invalid("expected yes or no", "live")

        def shown(
            figures: Sequence[Figure] = (),
            alert: str = "",
            alerts: Sequence[str] = (),
            learns: bool = False,
        ) -> str:
            again = ("/training", "Ask again by itself")
            stop = ("/training?live=no", "Stop asking again")
            return self.page(
                "/training",
                "Runs",
                "How runs learn, side by side: their loss on what they learn from, and on what "
                "they never see. While one of them learns the page asks again every few seconds.",
                figures=figures,
                computed_by=[runs.read_run, readable],
                alerts=[alert] if alert else alerts,
                link=(again if live == "no" else stop) if learns else None,
                refresh=REFRESH_SECONDS if learns and live == "yes" else None,
            )

        async def drawn() -> str:
            try:
                read, figures, alerts = await asyncio.to_thread(self.read_runs)
            except BertkitError as error:
                raise invalid(str(error), "run") from None
            return shown(figures, alerts=alerts, learns=any(run.learns for run in read))

        return await answered(shown, drawn())

    def read_runs(self) -> tuple[list[runs.RunView], list[Figure], list[str]]:
        """The runs as they are now, their figures and samples, and what is damaged."""
        folders = runs.find_runs(self.folders)
        names = distinct_names(folders)
        read = [runs.read_run(folder, name) for folder, name in zip(folders, names, strict=True)]
        alerts = [sentence for run in read for sentence in run.damaged]
        figures = runs.run_figures(read)
        sampled = list(zip(folders, read, strict=True))[:SAMPLED]
        for folder, run in sampled:
            if folder not in self.samples:  # the same however long it runs
                try:
                    self.samples[folder] = samples_of_run(run.record, SAMPLES)
                except BertkitError as error:
                    alerts.append(f"{folder}: no samples are shown: {error}")
            if self.samples.get(folder):
                figures.append(runs.samples_figure(run, self.samples[folder]))
        return read, figures, alerts

    def page(
        self,
        here: str,
        title: str,
        lead: str,
        *,
        form: Form | None = None,
        computed_by: Sequence[Callable[..., Any]] = (),
        **values: Any,
    ) -> str:
        """A page with a form and figures; `computed_by` is the code that makes their numbers."""
        empty: dict[str, Any] = {
            "figures": (),
            "texts": (),
            "alerts": (),
            "link": None,
            "questions": {},
        }
        return render(
            "window.html",
            modules=FIGURES,
            forms=form is not None,
            links=self.links,
            here=here,
            title=title,
            lead=lead,
            form=form,
            sources=list(map(source, computed_by)),
            **{**empty, **values},
        )


def elsewhere() -> Response:
    """To the first page that the models can fill."""
    return Response(status_code=303, headers={"location": "/"})
