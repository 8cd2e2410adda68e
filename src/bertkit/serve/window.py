"""The window: a page with a form, and what a model does with the text that is written in it."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from bertkit.errors import BertkitError
from bertkit.serve.asking import Asking, refusal
from bertkit.serve.gate import Refused
from bertkit.view.page import asking_form, asking_page, page


def add_window(app: FastAPI) -> None:
    """The page at /, which is not of the interface that /openapi.json describes."""

    @app.get("/", include_in_schema=False)
    async def window(request: Request, text: str = "", pair: str = "", model: str = "") -> Response:
        asking = Asking(request)
        names = list(asking.house.able("explain"))

        def form(said: str = "") -> str:
            return asking_form(names, model=model, text=text, pair=pair, said=said)

        if not text.strip():
            return _html(asking_page(form()))
        try:
            _, pipeline = asking.pipeline("explain", model or None)
            asked = [(text, pair.strip() or None)]
            (found,), _ = await asking.answers(pipeline, asked, field="text", truncate=True)
        except (BertkitError, Refused) as error:
            refused = refusal(error)
            return _html(asking_page(form(refused.sentence)), refused.status)
        other = f"<details><summary>Another text</summary>{form()}</details>"
        return _html(page(found, other))

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)  # browsers ask; there is none


def _html(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="text/html; charset=utf-8")
