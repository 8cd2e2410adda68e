"""Web pages of a server: "Ask", training curves, and the pages that extensions add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bertkit.extensions.serving import answers
from bertkit.extensions.serving.forms import form_values, respond
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.panels import panels
from bertkit.extensions.serving.request_context import RequestContext
from bertkit.extensions.serving.training_page import TrainingPage
from bertkit.view.figures import Example, Field, Form
from bertkit.view.page import render, source
from bertkit.web import ALL_MODELS, PAGES, Page, chosen_models


class Window:
    """The web pages of a server.

    Args:
        registry: Models of the server.
        folders: Directories of training runs, which the page of training curves shows.
    """

    def __init__(self, registry: ModelRegistry, folders: Sequence[Path]) -> None:
        self.registry, self.training = registry, TrainingPage(folders)
        self.panels = panels(registry)
        # The page at "/", which explains a model, comes first.
        paths = sorted(PAGES, key=lambda path: path != "/")
        self.pages = {path: PAGES[path]() for path in paths}
        self.links = {
            **{
                path: page.link
                for path, page in self.pages.items()
                if any(map(registry.supporting, page.abilities))
            },
            **({"/ask": "Ask"} if self.panels else {}),
            **({"/training": "Training"} if folders else {}),
        }

    def routes(self) -> list[Route]:
        """Return the routes of the pages. /openapi.json does not list them."""
        methods = ["GET", "POST"]
        return [
            Route("/ask", self.ask, methods=methods),
            Route("/training", self.show_runs),
            *(
                Route(path, partial(self.show, path, page), methods=methods)
                for path, page in self.pages.items()
            ),
            # Respond to the request for an icon that browsers send.
            Route("/favicon.ico", lambda _: Response(status_code=204)),
        ]

    async def show(self, path: str, page: Page, request: Request) -> Response:
        """Show a page that an extension added. If all required fields have values, show the result.

        Args:
            path: Path of the page.
            page: The page.
            request: The request.
        """
        if path not in self.links:
            location = next(iter(self.links), "/training") if path == "/" else "/"
            return Response(status_code=303, headers={"location": location})
        values, models = await form_values(request), self.registry.supporting
        fields = page.fields(values, models)
        form = Form(path, fields, page.button, examples=page.examples(models))
        texts: dict[str, Any] = {"title": page.title, "lead": page.lead}
        texts["alerts"] = page.alerts(models)
        shown = partial(self.page, path, form=form, computed_by=page.computed_by, **texts)

        async def answer() -> str:
            values_shown = await page.answer(values, RequestContext(request))
            return shown(**{"template": page.template, "script": page.script, **values_shown})

        ready = all(values[field.name].strip() for field in fields if field.required)
        return await respond(shown, answer() if ready else None)

    async def show_runs(self, request: Request) -> Response:
        """Show the page of training curves.

        Args:
            request: The request.
        """
        return await self.training.show(request, partial(self.page, "/training"))

    async def ask(self, request: Request) -> Response:
        """Show the page "Ask", with the predictions of models if the form has values.

        Args:
            request: The request.
        """
        values = await form_values(request)
        name = values["what"] if values["what"] in self.panels else next(iter(self.panels), "")
        if not name:
            return Response(status_code=303, headers={"location": "/"})
        panel, text, other = self.panels[name], values["text"], values["other"]
        shown = partial(
            self.page,
            "/ask",
            title=panel.title,
            lead="See what a model predicts for your own text. The HTTP API returns the same "
            "values for the same text.",
            form=self._panel_form(name, values),
            computed_by=[panel.computed_by],
            questions={key: panel.title for key, panel in self.panels.items()},
            question=name,
        )

        async def figures() -> str:
            context, by_model = RequestContext(request), {}
            chosen = msgspec.structs.asdict(context.form(panel.form, values))
            options = {**panel.options, **chosen}
            models = chosen_models(values["model"], context.models(name))
            for model in models if name == "fill-mask" else models[:1]:
                _, pipeline = context.pipeline(name, model)
                items = panel.items(text, other)
                by_model[model], _ = await context.answers(pipeline, items, field="text", **options)
            if name == "fill-mask":
                return shown(figures=answers.candidates({m: a[0] for m, a in by_model.items()}))
            return shown(figures=[panel.figure(by_model[models[0]], text, other)])

        return await respond(shown, figures() if text.strip() else None)

    def _panel_form(self, name: str, values: Mapping[str, str]) -> Form:
        """Create the form of a panel."""
        panel, able = self.panels[name], list(self.registry.supporting(name))
        several = name == "fill-mask" and len(able) > 1
        fields = [
            Field("what", value=name, hidden=True),
            Field("text", panel.text, values["text"], rows=2, required=True),
            *([Field("other", panel.other, values["other"], rows=4)] if panel.other else []),
            *(
                Field(o.name, o.name.replace("_", " ").capitalize(), values[o.name])
                for o in msgspec.structs.fields(panel.form)
            ),
            Field("model", "Model", values["model"], options=[ALL_MODELS] * several + able),
        ]
        shows, text, *more = panel.example
        filled = {"what": name, "text": text, "other": "".join(more)}
        return Form("/ask", fields, "Ask", examples=[Example(filled, text, shows)])

    def page(
        self,
        here: str,
        *,
        form: Form | None = None,
        alert: str = "",
        computed_by: Sequence[Callable[..., Any]] = (),
        template: str = "window.html",
        script: str = "window.js",
        **values: Any,
    ) -> str:
        """Render a page.

        Args:
            here: Path of the page, which the navigation marks as the current page.
            form: Form to show on the page.
            alert: Error message to show on the page.
            computed_by: Functions and classes that compute the figures. The page shows their source
                code.
            template: Template of the page.
            script: JavaScript module that the page runs.
            values: Further values for the template.
        """
        if form is not None:
            form = form._replace(alert=alert)
        elif alert:
            values["alerts"] = [alert]
        empty = dict.fromkeys(("figures", "texts", "alerts", "link", "questions"), ())
        return render(
            template,
            script=script,
            forms=form is not None,
            links=self.links,
            here=here,
            form=form,
            sources=list(map(source, computed_by)),
            **{**empty, **values},
        )
