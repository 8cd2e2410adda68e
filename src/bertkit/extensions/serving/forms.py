"""Forms of pages: their values, and the page of an answer or an error."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from bertkit.errors import BertkitError
from bertkit.extensions.serving.request_context import refusal
from bertkit.web import RequestError

MAX_FIELDS = 32
"""Maximum number of fields of a form."""


async def form_values(request: Request) -> Mapping[str, str]:
    """Return the values in the address and in the body of a request; others are empty."""
    values = defaultdict(str, request.query_params)
    with contextlib.suppress(ValueError):  # The body is not a form.
        values |= parse_qsl((await request.body()).decode(), max_num_fields=MAX_FIELDS)
    return values


async def answered(shown: Callable[..., str], answer: Awaitable[str] | None) -> Response:
    """Return the page of the answer, or the page without one, with the error if there is one."""
    status = 200
    try:
        html = shown() if answer is None else await answer
    except (BertkitError, RequestError) as error:
        refused = refusal(error)
        html, status = shown(alert=refused.message), refused.status
    return Response(html, status, media_type="text/html; charset=utf-8")
