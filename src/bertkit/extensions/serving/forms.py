"""Form values of web pages, and pages with a result or an error."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from bertkit.errors import BertkitError
from bertkit.extensions.serving.request_context import request_error
from bertkit.web import RequestError

MAX_FIELDS = 32
"""Maximum number of fields of a form."""


async def form_values(request: Request) -> Mapping[str, str]:
    """Return the form values of a request, from its URL and its body. Other values are empty."""
    values = defaultdict(str, request.query_params)
    # The exception means that the body is not a form.
    with contextlib.suppress(ValueError):
        values |= parse_qsl((await request.body()).decode(), max_num_fields=MAX_FIELDS)
    return values


async def respond(shown: Callable[..., str], answer: Awaitable[str] | None) -> Response:
    """Return the page of a result, or the page with an error message if it fails.

    Args:
        shown: Function that renders the page without a result.
        answer: Awaitable of the page with the result. Default: render the page without a result.
    """
    status = 200
    try:
        html = shown() if answer is None else await answer
    except (BertkitError, RequestError) as error:
        failure = request_error(error)
        html, status = shown(alert=failure.message), failure.status
    return Response(html, status, media_type="text/html; charset=utf-8")
