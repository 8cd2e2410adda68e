"""Routes and web pages of `bertkit serve`, as extensions define them.

Nothing here imports the server, so that an extension works without its packages.
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
"""Option of a form that selects all models."""

Builders = Mapping[str, Callable[[SupportedPipelines], Pipeline | None]]
"""Functions by name that return a pipeline of a model, or None if the model does not support it."""

Items = Sequence[Any]

Values = Mapping[str, str]
"""Values of a form; empty if a field was not sent."""

Models = Callable[[str], Mapping[str, Any]]
"""Function that returns the models with a pipeline: the pipelines by model name."""

ANY = object()
"""Marker for every value of a field that never changes a response."""

Neutral = Mapping[str, tuple[Any, ...]]
"""Unsupported fields, each with the values that change nothing; null always changes nothing."""


def chosen_models(model: str, models: Mapping[str, Any]) -> list[str]:
    """Return the names of the models that a form selects. Default: all."""
    return list(models) if model in ("", ALL_MODELS) else [model]


class RequestError(Exception):
    """A request that cannot be answered: the HTTP status, the reason, and the field it is about."""

    def __init__(
        self, status: int, message: str, field: str | None = None, headers: Any = ()
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field
        self.headers: dict[str, str] = dict(headers)


def invalid(message: str, field: str | None = None) -> RequestError:
    """Return the error of an invalid request."""
    return RequestError(422, message, field)


class Ask(JsonObject, frozen=True, kw_only=True):
    """Fields of every request."""

    EXAMPLE: ClassVar[dict[str, Any]] = {}
    NEUTRAL: ClassVar[Neutral] = {}

    model: str | None = None
    """Name of the model. Default: the first model that supports the route."""
    parameters: Annotated[dict[str, Any], Meta(max_length=0)] = msgspec.field(default_factory=dict)
    """Further fields of the request, which clients of the hub may put here."""

    @classmethod
    def convert(cls, body: dict[str, Any], select: Callable[..., dict[str, Any]]) -> None:
        """Convert other spellings in a body, in place, before it is validated.

        Args:
            body: The body.
            select: Function that removes neutral fields from an object in the body.
        """


class Cut(Ask, frozen=True, kw_only=True):
    """Fields of requests whose texts can be truncated."""

    truncate: bool | None = None
    """Whether to truncate texts that are too long; the response lists them. If false, such a text
    is an error. Default: the server's --truncate."""


class Context(Protocol):
    """A request, with the models, the queue and the limits of the server."""

    id: str
    client: Any
    """API key and connection. Batches are divided evenly among clients."""
    batcher: Any
    """Queue of the requests."""

    def models(self, name: str) -> Mapping[str, Any]:
        """Return the models that have a pipeline: the pipelines by model name."""

    def pipeline(self, name: str, model: str | None) -> tuple[str, Any]:
        """Return the name of a model, and its pipeline. Default: the first model that has it.

        Raises:
            RequestError: If the model does not have the pipeline.
        """

    async def answers(
        self, pipeline: Any, items: Items, *, field: str, ask: Any = None, **options: Any
    ) -> tuple[list[Any], list[bool]]:
        """Return a prediction per item, and whether each item was truncated.

        Args:
            pipeline: The pipeline.
            items: Its items.
            field: Name of the items in errors.
            ask: The request, if it specifies whether to truncate texts.
            options: Options of the pipeline.

        Raises:
            RequestError: If the items exceed a limit of the server.
        """

    def check(self, items: Items, field: str) -> list[int]:
        """Check the lengths of items, and return the largest number of tokens of each."""

    async def read(self, items: Items, sizes: Items, prepare: Any, tokens: Any) -> list[Any]:
        """Return `prepare(items)`, which runs in a thread if the items are long.

        Args:
            items: The items.
            sizes: Their largest numbers of tokens; see `check`.
            prepare: Function that returns a list of results for some of the items.
            tokens: Function that returns the number of tokens of a result.
        """

    def charge(self, tokens: int, items: int) -> None:
        """Charge tokens to the key of the client."""

    def form(self, kind: Any, values: Values) -> Any:
        """Convert the values of a form to an object of this type; empty values are omitted."""

    def reply(self, answer: Any, truncated: Items = ()) -> Any:
        """Return a JSON response."""

    def stream(self, events: Any) -> Any:
        """Return a response of server-sent events."""


class Panel(NamedTuple):
    """Fields of the page "Ask", and the figure of a pipeline's predictions."""

    title: str
    text: str
    """Label of the first field."""
    figure: Callable[[Sequence[Any], str, str], Figure]
    """Function of the predictions and of the values of the two fields."""
    computed_by: Callable[..., Any]
    example: Sequence[str]
    """Title of the example, and the values of its fields."""
    other: str = ""
    """Label of the second field; empty if there is none."""
    items: Callable[[str, str], Sequence[Any]] = lambda text, other: [text]
    """Function that returns the items of the pipeline from the values of the two fields."""
    options: Mapping[str, Any] = {}
    """Options of the pipeline."""
    form: type[Settings] = NoOptions
    """Options of the pipeline that the page offers as fields."""


@dataclass(frozen=True)
class Route:
    """A path of the server, its handler, and the types of its requests and responses."""

    path: str
    handler: Callable[..., Awaitable[Any]]
    """Coroutine that gets the `ask`, if there is one, and the context."""
    answer: Any
    ask: type[Ask] | None = None
    ability: str = ""
    """Name of the pipeline that a model must have."""
    many: bool = False
    """True if a list of inputs gets a list of answers."""
    method: str = "POST"
    media_type: str = "application/json"
    panel: Panel | None = None
    pipelines: Builders = field(default_factory=dict)
    """Pipelines to add to the models of the server."""


class Page(ABC):
    """A web page with a form; a subclass defines the class attributes and the methods."""

    link: str
    """Text of the links to the page."""
    title: str
    lead: str
    """Introduction."""
    button: str
    abilities: tuple[str, ...]
    """Names of pipelines. The page exists if a model has one of them."""
    pipelines: ClassVar[Builders] = {}
    """Pipelines to add to the models of the server."""
    computed_by: Sequence[Callable[..., Any]] = ()
    """Code that computes the figures, which the page shows."""
    template = "window.html"
    """Template of the page with the answer."""
    modules: Sequence[str] = ()
    """Scripts of the page with the answer. Default: the scripts of figures."""

    @abstractmethod
    def fields(self, values: Values, models: Models) -> Sequence[Field]:
        """Return the fields of the form."""

    def examples(self, models: Models) -> Sequence[Example]:
        """Return examples that fill in the form."""
        return ()

    def alerts(self, models: Models) -> Sequence[str]:
        """Return messages above the figures."""
        return ()

    @abstractmethod
    async def answer(self, values: Values, context: Context) -> dict[str, Any]:
        """Return the values of the template, such as `figures`, if all required fields are set."""


ROUTES: Mapping[str, Route] = Registry("routes", {})
"""Routes of extensions by path."""

PAGES: Mapping[str, type[Page]] = Registry("pages", {})
"""Web pages of extensions by path."""
