"""Reading of form values, and responses with a web page that shows a result or an error."""

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
"""Maximum number of fields in a form."""


async def form_values(request: Request) -> Mapping[str, str]:
    """Read form values from the URL and body of a request. Fields that are missing are empty."""
    values = defaultdict(str, request.query_params)
    # A ValueError means that the body is not a form.
    with contextlib.suppress(ValueError):
        values |= parse_qsl((await request.body()).decode(), max_num_fields=MAX_FIELDS)
    return values


async def respond(shown: Callable[..., str], answer: Awaitable[str] | None) -> Response:
    """Respond with a page that shows the result or, if computing it fails, an error message.

    Args:
        shown: Function that renders the page without a result.
        answer: Awaitable that returns the page with the result. If it is None, the page is rendered
            without a result.
    """
    status = 200
    try:
        html = shown() if answer is None else await answer
    except (BertkitError, RequestError) as error:
        failure = request_error(error)
        html, status = shown(alert=failure.message), failure.status
    return Response(html, status, media_type="text/html; charset=utf-8")
