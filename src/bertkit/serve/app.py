"""The application behind the admission: the routes that its models answer, described."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from bertkit import __version__
from bertkit.errors import BertkitError, CheckpointError, did_you_mean
from bertkit.serve import schema
from bertkit.serve.admission import LIVE, AdmissionMiddleware
from bertkit.serve.batcher import Batcher
from bertkit.serve.context import refusal, reply
from bertkit.serve.limits import Limits
from bertkit.serve.metrics import Metrics
from bertkit.serve.refused import DEFECT, Refused
from bertkit.serve.registry import ModelRegistry
from bertkit.serve.routes import ROUTES, Route, task_route
from bertkit.serve.window import add_window

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Refusal, "description": what}
    for status, what in {
        401: "No key, or an unknown one.",
        403: "A key that is not for this route, or a page of another site.",
        404: "No model here answers this.",
        408: "The body took too long to arrive.",
        413: "A body, a text or a list that is too long.",
        422: "What cannot be answered; the field is named.",
        429: "Too much to do; Retry-After says when to come again.",
        500: "A defect, or a vector that is none; the log names its place.",
        503: "Loading, stopping, or not well.",
    }.items()
}


LIVE_DESCRIBED = {
    "summary": "Live",
    "description": "Whether the process answers; open to everyone.",
    "security": [],
    "responses": {
        "200": {
            "description": "It does.",
            "content": {"application/json": {"example": {"status": "live"}}},
        }
    },
}

FIXED = {route.path for route in ROUTES}
"""Paths that no task's own route takes the place of."""


def _fields(kind: type[schema.Given] = schema.Given) -> set[str]:
    """The names of all fields that anything asked may have."""
    return {*kind.model_fields, *(name for one in kind.__subclasses__() for name in _fields(one))}


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
) -> FastAPI:
    """The application, with a route for all that the registry can answer, and pages, on `runs` too.

    `changed` is called when it can answer other things than before.
    """
    app = FastAPI(
        title="bertkit",
        version=__version__,
        description="Models behind HTTP. An error is one sentence, with the field it is about.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.registry, app.state.batcher, app.state.limits = registry, batcher, limits
    _refuse_in_words(app)
    able = registry.abilities()
    routes = [route for route in ROUTES if route.ability in able]
    own = {path: kind for path, kind in registry.tasks().items() if path not in FIXED}
    routes += [task_route(kind) for kind in own.values()]
    for route in routes:
        app.post(route.path, responses=REFUSALS, response_class=Response)(route.handler)
    _describe(app, routes)
    add_window(app, runs)

    @app.get("/info", responses=REFUSALS)
    async def info() -> Response:
        """The models, what they answer, and the limits."""
        store = None if registry.search is None else registry.search.searcher.store.place
        models = [one.about() for one in registry.models.values()]
        return reply(schema.Info(__version__, models, store, limits))

    @app.post("/models/{name}/reload", responses=REFUSALS)
    async def reload(name: str) -> Response:
        """Open a model's folder again; what was asked before is answered by the old one."""
        if name not in registry.models:
            raise Refused(422, f"no model {name[:80]!r}", kind="validation", field="name")

        async def opened() -> None:
            async with registry.opening:
                await asyncio.to_thread(registry.reload, name)
                if registry.abilities() != able:
                    changed()

        try:
            await asyncio.shield(opened())  # it goes on when who asked is gone, or has waited
        except CheckpointError as error:
            raise Refused(422, str(error), kind="validation", field="name") from None
        return reply(registry.models[name].about())

    @app.get("/health/ready", responses=REFUSALS)
    async def ready() -> Response:
        """Whether each model gives the vector that it gave when it was opened."""
        for one in registry.models.values():
            (vector,) = await batcher.answers(one.embed, one.probe, urgent=True)
            if not one.well(vector):
                raise Refused(503, f"{one.name} gives other vectors than it did", kind="unhealthy")
        return reply({"status": "ready"})

    @app.get("/metrics", responses=REFUSALS)
    async def counters() -> Response:
        """Counters in Prometheus's text format."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


def _describe(app: FastAPI, routes: list[Route]) -> None:
    """OpenAPI's words for the answers, which are msgspec's structs, and for the refusals."""
    answers: dict[str, Any] = {
        **{route.path: route.answer for route in routes},
        "/info": schema.Info,
        "/models/{name}/reload": schema.Model,
        "/health/ready": dict[str, Literal["ready"]],
    }
    (openai, *schemas), parts = msgspec.json.schema_components(
        [schema.OpenAIRefusal, *answers.values()], ref_template="#/components/schemas/{name}"
    )
    many = {route.path for route in routes if route.many}

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            replies = {
                path: way["responses"]
                for path, ways in found["paths"].items()
                for way in ways.values()
            }
            for path, answer in zip(answers, schemas, strict=True):
                one_or_all = {"anyOf": [answer, {"type": "array", "items": answer}]}
                _content(replies[path]["200"], one_or_all if path in many else answer)
            for status, refused in replies.get("/v1/embeddings", {}).items():
                if status != "200":
                    _content(refused, openai)
            replies["/metrics"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
            found["paths"][LIVE] = {"get": LIVE_DESCRIBED}
            found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            found["security"] = [{"key": []}, {}]  # where there are keys
            held = found["components"]["schemas"]
            assert not held.keys() & parts.keys()
            held.update(parts)
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _content(reply: dict[str, Any], shape: Any) -> None:
    reply["content"] = {"application/json": {"schema": shape}}


def _sentence(errors: Sequence[Any]) -> tuple[str, str | None]:
    """What is wrong, by the error that tells most, and the field it is about."""
    if errors[0]["type"] == "json_invalid":  # what it has for a path counts characters
        return f"no JSON: {errors[0]['ctx']['error']}", None
    worst = max(errors, key=lambda e: (not e["type"].endswith("_type"), len(e["loc"])))
    *within, last = worst["loc"][1:] or [""]
    if worst["type"] == "extra_forbidden":
        hint = did_you_mean(str(last), _fields())
        hint = hint if hint.endswith("?") else "/openapi.json lists them"
        return f"no such field; {hint}", str(last)[:80]
    # the places of a union's parts name types as well
    known = _fields()
    path = [str(part) for part in (*within, last) if isinstance(part, int) or part in known]
    return worst["msg"], ".".join(path) or None


def _refuse_in_words(app: FastAPI) -> None:
    """Every error as one sentence in JSON."""

    async def refused(request: Request, error: Any) -> Response:
        said = refusal(error)
        body = said.body(request.url.path)
        return Response(body, said.status, dict(said.headers), media_type="application/json")

    async def invalid(request: Request, error: Any) -> Response:
        said, field = _sentence(error.errors())
        if "json" not in request.headers.get("content-type", ""):
            said = "send JSON, with the header content-type: application/json"
        return await refused(request, Refused(422, said, kind="validation", field=field))

    async def http(request: Request, error: Any) -> Response:
        lost = error.status_code == 404
        said = "no such route; /openapi.json lists them" if lost else str(error.detail)
        kind = "not_found" if lost else "bad_request"
        return await refused(
            request, Refused(error.status_code, said, kind=kind, headers=error.headers)
        )

    async def defect(request: Request, _: Any) -> Response:
        return await refused(request, DEFECT)

    for kind, handler in (
        (Exception, defect),
        (Refused, refused),
        (BertkitError, refused),
        (RequestValidationError, invalid),
        (HTTPException, http),
    ):
        app.add_exception_handler(kind, handler)
