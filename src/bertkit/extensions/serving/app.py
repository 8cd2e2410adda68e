"""The application behind the admission: the routes that its models answer."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from starlette import routing
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from bertkit import __version__
from bertkit.errors import BertkitError, CheckpointError
from bertkit.extensions.serving import schema
from bertkit.extensions.serving.admission import AdmissionMiddleware
from bertkit.extensions.serving.batcher import Batcher
from bertkit.extensions.serving.errors import DEFECT, error_response
from bertkit.extensions.serving.generated import pipeline_routes
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.metrics import Metrics
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.openapi import openapi
from bertkit.extensions.serving.pages import Window
from bertkit.extensions.serving.request_bodies import decode
from bertkit.extensions.serving.request_context import RequestContext, refusal
from bertkit.web import ROUTES, RequestError, Route, invalid

STARTED = int(time.time())
"""When this process started, in Unix seconds."""

JSON = re.compile(r"application/([^/;]+\+)?json\s*(;|$)", re.IGNORECASE)
"""The content types of a question."""


def install_app(
    admission: AdmissionMiddleware,
    registry: ModelRegistry,
    batcher: Batcher,
    runs: Sequence[Path] = (),
) -> None:
    """Let requests through to the registry, and to what else it can answer after a reload."""

    def let_in() -> None:
        admission.open_to(
            create_app(registry, batcher, admission.limits, admission.metrics, runs, let_in)
        )

    let_in()


def create_app(
    registry: ModelRegistry,
    batcher: Batcher,
    limits: Limits,
    metrics: Metrics,
    runs: Sequence[Path],
    changed: Callable[[], None],
) -> Starlette:
    """The application, with a route for each ability of the registry, and pages, on `runs` too.

    `changed` is called when a reload changes the abilities.
    """
    pipelines = registry.abilities()
    registry.routed = frozenset(pipelines)
    routes = [
        *(route for route in ROUTES.values() if not route.ability or route.ability in pipelines),
        *pipeline_routes(pipelines),
        *ADMIN,
    ]
    described = msgspec.json.encode(openapi(routes))

    async def description(request: Request) -> Response:
        return Response(described, media_type="application/json")

    app = Starlette(
        routes=[
            *map(_route, routes),
            routing.Route("/openapi.json", description),
            *Window(registry, runs).routes(),
        ],
        exception_handlers={
            Exception: _defect,
            RequestError: _refuse,
            BertkitError: _refuse,
            HTTPException: _refuse_http,
        },
    )
    state = app.state
    state.registry, state.batcher, state.limits, state.metrics = registry, batcher, limits, metrics
    state.changed = changed
    return app


def _route(route: Route) -> routing.Route:
    """Return a route whose handler decodes the body of a request first."""

    async def endpoint(request: Request) -> Any:
        context = RequestContext(request)
        if route.ask is None:
            return await route.handler(context)
        if not JSON.match(request.headers.get("content-type", "")):
            raise invalid("send JSON, with the header content-type: application/json")
        return await route.handler(decode(route.ask, await request.body()), context)

    # The name of a model may contain a slash.
    path = route.path.replace("{name}", "{name:path}")
    return routing.Route(path, endpoint, methods=[route.method])


async def _refuse(request: Request, error: Any) -> Response:
    return error_response(refusal(error), request.url.path)


async def _refuse_http(request: Request, error: Any) -> Response:
    kind, message = "bad_request", str(error.detail)
    if error.status_code == 404:
        kind, message = "not_found", "no such route; /openapi.json lists them"
    refused = RequestError(error.status_code, kind, message, headers=error.headers or ())
    return await _refuse(request, refused)


async def _defect(request: Request, _: Any) -> Response:
    return await _refuse(request, DEFECT)


async def info(context: RequestContext) -> Response:
    """The models, what they answer, and the limits."""
    search = context.registry.search
    store = None if search is None else search.searcher.store.place
    models = [model.about() for model in context.registry.models.values()]
    return context.reply(schema.Info(__version__, models, store, context.limits))


async def reload(context: RequestContext) -> Response:
    """Open a model's folder again; earlier requests are answered by the old model."""
    name, registry, state = context.path_params["name"], context.registry, context.app.state
    if name not in registry.models:
        raise invalid(f"no model {name[:80]!r}", "name")

    async def opened() -> None:
        async with registry.opening:
            del registry.reloads[name]  # a later request needs files that may be newer
            await asyncio.to_thread(registry.reload, name)
            if registry.abilities().keys() != registry.routed:
                state.changed()

    if name not in registry.reloads:
        registry.reloads[name] = asyncio.ensure_future(opened())
        registry.reloads[name].add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        # a reload continues after its client has left, so that others may join it
        await asyncio.shield(registry.reloads[name])
    except CheckpointError as error:
        raise invalid(str(error), "name") from None
    return context.reply(registry.models[name].about())


async def ready(context: RequestContext) -> Response:
    """Whether each model gives the vector that it gave when it was opened."""
    for model in context.registry.models.values():
        if model.supported.probe is None:
            continue
        vectors = await context.batcher.answers(*model.supported.probe, urgent=True)
        if not all(map(model.well, vectors)):
            message = f"{model.name} gives other vectors than it did"
            raise RequestError(503, "unhealthy", message)
    return context.reply({"status": "ready"})


async def health(context: RequestContext) -> Response:
    """The same as /health/ready, by TEI's name."""
    return await ready(context)


async def openai_models(context: RequestContext) -> Response:
    """The models, as OpenAI's clients list them."""
    return context.reply(
        schema.OpenAIModels(data=list(map(_openai_model, context.registry.models)))
    )


async def openai_model(context: RequestContext) -> Response:
    """One model, as OpenAI's clients ask for it."""
    name = context.path_params["name"]
    if name not in context.registry.models:
        raise RequestError(404, "not_found", f"no model {name[:80]!r}; /v1/models lists them")
    return context.reply(_openai_model(name))


def _openai_model(name: str) -> schema.OpenAIModel:
    return schema.OpenAIModel(id=name, created=STARTED)


async def counters(context: RequestContext) -> Response:
    """Counters in Prometheus's text format."""
    text = context.app.state.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


ADMIN = (
    Route("/info", info, schema.Info, method="GET"),
    Route("/models/{name}/reload", reload, schema.ModelInfo),
    Route("/v1/models", openai_models, schema.OpenAIModels, method="GET"),
    Route("/v1/models/{name}", openai_model, schema.OpenAIModel, method="GET"),
    Route("/health/ready", ready, dict[str, Literal["ready"]], method="GET"),
    Route("/health", health, dict[str, Literal["ready"]], method="GET"),
    Route("/metrics", counters, str, method="GET", media_type="text/plain"),
)
"""Questions about the server itself."""
