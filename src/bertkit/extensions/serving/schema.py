"""Request and response types of the routes that this extension defines.

The names are the same as in text-embeddings-inference (TEI, by Hugging Face) and OpenAI
(test: tests/extensions/serving/test_clients.py::test_openai).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from bertkit.config import Count
from bertkit.extensions.serving.limits import Limits
from bertkit.tasks.task import JsonObject
from bertkit.web import Ask, Cut, Neutral, Text, TextList, Texts

Pair = Annotated[list[Text], Meta(min_length=2, max_length=2)]
TextOrPair = Annotated[list[Text], Meta(min_length=1, max_length=2)]


class Directed(Cut, frozen=True, kw_only=True):
    """Fields of requests that select the side of truncation."""

    truncation_direction: Literal["right", "Right", "left", "Left"] = "right"
    """Side from which texts are truncated. If left, texts that are too long are an error."""


class VectorAsk(Directed, frozen=True, kw_only=True):
    """Fields of requests that compute embeddings."""

    prompt_name: str | None = None
    """Name of the model's prompt to prepend to each text, or "" for no prompt. Default: the model's
    default prompt, if any."""


class EmbedAsk(VectorAsk, frozen=True, kw_only=True):
    """Request for embeddings of texts."""

    EXAMPLE: ClassVar = {"inputs": ["a cat on a mat", "a dog in a fog"]}

    inputs: Texts
    normalize: bool = True
    """Whether to normalize embeddings to length 1."""
    dimensions: Count | None = None
    """Number of dimensions to return, for a Matryoshka model. Default: all."""


class OpenAIAsk(VectorAsk, frozen=True, kw_only=True):
    """Request for embeddings of texts, in the format of OpenAI."""

    EXAMPLE: ClassVar = {"input": "a cat on a mat", "model": "all-MiniLM-L6-v2"}

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None
    """Ignored."""


class PredictAsk(Directed, frozen=True, kw_only=True):
    """Request for the labels of texts or pairs."""

    EXAMPLE: ClassVar = {"inputs": "a fine film"}
    NEUTRAL: ClassVar[Neutral] = {"raw_scores": (False,)}

    inputs: Text | Annotated[list[Text | TextOrPair], Meta(min_length=1)]
    """A text or a list of texts. For a model of pairs: [text], [a, b], or a list of these."""


class Sentences(JsonObject, frozen=True, kw_only=True):
    """Sentence, and the sentences that it is compared with."""

    source_sentence: Text
    sentences: TextList


class SimilarityAsk(VectorAsk, frozen=True, kw_only=True):
    """Request for the similarities of sentences."""

    EXAMPLE: ClassVar = {
        "inputs": {"source_sentence": "a cat", "sentences": ["a kitten", "a bridge"]}
    }

    inputs: Sentences


class RerankAsk(Directed, frozen=True, kw_only=True):
    """Request for the relevance of texts to a query."""

    EXAMPLE: ClassVar = {"query": "what purrs?", "texts": ["a cat", "a bridge"]}

    query: Text
    texts: TextList
    raw_scores: bool = False
    """Whether to return logits instead of their sigmoid."""
    return_text: bool = False


class ExplainAsk(Cut, frozen=True, kw_only=True):
    """Request for the internal values of a model for a text."""

    EXAMPLE: ClassVar = {"inputs": "The cat sat on the mat."}

    inputs: Text | Pair
    """A text or a pair."""
    off: Annotated[tuple[str, ...], Meta(max_length=4096)] = ()
    """Heads to switch off, as LAYER.HEAD, counted from 1."""
    hide: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=512)] = ()
    """Indices of words to mask together, counted from 0."""


class TokenizeAsk(Ask, frozen=True, kw_only=True):
    """Request for the tokens of texts."""

    EXAMPLE: ClassVar = {"inputs": "unaffable cats"}
    NEUTRAL: ClassVar[Neutral] = {"prompt_name": ()}

    inputs: Texts
    add_special_tokens: bool = True


# ---- Responses


class Label(msgspec.Struct, frozen=True):
    """A label and its probability or, for a regression model, the predicted value."""

    label: str
    score: float
    truncated: bool = False


class Rank(msgspec.Struct, frozen=True, omit_defaults=True):
    """The relevance of a text, which is given by its index in the request."""

    index: int
    score: float
    text: str | None = None
    truncated: bool = False


class TokenInfo(msgspec.Struct, frozen=True, gc=False):
    """A token: characters [start, stop) of the text, or null for special tokens that were added."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class EmbeddingObject(msgspec.Struct, frozen=True, kw_only=True):
    """An embedding, or its bytes (float32, little-endian) in base64."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str
    truncated: bool = False


class Usage(msgspec.Struct, frozen=True):
    """Number of tokens of a request."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """Embeddings, in the format of OpenAI."""

    object: str = "list"
    data: list[EmbeddingObject]
    model: str
    usage: Usage


class ModelInfo(msgspec.Struct, frozen=True):
    """A model of the server. `answers` contains the pipelines that it supports."""

    name: str
    family: str
    answers: list[str]
    labels: list[str]
    length: int
    dimension: int
    precision: str
    prompts: list[str]


class OpenAIModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model, in the format of OpenAI. `created` is the start of the server."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "bertkit"


class OpenAIModels(msgspec.Struct, frozen=True, kw_only=True):
    """Models of the server, in the format of OpenAI."""

    object: str = "list"
    data: list[OpenAIModel]


class Info(msgspec.Struct, frozen=True):
    """Models, store, and limits of the server."""

    version: str
    models: list[ModelInfo]
    store: str | None
    limits: Limits
