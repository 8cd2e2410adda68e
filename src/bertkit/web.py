"""Classes with which extensions define routes and web pages of `bertkit serve`.

This module does not import the server, so that an extension can be used without the packages that
the server requires.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import msgspec
from msgspec import Meta

from bertkit.config import Settings
from bertkit.pipelines import Pipeline
from bertkit.pipelines.supported import SupportedPipelines
from bertkit.registry import Registry
from bertkit.tasks.task import JsonObject, NoOptions
from bertkit.view.figures import Example, Field, Figure

Text = Annotated[str, Meta(min_length=1)]
TextList = Annotated[list[Text], Meta(min_length=1)]
Texts = Text | TextList

ALL_MODELS = "all of them"
"""Value of a form's model field that selects all models."""

Builders = Mapping[str, Callable[[SupportedPipelines], Pipeline | None]]
"""Functions by name of the pipeline. Each returns the pipeline for a model, or None if the model
does not support it."""

Items = Sequence[Any]

Values = Mapping[str, str]
"""Values of a form by name of the field. The value of a field that was not sent is empty."""

Models = Callable[[str], Mapping[str, Any]]
"""Function that takes the name of a pipeline, and returns the pipelines of all models that support
it, by model name."""

ANY = object()
"""Marker for a field that never changes a response, whatever its value."""

Neutral = Mapping[str, tuple[Any, ...]]
"""Unsupported fields, each with the values that do not change the response. Null is always allowed.
"""


def chosen_models(model: str, models: Mapping[str, Any]) -> list[str]:
    """Return the names of the models that a form selects: one model, or all if `model` is empty."""
    return list(models) if model in ("", ALL_MODELS) else [model]


class RequestError(Exception):
    """Error response: its HTTP status, a message, and the field of the request that caused it."""

    def __init__(
        self, status: int, message: str, field: str | None = None, headers: Any = ()
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field
        self.headers: dict[str, str] = dict(headers)


def invalid(message: str, field: str | None = None) -> RequestError:
    """Return the error for an invalid request (status 422)."""
    return RequestError(422, message, field)


class Ask(JsonObject, frozen=True, kw_only=True):
    """Fields that every request can contain."""

    EXAMPLE: ClassVar[dict[str, Any]] = {}
    NEUTRAL: ClassVar[Neutral] = {}

    model: str | None = None
    """Name of the model. Default: the first model that supports the route."""
    parameters: Annotated[dict[str, Any], Meta(max_length=0)] = msgspec.field(default_factory=dict)
    """Further fields of the request, in the format of the Hugging Face Hub. Fields in this object
    have the same effect as fields beside it."""

    @classmethod
    def convert(cls, body: dict[str, Any], select: Callable[..., dict[str, Any]]) -> None:
        """Convert alternative names and formats in a request body before it is validated.

        The body is changed in place.

        Args:
            body: The body of the request.
            select: Function that removes neutral fields from an object in the body.
        """


class Cut(Ask, frozen=True, kw_only=True):
    """Fields of requests whose texts can be truncated."""

    truncate: bool | None = None
    """Whether to truncate texts that are too long. The response lists the truncated texts. If
    false, a text that is too long is an error. Default: the server's --truncate."""


class Context(Protocol):
    """Context of a request, through which a handler uses the server's models, queue, and limits."""

    id: str
    client: Any
    """API key and connection of the client. Each batch is divided evenly among clients."""
    batcher: Any
    """Queue of all requests."""

    def models(self, name: str) -> Mapping[str, Any]:
        """Return the pipelines with this name of all models that support it, by model name."""

    def pipeline(self, name: str, model: str | None) -> tuple[str, Any]:
        """Return the name of a model and its pipeline.

        If `model` is None, the first model that supports the pipeline is used.

        Raises:
            RequestError: If the model does not support the pipeline.
        """

    async def answers(
        self, pipeline: Any, items: Items, *, field: str, ask: Any = None, **options: Any
    ) -> tuple[list[Any], list[bool]]:
        """Predict items, and return the predictions and whether each item was truncated.

        Args:
            pipeline: The pipeline.
            items: Items to predict.
            field: Name of the field that contains the items, for error messages.
            ask: The request, if it can specify whether to truncate texts.
            options: Options of the pipeline.

        Raises:
            RequestError: If the items exceed a limit of the server.
        """

    def check(self, items: Items, field: str) -> list[int]:
        """Check that no item is too long, and return an upper limit of each item's token count."""

    async def read(self, items: Items, sizes: Items, prepare: Any, tokens: Any) -> list[Any]:
        """Return `prepare(items)`, which runs in a thread if the items are long.

        Args:
            items: The items.
            sizes: Upper limit of the number of tokens of each item, as returned by `check`.
            prepare: Function that takes a list of items, and returns a list with a result for each.
            tokens: Function that takes a result, and returns its number of tokens.
        """

    def charge(self, tokens: int, items: int) -> None:
        """Add tokens to the usage of the client's API key."""

    def form(self, kind: Any, values: Values) -> Any:
        """Convert the values of a form to an object of type `kind`, ignoring empty values."""

    def reply(self, answer: Any, truncated: Items = ()) -> Any:
        """Return a JSON response."""

    def stream(self, events: Any) -> Any:
        """Return a response of server-sent events."""


class Panel(NamedTuple):
    """Form of a pipeline on the page "Ask", and the figure that shows its predictions."""

    title: str
    text: str
    """Label of the first text field."""
    figure: Callable[[Sequence[Any], str, str], Figure]
    """Function that takes the predictions and the values of the two fields, and returns a figure.
    """
    computed_by: Callable[..., Any]
    example: Sequence[str]
    """Title of the example, followed by the values of its fields."""
    other: str = ""
    """Label of the second text field, or empty if there is no second field."""
    items: Callable[[str, str], Sequence[Any]] = lambda text, other: [text]
    """Function that converts the values of the two fields to items of the pipeline."""
    options: Mapping[str, Any] = {}
    """Options of the pipeline."""
    form: type[Settings] = NoOptions
    """Options of the pipeline that the page offers as fields."""


@dataclass(frozen=True)
class Route:
    """A path of the server, its handler, and the types of its requests and responses."""

    path: str
    handler: Callable[..., Awaitable[Any]]
    """Coroutine function that takes the request, if `ask` is set, and the context."""
    answer: Any
    ask: type[Ask] | None = None
    ability: str = ""
    """Name of the pipeline that a model must support."""
    many: bool = False
    """Whether the response to a list of inputs is a list of answers."""
    method: str = "POST"
    media_type: str = "application/json"
    panel: Panel | None = None
    pipelines: Builders = field(default_factory=dict)
    """Pipelines to add to the models of the server."""


class Page(ABC):
    """Base class of web pages with a form. A subclass sets the attributes and adds the methods."""

    link: str
    """Text of links to the page."""
    title: str
    lead: str
    """Introduction that is shown above the form."""
    button: str
    abilities: tuple[str, ...]
    """Names of pipelines. The page exists if a model supports one of them."""
    pipelines: ClassVar[Builders] = {}
    """Pipelines to add to the models of the server."""
    computed_by: Sequence[Callable[..., Any]] = ()
    """Functions that compute the figures. The page shows their source code."""
    template = "window.html"
    """Template that renders the page with the answer."""
    script = "window.js"
    """JavaScript module that the page with the answer runs. Default: the module for figures."""

    @abstractmethod
    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        """Return the fields of the form."""

    def examples(self, models: Models) -> Sequence[Example]:
        """Return examples with which a user can fill in the form."""
        return ()

    def alerts(self, models: Models) -> Sequence[str]:
        """Return messages that the page shows above the figures."""
        return ()

    @abstractmethod
    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        """Return the variables of the template, such as `figures`.

        The server calls this method only if all required fields are set.
        """


ROUTES: Mapping[str, Route] = Registry("routes", {})
"""Routes that extensions add, by URL path."""

PAGES: Mapping[str, type[Page]] = Registry("pages", {})
"""Web pages that extensions add, by URL path."""
