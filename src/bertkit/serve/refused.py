"""What a server says instead of an answer: one sentence, its kind and its field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Refused(Exception):
    """An answer that is no answer: a status, a sentence, and the field it is about."""

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
        """As TEI writes errors or, of its routes, OpenAI."""
        said: dict[str, Any] = {"error": self.sentence, "error_type": self.kind}
        if self.field is not None:
            said["field"] = self.field
        if path.startswith("/v1/"):
            said = {"error": {"message": self.sentence, "type": self.kind, "param": self.field}}
        return msgspec.json.encode(said)


def too_much(sentence: str, field: str | None = None) -> Refused:
    return Refused(413, sentence, kind="too_large", field=field)


def busy(seconds: int, sentence: str) -> Refused:
    return Refused(429, sentence, kind="overloaded", headers={"retry-after": str(seconds)})


DEFECT = Refused(500, "the server failed at this; its log has the request's id", kind="defect")
