"""The Starlette application, with the routes that the models of the server support."""

from __future__ import annotations

import asyncio
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
from bertkit.extensions.serving.admission import JSON, AdmissionMiddleware
from bertkit.extensions.serving.batcher import Batcher
from bertkit.extensions.serving.errors import error_response
from bertkit.extensions.serving.generated import pipeline_routes
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.metrics import Metrics
from bertkit.extensions.serving.models import ModelRegistry
from bertkit.extensions.serving.openapi import openapi
from bertkit.extensions.serving.pages import Window
from bertkit.extensions.serving.request_bodies import decode
from bertkit.extensions.serving.request_context import RequestContext, request_error
from bertkit.web import ROUTES, RequestError, Route, invalid

STARTED = int(time.time())
"""Time at which this process started, in seconds since 1970."""


def install_app(
    admission: AdmissionMiddleware,
    registry: ModelRegistry,
    batcher: Batcher,
    runs: Sequence[Path] = (),
) -> None:
    """Create the application, and let the middleware pass requests to it.

    Args:
        admission: Middleware that passes requests to the application. If a reload changes the
            supported pipelines, it gets a new application.
        registry: Models of the server.
        batcher: Request queue of the server.
        runs: Directories of training runs, which the page of training curves shows.
    """

    def install() -> None:
        admission.set_app(
            create_app(registry, batcher, admission.limits, admission.metrics, runs, install)
        )

    install()


def create_app(
    registry: ModelRegistry,
    batcher: Batcher,
    limits: Limits,
    metrics: Metrics,
    runs: Sequence[Path],
    changed: Callable[[], None],
) -> Starlette:
    """Create the application, with the routes and web pages that the models support.

    Args:
        registry: Models of the server.
        batcher: Request queue of the server.
        limits: Limits of the server.
        metrics: Metrics of the server.
        runs: Directories of training runs, which the page of training curves shows.
        changed: Function to call when a reload changes which pipelines the models support.
    """
    pipelines = registry.abilities()
    registry.routed = frozenset(pipelines)
    routes = [
        *(route for route in ROUTES.values() if not route.ability or route.ability in pipelines),
        *pipeline_routes(pipelines),
        *ADMIN,
    ]
    document = msgspec.json.encode(openapi(routes))

    async def describe(request: Request) -> Response:
        return Response(document, media_type="application/json")

    app = Starlette(
        routes=[
            *map(_route, routes),
            routing.Route("/openapi.json", describe),
            *Window(registry, runs).routes(),
        ],
        exception_handlers=dict.fromkeys(
            (Exception, RequestError, BertkitError, HTTPException), _handle_error
        ),
    )
    state = app.state
    state.registry, state.batcher, state.limits, state.metrics = registry, batcher, limits, metrics
    state.changed = changed
    return app


def _route(route: Route) -> routing.Route:
    """Return a Starlette route that decodes the request body and passes it to the handler."""

    async def endpoint(request: Request) -> Any:
        context = RequestContext(request)
        if route.ask is None:
            return await route.handler(context)
        if not JSON.match(request.headers.get("content-type", "")):
            raise invalid("the body must be JSON; set the header content-type: application/json")
        return await route.handler(decode(route.ask, await request.body()), context)

    # The name of a model may contain a slash.
    path = route.path.replace("{name}", "{name:path}")
    return routing.Route(path, endpoint, methods=[route.method])


async def _handle_error(request: Request, error: Exception) -> Response:
    return error_response(request_error(error), request.url.path)


async def info(context: RequestContext) -> Response:
    """Return the models with the routes that they support, and the limits of the server."""
    search = context.registry.search
    store = None if search is None else search.searcher.store.location
    models, limits = [model.about() for model in context.registry.models.values()], context.limits
    first = next(iter(context.registry.models.values()), None)
    tei = () if first is None else (first.name, first.tei_type(), first.supported.length)
    return context.reply(schema.Info(__version__, models, store, limits, limits.items, *tei))


async def reload(context: RequestContext) -> Response:
    """Load a model again from its directory. Earlier requests are completed with the old model."""
    name, registry, state = context.path_params["name"], context.registry, context.app.state
    if name not in registry.models:
        raise invalid(f"model {name[:80]!r} not found", "name")

    async def load() -> None:
        async with registry.opening:
            # From here on, a new request starts another reload, because the files may have changed
            # again.
            del registry.reloads[name]
            await asyncio.to_thread(registry.reload, name)
            if registry.abilities().keys() != registry.routed:
                state.changed()

    if name not in registry.reloads:
        registry.reloads[name] = asyncio.ensure_future(load())
        registry.reloads[name].add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        # If the client disconnects, the reload continues, because other clients may be waiting for
        # it.
        await asyncio.shield(registry.reloads[name])
    except CheckpointError as error:
        raise invalid(str(error), "name") from None
    return context.reply(registry.models[name].about())


async def ready(context: RequestContext) -> Response:
    """Check that each model still computes the same embedding as when it was loaded."""
    for model in context.registry.models.values():
        if model.supported.probe is None:
            continue
        vectors = await context.batcher.answers(*model.supported.probe, urgent=True)
        if not all(map(model.is_unchanged, vectors)):
            message = f"the model {model.name} computes other embeddings than when it was loaded"
            raise RequestError(503, message)
    return context.reply({"status": "ready"})


async def openai_models(context: RequestContext) -> Response:
    """List the models in OpenAI's format."""
    return context.reply(
        schema.OpenAIModels(data=list(map(_openai_model, context.registry.models)))
    )


async def openai_model(context: RequestContext) -> Response:
    """Describe a model in OpenAI's format."""
    name = context.path_params["name"]
    if name not in context.registry.models:
        raise RequestError(404, f"model {name[:80]!r} not found; see /v1/models", "model")
    return context.reply(_openai_model(name))


def _openai_model(name: str) -> schema.OpenAIModel:
    return schema.OpenAIModel(id=name, created=STARTED)


async def counters(context: RequestContext) -> Response:
    """Return the metrics in the text format of Prometheus."""
    text = context.app.state.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


ADMIN = (
    Route("/info", info, schema.Info, method="GET"),
    Route("/models/{name}/reload", reload, schema.ModelInfo),
    Route("/v1/models", openai_models, schema.OpenAIModels, method="GET"),
    Route("/v1/models/{name}", openai_model, schema.OpenAIModel, method="GET"),
    Route("/health/ready", ready, dict[str, Literal["ready"]], method="GET"),
    Route("/health", ready, dict[str, Literal["ready"]], method="GET"),
    Route("/metrics", counters, str, method="GET", media_type="text/plain"),
)
"""Routes that give information about the server or control it."""
