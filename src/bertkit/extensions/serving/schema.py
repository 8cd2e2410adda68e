"""Types of requests and responses for the routes that this extension defines.

The fields have the same names as in text-embeddings-inference (TEI, by Hugging Face) and OpenAI,
which tests/extensions/serving/test_clients.py checks.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from bertkit.config import Count
from bertkit.extensions.serving.limits import Limits
from bertkit.tasks.task import JsonObject
from bertkit.web import ANY, Ask, Cut, Neutral, Text, TextList, Texts

Pair = Annotated[list[Text], Meta(min_length=2, max_length=2)]
TextOrPair = Annotated[list[Text], Meta(min_length=1, max_length=2)]


TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Inputs = Text | Annotated[list[Text | TokenId | TokenIds], Meta(min_length=1)]


class Directed(Cut, frozen=True, kw_only=True):
    """Fields of requests that can select at which end texts are truncated."""

    truncation_direction: Literal["right", "Right", "left", "Left"] | None = None
    """End at which a long text is truncated. Default: the end that the tokenizer specifies, which
    is usually right."""


class VectorAsk(Directed, frozen=True, kw_only=True):
    """Fields of requests that compute embeddings."""

    prompt_name: str | None = None
    """Name of the model prompt to prepend to each text, or "" for no prompt. Default: the model's
    default prompt, if any."""


class TextsAsk(VectorAsk, frozen=True, kw_only=True):
    """Request for sparse embeddings of texts, or for the states of their tokens."""

    EXAMPLE: ClassVar = {"inputs": ["a cat on a mat", "a dog in a fog"]}

    inputs: Inputs
    """A text, the token ids of a text, or a list of these."""


class EmbedAsk(TextsAsk, frozen=True, kw_only=True):
    """Request for embeddings of texts."""

    normalize: bool = True
    """Whether to normalize embeddings to length 1."""
    dimensions: Count | None = None
    """Number of dimensions to return, for Matryoshka models. Default: all."""


class OpenAIAsk(VectorAsk, frozen=True, kw_only=True):
    """Request for embeddings of texts, in OpenAI's format."""

    EXAMPLE: ClassVar = {"input": "a cat on a mat", "model": "all-MiniLM-L6-v2"}

    input: Inputs
    """A text, the token ids of a text, or a list of these."""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None
    """Ignored."""


class PredictAsk(Directed, frozen=True, kw_only=True):
    """Request to predict the labels of texts or pairs."""

    EXAMPLE: ClassVar = {"inputs": "a fine film"}

    inputs: Text | Annotated[list[Text | TextOrPair], Meta(min_length=1)]
    """A text or a list of texts. For a model that classifies pairs: [text], [a, b], or a list of
    these."""
    raw_scores: bool = False
    """Whether to return logits instead of probabilities."""


class Sentences(JsonObject, frozen=True, kw_only=True):
    """A sentence, and the sentences to compare it with."""

    source_sentence: Text
    sentences: TextList


class SimilarityAsk(VectorAsk, frozen=True, kw_only=True):
    """Request to compare a sentence with other sentences."""

    EXAMPLE: ClassVar = {
        "inputs": {"source_sentence": "a cat", "sentences": ["a kitten", "a bridge"]}
    }

    inputs: Sentences


class QueryAsk(Directed, frozen=True, kw_only=True):
    """Fields of requests that rank texts for a query."""

    query: Text


class RerankAsk(QueryAsk, frozen=True, kw_only=True):
    """Request to rank texts by relevance to a query."""

    EXAMPLE: ClassVar = {"query": "what purrs?", "texts": ["a cat", "a bridge"]}

    texts: TextList
    raw_scores: bool = False
    """Whether to return logits instead of their sigmoid."""
    return_text: bool = False


class RankAsk(QueryAsk, frozen=True, kw_only=True):
    """Request to rank documents by relevance to a query, in the format of Cohere and Jina."""

    EXAMPLE: ClassVar = {"query": "what purrs?", "documents": ["a cat", "a bridge"]}
    NEUTRAL: ClassVar[Neutral] = {
        "max_chunks_per_doc": (1,),
        "priority": (ANY,),
        "rank_fields": (["text"],),
        "relevant_spans": (),
    }

    documents: Annotated[list[Text | dict[str, str]], Meta(min_length=1)]
    """Documents to rank: texts, or objects with the field `text`."""
    top_n: Count | None = None
    """Number of documents to return. Default: all documents."""
    return_documents: bool = True
    """Whether to include the documents in the results."""
    max_tokens_per_doc: Count | None = None
    """Accepted for compatibility. The value has no effect, and must be at least the maximum length
    of the model."""
    truncate: bool | None = True
    """Whether to truncate documents that are too long."""


class ExplainAsk(Cut, frozen=True, kw_only=True):
    """Request for the internal values that a model computes for a text."""

    EXAMPLE: ClassVar = {"inputs": "The cat sat on the mat."}

    inputs: Text | Pair
    """A text or a pair."""
    off: Annotated[tuple[str, ...], Meta(max_length=4096)] = ()
    """Attention heads to switch off, as LAYER.HEAD, where both are counted from 1."""
    hide: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=512)] = ()
    """Indices of words to mask together, counted from 0."""


class TokenizeAsk(Ask, frozen=True, kw_only=True):
    """Request to tokenize texts."""

    EXAMPLE: ClassVar = {"inputs": "unaffable cats"}

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None
    """Name of the model prompt to prepend to each text. Default: no prompt."""


class DecodeAsk(Ask, frozen=True, kw_only=True):
    """Request to convert token ids to texts."""

    EXAMPLE: ClassVar = {"ids": [101, 4937, 102]}

    ids: Annotated[list[TokenId | TokenIds], Meta(min_length=1)]
    """The token ids of a text, or a list of these."""
    skip_special_tokens: bool = True


# ---- Responses


class Label(msgspec.Struct, frozen=True):
    """A label and its probability or, for a regression model, the predicted value."""

    label: str
    score: float
    truncated: bool = False


class Rank(msgspec.Struct, frozen=True, omit_defaults=True):
    """The relevance of a text. `index` is the position of the text in the request."""

    index: int
    score: float
    text: str | None = None
    truncated: bool = False


class Ranked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The relevance of a document, from 0 to 1. `index` is its position in the request."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class SparseValue(msgspec.Struct, frozen=True, order=True, gc=False):
    """The weight of a token in a sparse embedding, and the id of the token."""

    index: int
    value: float


class TokenInfo(msgspec.Struct, frozen=True, gc=False):
    """A token of a text, which is at characters [start, stop).

    For special tokens that the tokenizer added, `start` and `stop` are null.
    """

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
    """The number of tokens in a request."""

    prompt_tokens: int
    total_tokens: int


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Documents sorted by relevance. Cohere defines the field `meta`, and Jina defines `usage`."""

    id: str
    model: str
    results: list[Ranked]
    meta: dict[str, dict[str, int]]
    usage: Usage


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """A list of embeddings in OpenAI's format."""

    object: str = "list"
    data: list[EmbeddingObject]
    model: str
    usage: Usage


class ModelInfo(msgspec.Struct, frozen=True):
    """A model of the server. `answers` lists the pipelines that it supports."""

    name: str
    family: str
    answers: list[str]
    labels: list[str]
    length: int
    dimension: int
    precision: str
    prompts: list[str]


class OpenAIModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in OpenAI's format. `created` is the time at which the server started."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "bertkit"


class OpenAIModels(msgspec.Struct, frozen=True, kw_only=True):
    """The models of the server, in OpenAI's format."""

    object: str = "list"
    data: list[OpenAIModel]


class Info(msgspec.Struct, frozen=True):
    """The models, store and limits of the server."""

    version: str
    models: list[ModelInfo]
    store: str | None
    limits: Limits
    max_client_batch_size: int
    model_id: str | None = None
    """Name of the first model. This field, `model_type` and the two `max_` fields are defined by
    TEI."""
    model_type: dict[str, dict[str, Any]] | None = None
    max_input_length: int | None = None
