"""What is asked and answered, with the names of TEI and OpenAI where these have the route.

TEI is Hugging Face's text-embeddings-inference, whose clients work here unchanged.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from bertkit.serve.limits import Limits
from bertkit.tasks import Task
from bertkit.view.contexts import CHARACTERS, TEXTS


def some(**bounds: Any) -> Any:
    """A list whose validation stops at the first bad item: there may be a million."""
    return Field(fail_fast=True, **bounds)


Text = Annotated[str, Field(min_length=1)]
Several = Annotated[list[Text], some(min_length=2)]
Texts = Text | Annotated[list[Text], some(min_length=1)]


class Given(BaseModel):
    """A part of a question: nothing in it is passed over, and no type is taken for another."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def first_unknown(cls, given: Any) -> Any:
        """Of fields that are not known the first is enough: there may be a million, and each would
        be an error of its own."""
        if not isinstance(given, dict):
            return given
        unknown = next((name for name in given if name not in cls.model_fields), None)
        names = (*cls.model_fields, *(() if unknown is None else (unknown,)))
        return {name: given[name] for name in names if name in given}


class Ask(Given):
    """What every question may say."""

    model: str | None = Field(None, description="Which of the models; by default the first able.")
    parameters: dict[str, Any] = Field(
        {}, max_length=0, description="Sent by clients of the hub; nothing may stand in it."
    )


class Cut(Ask):
    truncate: bool = Field(
        False, description="Cut texts that are too long, and say so, in place of an error."
    )


def example(**given: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [given]})


PromptName = Annotated[
    str | None,
    Field(
        description="Which of the model's prompts stands before each text; by default its default "
        'one, if any; "" for none.'
    ),
]


class EmbedAsk(Cut):
    model_config = example(inputs=["a cat on a mat", "a dog in a fog"])

    inputs: Texts
    normalize: bool = Field(True, description="Vectors of length 1.")
    dimensions: int | None = Field(
        None, ge=1, description="Only the first so many, for a Matryoshka model."
    )
    prompt_name: PromptName = None
    truncation_direction: Literal["right", "Right"] = "right"


class OpenAIAsk(Ask):
    model_config = example(input="a cat on a mat", model="all-MiniLM-L6-v2")

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    prompt_name: PromptName = None
    user: str | None = Field(None, description="Taken, and not looked at.")
    truncate: bool = Field(False, description="As in /embed; OpenAI has it not.")


class PredictAsk(Cut):
    model_config = example(inputs="a fine film")

    inputs: (
        Text
        | Annotated[list[Text], some(min_length=1, max_length=2)]
        | Annotated[
            list[Annotated[list[Text], some(min_length=1, max_length=2)]],
            some(min_length=1),
        ]
    ) = Field(description="A text; [text] or a pair [a, b]; or a list of those.")


class Sentences(Given):
    source_sentence: Text
    sentences: Annotated[list[Text], some(min_length=1)]


class SimilarityAsk(Cut):
    model_config = example(
        inputs={"source_sentence": "a cat", "sentences": ["a kitten", "a bridge"]}
    )

    inputs: Sentences
    prompt_name: PromptName = None


class RerankAsk(Cut):
    model_config = example(query="what purrs?", texts=["a cat", "a bridge"])

    query: Text
    texts: Annotated[list[Text], some(min_length=1)]
    raw_scores: bool = Field(False, description="Logits in place of their sigmoid.")
    return_text: bool = False


class SearchAsk(Cut):
    model_config = example(query="wings at high speed", top=3)

    query: Text
    top: int = Field(10, ge=1, le=1000)
    where: Annotated[list[Annotated[str, Field(max_length=1000)]], some(max_length=32)] = Field(
        [], description="Conditions such as year>=1960, which all are met."
    )
    hybrid: bool = Field(False, description="Join what is found by meaning and by words.")


class ExplainAsk(Cut):
    model_config = example(inputs="The cat sat on the mat.")

    inputs: Text | Annotated[list[Text], some(min_length=2, max_length=2)] = Field(
        description="A text, or a pair."
    )
    off: Annotated[list[str], some(max_length=4096)] = Field(
        [], description="Heads to switch off, as LAYER.HEAD, from 1."
    )


class ContextsAsk(Cut):
    model_config = example(word="bank", inputs=["a bank by the river", "a bank lends money"])

    word: Text
    inputs: Annotated[
        list[Annotated[Text, Field(max_length=CHARACTERS)]],
        some(min_length=2, max_length=TEXTS),
    ] = Field(description="Texts with the word in them.")


class FillAsk(Cut):
    model_config = example(inputs="the cat sat on the [MASK].", top=3)

    inputs: Texts
    top: int = Field(10, ge=1, le=100)


class NextAsk(Cut):
    model_config = example(inputs=["It rained.", "The street was wet."])

    inputs: (
        Annotated[list[Text], some(min_length=2, max_length=2)]
        | Annotated[
            list[Annotated[list[Text], some(min_length=2, max_length=2)]],
            some(min_length=1),
        ]
    )


class TokenizeAsk(Ask):
    model_config = example(inputs="unaffable cats")

    inputs: Texts
    add_special_tokens: bool = True


@cache
def task_ask(task: type[Task[Any, Any]]) -> type[Cut]:
    """How a task is asked: a text for one field, an object for several; one or a list of them."""
    _, *others = [task.example_item] if isinstance(task.example_item, str) else task.example_item
    kinds: list[Any] = [Text, *(Text if isinstance(other, str) else Several for other in others)]
    part: Any = Text
    sent: Any = task.example_item
    if others:
        fields: dict[str, Any] = {
            name: (kind, ...) for name, kind in zip(task.fields, kinds, strict=True)
        }
        part = create_model(f"{task.__name__}Item", __base__=Given, **fields)
        sent = dict(zip(task.fields, task.example_item, strict=True))
    inputs = part | Annotated[list[part], some(min_length=1)]
    ask: type[Cut] = create_model(f"{task.__name__}Ask", __base__=Cut, inputs=(inputs, ...))
    ask.model_config["json_schema_extra"] = {"examples": [{"inputs": sent}]}
    return ask


def task_items(ask: Any, task: type[Task[Any, Any]]) -> list[Any]:
    """The items that are asked about, as the task's pipeline takes them."""
    given = ask.inputs if isinstance(ask.inputs, list) else [ask.inputs]
    if len(task.fields) == 1:
        return list(given)
    return [tuple(getattr(each, name) for name in task.fields) for each in given]


# ---- answers, beside those that pipelines give


class Refusal(BaseModel):
    """Why there is no answer."""

    error: str
    error_type: str
    field: str | None = None


class OpenAIError(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None


class OpenAIRefusal(msgspec.Struct, frozen=True):
    """The same, as OpenAI's clients read it."""

    error: OpenAIError


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


class Token(msgspec.Struct, frozen=True):
    """A piece. Units: [start, stop) characters of the text; none for what was added."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """A vector, or its bytes (float32, little-endian) in base64."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str
    truncated: bool = False


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class Model(msgspec.Struct, frozen=True):
    """A model that is served: `answers` names what it can be asked."""

    name: str
    family: str
    answers: list[str]
    labels: list[str]
    length: int
    dimension: int
    precision: str
    prompts: list[str]


class Info(msgspec.Struct, frozen=True):
    version: str
    models: list[Model]
    store: str | None
    limits: Limits
