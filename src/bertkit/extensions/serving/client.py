"""Python client for `bertkit serve`."""

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
"""HTTP statuses of requests that may succeed if they are retried later."""


class Client:
    """A client for a server that runs `bertkit serve`.

    All methods raise ServeError if the server cannot be reached or returns an error. The keyword
    arguments `more` set further fields of the request, such as truncate=True or model="name". The
    route /openapi.json lists all fields.

    Args:
        url: Address of the server.
        key: API key. Default: the value of the environment variable BERTKIT_KEY.
        patience: Maximum time in seconds during which a request to an overloaded server is retried.
        transport: httpx transport to send requests with. Default: the HTTP transport of httpx.

    Example:
        >>> with Client("http://127.0.0.1:8000") as client:
        ...     vectors = client.embed(["a cat", "a dog"])
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
        """Send a request to any route.

        Args:
            route: Path of the route.
            fields: Fields of the JSON body. Arrays and columns are sent as lists. If there are no
                fields, a GET request is sent.

        Returns:
            The decoded JSON response.

        Raises:
            DataError: If a field cannot be encoded as JSON.
            ServeError: If the server cannot be reached or returns an error.
        """
        end = time.monotonic() + self.patience
        fields = {n: v.tolist() if hasattr(v, "tolist") else v for n, v in fields.items()}
        while True:
            try:
                reply = self.http.post(route, json=fields) if fields else self.http.get(route)
            except httpx.RequestError as error:
                raise ServeError(f"{self.url}{route}: cannot reach the server ({error})") from None
            except (TypeError, ValueError) as error:
                # JSON cannot encode sets, NaN or lone surrogates.
                raise DataError(f"{route}: a field cannot be encoded as JSON ({error})") from None
            if reply.status_code == 200:
                try:
                    return reply.json()
                except ValueError:
                    raise ServeError(f"{self.url}{route}: invalid JSON; check the URL") from None
            # If this header is missing, a retry cannot succeed, for example because a store is
            # damaged.
            retry_after = reply.headers.get("retry-after") if reply.status_code in BUSY else None
            wait = _parse_seconds(retry_after or "")
            if retry_after is None or time.monotonic() + wait > end:
                raise ServeError(f"{self.url}{route}: {_error_message(reply)}")
            time.sleep(wait)

    def embed(self, texts: str | Sequence[str], **more: Any) -> NDArray[np.float32]:
        """Return an embedding for each text.

        Args:
            texts: A text or a list of texts.
            more: Further fields of the request.

        Shapes:
            Returns (S, D). For a single text, S is 1.
        """
        return np.asarray(self.ask("/embed", inputs=texts, **more), dtype=np.float32)

    def predict(self, inputs: Any, **more: Any) -> Any:
        """Return the predicted labels of a text or pair, or of each element of a list.

        Args:
            inputs: A text or a list of texts. For a model that classifies pairs, a pair [a, b] or a
                list of pairs.
            more: Further fields of the request.
        """
        return self.ask("/predict", inputs=inputs, **more)

    def ner(self, inputs: str | Sequence[str], **more: Any) -> Any:
        """Return the entities and tags in a text, or in each text of a list.

        Args:
            inputs: A text or a list of texts.
            more: Further fields of the request.
        """
        return self.ask("/ner", inputs=inputs, **more)

    def answer(self, question: str, context: str, **more: Any) -> Any:
        """Return the span of the context that answers the question.

        Args:
            question: The question.
            context: The passage that contains the answer.
            more: Further fields of the request.
        """
        return self.ask("/answer", inputs={"question": question, "context": context}, **more)

    def choose(self, text: str, choices: Sequence[str], **more: Any) -> Any:
        """Return the most probable choice for a text.

        Args:
            text: The text.
            choices: Choices to select from.
            more: Further fields of the request.
        """
        return self.ask("/choose", inputs={"text": text, "choices": _as_list(choices)}, **more)

    def similarity(self, sentence: str, others: Sequence[str], **more: Any) -> list[float]:
        """Return the cosine similarity between a sentence and each of the others.

        Args:
            sentence: Sentence to compare the others with.
            others: The other sentences.
            more: Further fields of the request.
        """
        inputs = {"source_sentence": sentence, "sentences": _as_list(others)}
        scores: list[float] = self.ask("/similarity", inputs=inputs, **more)
        return scores

    def rerank(self, query: str, texts: Sequence[str], **more: Any) -> Any:
        """Return the indices and scores of texts, sorted by relevance to a query, best first.

        Args:
            query: The query.
            texts: Texts to rank.
            more: Further fields of the request.
        """
        return self.ask("/rerank", query=query, texts=_as_list(texts), **more)

    def search(self, query: str, **more: Any) -> Any:
        """Return the documents in the server's store that best match a query.

        Args:
            query: The query.
            more: Further fields of the request.
        """
        return self.ask("/search", query=query, **more)

    def fill_mask(self, inputs: str | Sequence[str], **more: Any) -> Any:
        """Return the most probable tokens for each [MASK] in a text, or in each text of a list.

        Args:
            inputs: A text or a list of texts.
            more: Further fields of the request.
        """
        return self.ask("/fill-mask", inputs=inputs, **more)

    def next_sentence(self, a: str, b: str, **more: Any) -> Any:
        """Return the probability that text B follows text A.

        Args:
            a: Text A.
            b: Text B.
            more: Further fields of the request.
        """
        return self.ask("/next-sentence", inputs=[a, b], **more)

    def info(self) -> Any:
        """Return the server's models with the routes that they support, and the server's limits."""
        return self.ask("/info")


def _as_list(texts: str | Sequence[str]) -> list[str]:
    """Return a list of texts. A single text becomes a list with one element."""
    return [texts] if isinstance(texts, str) else list(texts)


def _parse_seconds(header: str) -> float:
    """Parse a Retry-After header. If it is a date, as some proxies send, return one second."""
    try:
        return max(0.0, float(header))
    except ValueError:
        return 1.0


def _error_message(reply: httpx.Response) -> str:
    try:
        body = reply.json()
        if isinstance(body["error"], dict):
            # The error is in OpenAI's format.
            return str(body["error"]["message"])
        field = f" ({body['field']})" if body.get("field") else ""
        return f"{body['error']}{field}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"HTTP {reply.status_code}"
