"""Forms of pages: what their fields hold, checked as the bodies of requests are."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from bertkit.errors import BertkitError
from bertkit.extensions.generation.corruption import Damage
from bertkit.extensions.serving.errors import Refused, invalid
from bertkit.extensions.serving.request_bodies import A, refused_by
from bertkit.extensions.serving.request_context import refusal
from bertkit.extensions.serving.schema import Ask, Text

MAX_BEAMS = 8
"""Beams at most that a page shows."""


class StepsForm(Ask, frozen=True, kw_only=True):
    text: Text
    beams: Annotated[int, Meta(ge=1, le=MAX_BEAMS)] | None = None
    """By default those of the model's folder."""


class GapForm(Ask, frozen=True, kw_only=True):
    text: Text
    causal: str | None = None
    elmo: str | None = None
    masked: str | None = None


class DamageForm(Ask, frozen=True, kw_only=True):
    text: Text
    damage: Damage = "spans"
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0


def filled(kind: type[A], **values: str) -> A:
    """A form from its fields, of which empty ones are left out. Raises: Refused with the field."""
    given = {name: value for name, value in values.items() if value.strip()}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        refused = refused_by(str(error), kind)  # a page has no place for the field but the sentence
        raise invalid(f"{refused.field}: {refused.sentence}", refused.field) from None


async def values(request: Request, *names: str) -> list[str]:
    """The value of each name in the address or in a form's body; "" where it is left out."""
    sent = dict(request.query_params)
    with contextlib.suppress(ValueError):  # a body that is no form
        sent |= parse_qsl((await request.body()).decode(), max_num_fields=len(names))
    return [sent.get(name, "") for name in names]


async def answered(shown: Callable[..., str], answer: Awaitable[str] | None) -> Response:
    """The page of the answer; the page as it is before a question, or with what is wrong in it."""
    status = 200
    try:
        html = shown() if answer is None else await answer
    except (BertkitError, Refused) as error:
        refused = refusal(error)
        html, status = shown(alert=refused.sentence), refused.status
    return Response(html, status, media_type="text/html; charset=utf-8")
