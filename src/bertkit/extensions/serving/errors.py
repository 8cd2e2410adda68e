"""Refusals: what a server says in place of an answer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why there is no answer."""

    error: str
    error_type: str
    field: str | None = None


class OpenAIError(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None


class OpenAIRefusal(msgspec.Struct, frozen=True):
    """Why there is no answer, in the form that OpenAI's clients read."""

    error: OpenAIError


def refusal_type(path: str) -> type[Refusal | OpenAIRefusal]:
    """The form of the refusals of a route."""
    return OpenAIRefusal if path.startswith("/v1/") else Refusal


class Refused(Exception):
    """A status, a sentence, and the field it is about."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        kind: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.kind, self.field = status, sentence, kind, field
        self.headers = headers or {}

    def body(self, path: str) -> bytes:
        """Encode the error as JSON, in the form of OpenAI for its routes, else of TEI."""
        refusal: Refusal | OpenAIRefusal = Refusal(self.sentence, self.kind, self.field)
        if refusal_type(path) is OpenAIRefusal:
            refusal = OpenAIRefusal(OpenAIError(self.sentence, self.kind, self.field))
        return msgspec.json.encode(refusal)

    def response(self, path: str) -> Response:
        """Return the error as a response."""
        return Response(self.body(path), self.status, self.headers, media_type="application/json")


def invalid(sentence: str, field: str | None = None) -> Refused:
    return Refused(422, sentence, kind="validation", field=field)


def too_much(sentence: str, field: str | None = None) -> Refused:
    return Refused(413, sentence, kind="too_large", field=field)


def busy(seconds: int, sentence: str) -> Refused:
    return Refused(429, sentence, kind="overloaded", headers={"retry-after": str(seconds)})


DEFECT = Refused(500, "the server failed at this; its log has the request's id", kind="defect")
