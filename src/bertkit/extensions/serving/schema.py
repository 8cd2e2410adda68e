"""Request and answer types, with the names of TEI and OpenAI where these have the route.

TEI is Hugging Face's text-embeddings-inference. `request_bodies` removes fields of both
specifications that change nothing before a request is converted to these types.
(test: tests/extensions/serving/test_clients.py::test_openai)
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import Meta

from bertkit.config import Count, Settings
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.serving.errors import invalid
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.views.contexts import CHARACTERS, TEXTS
from bertkit.tasks import Task

Text = Annotated[str, Meta(min_length=1)]
TextList = Annotated[list[Text], Meta(min_length=1)]
Texts = Text | TextList
Choices = Annotated[list[Text], Meta(min_length=2)]
Pair = Annotated[list[Text], Meta(min_length=2, max_length=2)]
TextOrPair = Annotated[list[Text], Meta(min_length=1, max_length=2)]


class Body(Settings, frozen=True, kw_only=True):
    """A request's body, or an object in it."""


class Ask(Body, frozen=True, kw_only=True):
    """Fields of every request."""

    EXAMPLE: ClassVar[dict[str, Any]] = {}

    model: str | None = None
    """Name of the model; by default the first that can answer."""
    parameters: Annotated[dict[str, Any], Meta(max_length=0)] = msgspec.field(default_factory=dict)
    """Further fields of the request, which clients of the hub may put here."""


class Cut(Ask, frozen=True, kw_only=True):
    truncate: bool | None = None
    """Truncate texts that are too long, and say so, in place of an error; by default what the
    server was started with (--truncate)."""


class Directed(Cut, frozen=True, kw_only=True):
    truncation_direction: Literal["right", "Right", "left", "Left"] = "right"
    """Side from which texts are truncated. If left, a text that is too long is an error."""


class VectorAsk(Directed, frozen=True, kw_only=True):
    prompt_name: str | None = None
    """Name of the model's prompt to put before each text; by default its default prompt, if any;
    "" for none."""


class EmbedAsk(VectorAsk, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"inputs": ["a cat on a mat", "a dog in a fog"]}

    inputs: Texts
    normalize: bool = True
    """Scale vectors to length 1."""
    dimensions: Count | None = None
    """Return the first dimensions only, for a Matryoshka model."""


class OpenAIAsk(VectorAsk, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"input": "a cat on a mat", "model": "all-MiniLM-L6-v2"}

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None
    """Ignored."""


class StreamOptions(Body, frozen=True, kw_only=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Ignored."""


class WriteAsk(Ask, frozen=True, kw_only=True):
    """How a text is to be written, by OpenAI's names."""

    max_tokens: Count | None = None
    """Tokens after which a text is cut; 256 by default."""
    max_completion_tokens: Count | None = None
    """The same, by its newer name."""
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    """0 takes the most probable token. Default: the model's own, or 1."""
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Count | None = None
    min_p: Annotated[float, Meta(ge=0.0, lt=1.0)] | None = None
    seed: Annotated[int, Meta(ge=0)] | None = None
    """The same request with the same seed gives the same text; 0 by default."""
    stop: Text | Annotated[list[Text], Meta(max_length=4)] = msgspec.field(default_factory=list)
    """A text ends before any of these."""
    n: Annotated[int, Meta(ge=1, le=8)] = 1
    """Texts for each prompt."""
    stream: bool = False
    """Send the text in pieces, as events of a server."""
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Ignored."""


class CompletionAsk(WriteAsk, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"prompt": "Once upon a time", "max_tokens": 20}

    prompt: Texts


class ChatAsk(WriteAsk, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"messages": [{"role": "user", "content": "Who wrote Faust?"}]}

    messages: Annotated[list[Message], Meta(min_length=1)]


class TranslateAsk(Ask, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"inputs": "Guten Morgen."}

    inputs: Texts
    beams: Annotated[int, Meta(ge=1, le=16)] | None = None
    """Beams of beam search; by default those of the model's folder."""


class PredictAsk(Directed, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"inputs": "a fine film"}

    inputs: Text | Annotated[list[Text | TextOrPair], Meta(min_length=1)]
    """A text or a list of texts; for a model of pairs [text], a pair [a, b], or a list of those."""


class Sentences(Body, frozen=True, kw_only=True):
    source_sentence: Text
    sentences: TextList


class SimilarityAsk(VectorAsk, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {
        "inputs": {"source_sentence": "a cat", "sentences": ["a kitten", "a bridge"]}
    }

    inputs: Sentences


class RerankAsk(Directed, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"query": "what purrs?", "texts": ["a cat", "a bridge"]}

    query: Text
    texts: TextList
    raw_scores: bool = False
    """Return logits in place of their sigmoid."""
    return_text: bool = False


class SearchAsk(Cut, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"query": "wings at high speed", "top": 3}

    query: Text
    top: Annotated[int, Meta(ge=1, le=1000)] = 10
    where: Annotated[tuple[Annotated[str, Meta(max_length=1000)], ...], Meta(max_length=32)] = ()
    """Conditions such as year>=1960; all must hold."""
    hybrid: bool = False
    """Join the hits by meaning with the hits by words."""
    min_score: float | None = None
    """Leave out hits with a lower score."""


class ExplainAsk(Cut, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"inputs": "The cat sat on the mat."}

    inputs: Text | Pair
    """A text, or a pair."""
    off: Annotated[tuple[str, ...], Meta(max_length=4096)] = ()
    """Heads to switch off, as LAYER.HEAD, from 1."""
    hide: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=512)] = ()
    """Words to mask together, by their places from 0."""


class ContextsAsk(Cut, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"word": "bank", "inputs": ["a bank by the river", "a bank lends money"]}

    word: Text
    inputs: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=CHARACTERS)]],
        Meta(min_length=2, max_length=TEXTS),
    ]
    """Texts that contain the word."""


class FillAsk(Cut, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"inputs": "the cat sat on the [MASK].", "top": 3}

    inputs: Texts
    top: Annotated[int, Meta(ge=1, le=100)] = 10


class NextAsk(Cut, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"inputs": ["It rained.", "The street was wet."]}

    inputs: Annotated[list[Text | Pair], Meta(min_length=1)]
    """A pair [a, b], or a list of pairs."""

    def __post_init__(self) -> None:
        # msgspec knows no union of two kinds of list
        texts = sum(isinstance(part, str) for part in self.inputs)
        if texts and not texts == len(self.inputs) == 2:
            raise invalid("expected a pair [a, b], or a list of pairs", "inputs")


class TokenizeAsk(Ask, frozen=True, kw_only=True):
    EXAMPLE: ClassVar = {"inputs": "unaffable cats"}

    inputs: Texts
    add_special_tokens: bool = True


@cache
def task_ask(task: type[Task[Any, Any]]) -> type[Cut]:
    """A task's request type: a text for one field, an object for several; one or a list of them."""
    _, *others = [task.example_item] if isinstance(task.example_item, str) else task.example_item
    kinds: list[Any] = [Text, *(Text if isinstance(other, str) else Choices for other in others)]
    item: Any = Text
    example: Any = task.example_item
    if others:
        fields = list(zip(task.fields, kinds, strict=True))
        item = msgspec.defstruct(f"{task.__name__}Item", fields, bases=(Body,), frozen=True)
        example = dict(zip(task.fields, task.example_item, strict=True))
    ask = msgspec.defstruct(
        f"{task.__name__}Ask",
        [("inputs", item | Annotated[list[item], Meta(min_length=1)])],
        bases=(Cut,),
        namespace={"EXAMPLE": {"inputs": example}},
        frozen=True,
        kw_only=True,
    )
    return cast("type[Cut]", ask)


def task_items(ask: Any, task: type[Task[Any, Any]]) -> list[Any]:
    """The items of a request, as the task's pipeline takes them."""
    items = ask.inputs if isinstance(ask.inputs, list) else [ask.inputs]
    if len(task.fields) == 1:
        return list(items)
    return [tuple(getattr(item, name) for name in task.fields) for item in items]


# ---- answers, beside those that pipelines give


class Label(msgspec.Struct, frozen=True):
    """A label, and how likely it is; where the label is a number, that number."""

    label: str
    score: float
    truncated: bool = False


class Rank(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text by its place in the request."""

    index: int
    score: float
    text: str | None = None
    truncated: bool = False


class TokenInfo(msgspec.Struct, frozen=True, gc=False):
    """A piece. Units: [start, stop) characters of the text; none for what was added."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class EmbeddingObject(msgspec.Struct, frozen=True, kw_only=True):
    """A vector, or its bytes (float32, little-endian) in base64."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str
    truncated: bool = False


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A text, and why it ended: `stop`, or `length` where it was cut."""

    index: int
    text: str
    finish_reason: str | None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's turn, and why it ended: `stop`, or `length` where it was cut."""

    index: int
    message: Message
    finish_reason: str | None


class WrittenUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: WrittenUsage


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: WrittenUsage


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[EmbeddingObject]
    model: str
    usage: Usage


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that is served: `answers` names what it can be asked."""

    name: str
    family: str
    answers: list[str]
    labels: list[str]
    length: int
    dimension: int
    precision: str
    prompts: list[str]


class OpenAIModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model, as OpenAI's clients list them. `created` is the start of the server."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "bertkit"


class OpenAIModels(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[OpenAIModel]


class Info(msgspec.Struct, frozen=True):
    version: str
    models: list[ModelInfo]
    store: str | None
    limits: Limits
