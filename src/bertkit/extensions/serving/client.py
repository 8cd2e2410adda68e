"""A client of `bertkit serve`, for programs: `Client("http://127.0.0.1:8000").embed(texts)`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Self

import httpx
import numpy as np
from numpy.typing import NDArray

from bertkit.config import api_key
from bertkit.errors import DataError, ServeError

BUSY = (429, 503)
"""Statuses that ask to come again."""


class Client:
    """A server at an address; `key` is by default that of the environment, BERTKIT_KEY.

    A server that is busy is asked again when it says, for `patience` seconds in all; other
    refusals raise ServeError with its sentence. `more` of each question are further fields of the
    route, such as truncate=True or model="name"; /openapi.json lists them.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        patience: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        key = api_key("BERTKIT_KEY", key)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.url, self.patience = url, patience
        self.http = httpx.Client(base_url=url, headers=headers, timeout=60.0, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def ask(self, route: str, **fields: Any) -> Any:
        """What a route answers, as plain data; arrays and columns are sent as lists.

        Raises: ServeError, DataError for what JSON has no words for.
        """
        end = time.monotonic() + self.patience
        fields = {n: v.tolist() if hasattr(v, "tolist") else v for n, v in fields.items()}
        while True:
            try:
                reply = self.http.post(route, json=fields) if fields else self.http.get(route)
            except httpx.RequestError as error:
                raise ServeError(f"{self.url}{route}: no server answers ({error})") from None
            except (TypeError, ValueError) as error:  # a set, no number, half of a surrogate pair
                raise DataError(f"{route}: cannot be sent as JSON ({error})") from None
            if reply.status_code == 200:
                try:
                    return reply.json()
                except ValueError:
                    raise ServeError(f"{self.url}{route}: no JSON; is this bertkit?") from None
            # without that header nothing will change: a store is damaged, say
            again = reply.headers.get("retry-after") if reply.status_code in BUSY else None
            wait = _seconds(again or "")
            if again is None or time.monotonic() + wait > end:
                raise ServeError(f"{self.url}{route}: {_said(reply)}")
            time.sleep(wait)

    def embed(self, texts: str | Sequence[str], **more: Any) -> NDArray[np.float32]:
        """A vector for each text; one text gives one row. Shapes: (S, D)."""
        return np.asarray(self.ask("/embed", inputs=texts, **more), dtype=np.float32)

    def predict(self, inputs: Any, **more: Any) -> Any:
        """Labels of a text, or of each of a list of texts; for a model of pairs of a pair [a, b],
        or of each of a list of pairs.
        """
        return self.ask("/predict", inputs=inputs, **more)

    def ner(self, inputs: str | Sequence[str], **more: Any) -> Any:
        """Entities and tags of a text, or of several."""
        return self.ask("/ner", inputs=inputs, **more)

    def answer(self, question: str, context: str, **more: Any) -> Any:
        """Where the context answers the question."""
        return self.ask("/answer", inputs={"question": question, "context": context}, **more)

    def choose(self, text: str, choices: Sequence[str], **more: Any) -> Any:
        """Which of the choices goes on best."""
        return self.ask("/choose", inputs={"text": text, "choices": _several(choices)}, **more)

    def similarity(self, sentence: str, others: Sequence[str], **more: Any) -> list[float]:
        """The cosine of a sentence to each of the others."""
        inputs = {"source_sentence": sentence, "sentences": _several(others)}
        scores: list[float] = self.ask("/similarity", inputs=inputs, **more)
        return scores

    def rerank(self, query: str, texts: Sequence[str], **more: Any) -> Any:
        """Texts by how well they answer the query, best first, as their places and scores."""
        return self.ask("/rerank", query=query, texts=_several(texts), **more)

    def search(self, query: str, **more: Any) -> Any:
        """The documents of the server's store that answer a query best."""
        return self.ask("/search", query=query, **more)

    def fill_mask(self, inputs: str | Sequence[str], **more: Any) -> Any:
        """The likeliest pieces for each [MASK] of a text, or of several."""
        return self.ask("/fill-mask", inputs=inputs, **more)

    def next_sentence(self, a: str, b: str, **more: Any) -> Any:
        """How likely B follows A."""
        return self.ask("/next-sentence", inputs=[a, b], **more)

    def info(self) -> Any:
        """The server's models, what they answer, and its limits."""
        return self.ask("/info")


def _several(texts: str | Sequence[str]) -> list[str]:
    """One text as a list of it."""
    return [texts] if isinstance(texts, str) else list(texts)


def _seconds(given: str) -> float:
    """Of a Retry-After; what stands between may send a date, which says a second here."""
    try:
        return max(0.0, float(given))
    except ValueError:
        return 1.0


def _said(reply: httpx.Response) -> str:
    try:
        body = reply.json()
        if isinstance(body["error"], dict):  # as OpenAI's
            return str(body["error"]["message"])
        field = f" ({body['field']})" if body.get("field") else ""
        return f"{body['error']}{field}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"HTTP {reply.status_code}"
