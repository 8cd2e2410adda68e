"""Routes and web panels that are generated from the types that pipelines declare."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast, get_origin

import msgspec
from msgspec import Meta

from bertkit.config import explained
from bertkit.errors import ConfigError
from bertkit.extensions.serving.answers import lines_of, record
from bertkit.extensions.serving.request_context import RequestContext
from bertkit.extensions.serving.schema import Pair
from bertkit.web import ROUTES, Cut, Panel, Route, Text, Texts, invalid


def is_object(item: Any) -> bool:
    """Return whether items of a type are JSON objects.

    Args:
        item: Type of the items that a pipeline takes.
    """
    return isinstance(item, type) and issubclass(item, msgspec.Struct)


# ---- Routes


class PairsAsk(Cut, frozen=True, kw_only=True):
    """Request to a pipeline whose items are pairs."""

    inputs: Annotated[list[Text | Pair], Meta(min_length=1)]
    """A pair [a, b], or a list of pairs."""

    def __post_init__(self) -> None:
        # Check this here, because msgspec does not support unions of two list types.
        texts = sum(isinstance(part, str) for part in self.inputs)
        if texts and not texts == len(self.inputs) == 2:
            raise invalid("expected a pair [a, b], or a list of pairs", "inputs")


def request_type(name: str, pipeline: Any) -> type[Cut]:
    """Create the request type of a pipeline, with the field `inputs` and the pipeline's options.

    Args:
        name: Name of the pipeline.
        pipeline: The pipeline.
    """
    base: type[Cut] = Cut
    item: Any = pipeline.item
    example, texts = pipeline.example, explained(pipeline.options)
    fields: list[Any] = [
        (f.name, Annotated[f.type, Meta(description=texts.get(f.name, ""))], f.default)
        for f in msgspec.structs.fields(pipeline.options)
    ]
    if item is str:
        fields.append(("inputs", Texts))
    elif is_object(item):
        fields.append(("inputs", item | Annotated[list[item], Meta(min_length=1)]))
        example = dict(zip(item.__struct_fields__, example, strict=True))
    else:
        base = PairsAsk
    title, namespace = name.title().replace("-", ""), {"EXAMPLE": {"inputs": example}}
    kind = msgspec.defstruct(
        f"{title}Ask", fields, bases=(base,), namespace=namespace, frozen=True, kw_only=True
    )
    return cast("type[Cut]", kind)


def inputs_of(ask: Any, item: Any) -> tuple[list[Any], bool]:
    """Return the items in a request, and whether they were passed as a list.

    Args:
        ask: The request.
        item: Type of the items that the pipeline takes.
    """
    is_pair = item is not str and not is_object(item)
    many = isinstance(ask.inputs, list) and not (is_pair and isinstance(ask.inputs[0], str))
    items = ask.inputs if many else [ask.inputs]
    if item is str:
        return items, many
    return [tuple(it) if is_pair else msgspec.structs.astuple(it) for it in items], many


def pipeline_routes(pipelines: Mapping[str, Any]) -> list[Route]:
    """Create a route for each pipeline that declares an example and has no other route.

    Args:
        pipelines: Pipelines by name.
    """
    return [
        pipeline_route(name, pipeline)
        for name, pipeline in pipelines.items()
        if f"/{name}" not in ROUTES and getattr(pipeline, "example", None) is not None
    ]


RESERVED = {"inputs", "model", "other", "parameters", "text", "truncate", "what"}
"""Names of request and form fields, which the options of a pipeline cannot use."""


def pipeline_route(name: str, pipeline: Any) -> Route:
    """Create the route of a pipeline. The path of the route is the name of the pipeline.

    Args:
        name: Name of the pipeline.
        pipeline: The pipeline.

    Raises:
        ConfigError: If the pipeline's item type is not supported, or the name of an option is
            reserved.
    """
    item, options = pipeline.item, msgspec.structs.fields(pipeline.options)
    is_small = is_object(item) and len(item.__struct_fields__) <= 2
    if not (item is str or get_origin(item) is tuple or is_small):
        raise ConfigError(f"pipeline {name}: items must be str, pairs, or Structs of 1 or 2 fields")
    if reserved := RESERVED & {option.name for option in options}:
        raise ConfigError(
            f"pipeline {name}: the option name {min(reserved)!r} is reserved; rename the option"
        )

    async def predictions(ask: Any, context: RequestContext) -> Any:
        items, many = inputs_of(ask, item)
        _, pipeline = context.pipeline(name, ask.model)
        chosen = {option.name: getattr(ask, option.name) for option in options}
        answers, cut = await context.answers(pipeline, items, field="inputs", ask=ask, **chosen)
        return context.reply(answers if many else answers[0], cut)

    summary, _, _ = (inspect.getdoc(getattr(pipeline, "task", pipeline)) or "").partition("\n\n")
    predictions.__name__, predictions.__doc__ = name.replace("-", "_"), summary.replace("\n", " ")
    request = request_type(name, pipeline)
    return Route(f"/{name}", predictions, pipeline.prediction, request, name, many=True)


# ---- Panels


def pipeline_panel(name: str, pipeline: Any) -> Panel:
    """Create the web panel of a pipeline whose items have at most two fields.

    Args:
        name: Name of the pipeline.
        pipeline: The pipeline.
    """
    first, *others = ["text"] if pipeline.item is str else ["text", "second text"]
    if is_object(pipeline.item):
        first, *others = pipeline.item.__struct_fields__
    example = [pipeline.example] if isinstance(pipeline.example, str) else [*pipeline.example]
    several = not all(isinstance(part, str) for part in example)
    label = "".join(others).capitalize()

    def items(text: str, other: str) -> Sequence[Any]:
        if not others:
            return [text]
        return [(text, lines_of(other) if several else other)]

    return Panel(
        name.replace("-", " ").capitalize(),
        first.capitalize(),
        record,
        type(pipeline).run,
        ("an example", *(t if isinstance(t, str) else "\n".join(t) for t in example)),
        other=f"{label}, one per line" if several else label,
        items=items,
        form=pipeline.options,
    )
