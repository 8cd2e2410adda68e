"""The routes: their handlers and types."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from bertkit.extensions.generation.pipeline import GeneratedText
from bertkit.extensions.search.store import Hit
from bertkit.extensions.serving import schema
from bertkit.extensions.serving.completions import chat_completions, completions, translate
from bertkit.extensions.serving.errors import invalid
from bertkit.extensions.serving.request_context import RequestContext, reply
from bertkit.extensions.serving.served import require_finite
from bertkit.extensions.serving.views.contexts import Contexts
from bertkit.pipelines import Embed, MaskAnswer, NextSentenceAnswer, TaskPipeline
from bertkit.tasks import Task
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer
from bertkit.view.page_data import Explanation


@dataclass(frozen=True)
class Route:
    """A path, its handler and the types of its question and answer."""

    path: str
    handler: Callable[..., Awaitable[Response]]
    """Called with the question, if there is one, and the RequestContext."""
    answer: Any
    ask: type[schema.Ask] | None = None
    ability: str = ""
    """What a model must be able to do."""
    many: bool = False
    """Whether a list of questions gets a list of answers."""
    method: str = "POST"
    media_type: str = "application/json"


async def _vectors(
    context: RequestContext,
    texts: Sequence[str],
    ask: schema.EmbedAsk | schema.OpenAIAsk | schema.SimilarityAsk,
    *,
    field: str,
    normalize: bool = True,
    dimensions: int | None = None,
) -> tuple[str, NDArray[np.float32], list[bool]]:
    """The model's name, a vector for each text, and which were cut."""
    name, pipeline = context.pipeline("embed", ask.model)
    assert isinstance(pipeline, Embed)
    if dimensions is not None and dimensions > pipeline.dimension:
        raise invalid(f"the model's vectors have {pipeline.dimension} dimensions", "dimensions")
    known, prompt = pipeline.prompt.prompts.named, ask.prompt_name
    if prompt and prompt not in known:
        raise invalid(
            f"no prompt {prompt[:80]!r} in this model; it has {', '.join(known) or 'none'}",
            "prompt_name",
        )
    vectors, cut = await context.answers(
        pipeline,
        texts,
        field=field,
        truncate=ask.truncate,
        direction=ask.truncation_direction,
        prompt=prompt,
    )
    rows = require_finite(np.stack(vectors)[:, :dimensions])
    if normalize:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return name, rows, cut


async def embed(ask: schema.EmbedAsk, context: RequestContext) -> Response:
    """A vector for each text."""
    _, rows, cut = await _vectors(
        context,
        _listed(ask.inputs),
        ask,
        field="inputs",
        normalize=ask.normalize,
        dimensions=ask.dimensions,
    )
    return reply(rows.tolist(), cut)


async def openai_embeddings(ask: schema.OpenAIAsk, context: RequestContext) -> Response:
    """The same, as OpenAI's clients ask for it."""
    name, rows, cut = await _vectors(
        context,
        _listed(ask.input),
        ask,
        field="input",
        dimensions=ask.dimensions,
    )
    coded: list[Any] = rows.tolist()
    if ask.encoding_format == "base64":
        coded = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
    data = [
        schema.EmbeddingObject(index=place, embedding=row, truncated=short)
        for place, (row, short) in enumerate(zip(coded, cut, strict=True))
    ]
    tokens = context.state["tokens"]
    return reply(
        schema.EmbeddingList(data=data, model=name, usage=schema.Usage(tokens, tokens)), cut
    )


async def similarity(ask: schema.SimilarityAsk, context: RequestContext) -> Response:
    """How near each sentence is to the first: the cosine of their vectors."""
    texts = [ask.inputs.source_sentence, *ask.inputs.sentences]
    _, rows, cut = await _vectors(context, texts, ask, field="inputs")
    return reply((rows[1:] @ rows[0]).tolist(), cut)


async def predict(ask: schema.PredictAsk, context: RequestContext) -> Response:
    """The labels of texts or pairs, likeliest first."""
    _, pipeline = context.pipeline("predict", ask.model)
    assert isinstance(pipeline, TaskPipeline)
    items, many = _texts_or_pairs(ask.inputs, getattr(pipeline.task.options, "pairs", None))
    answers, cut = await context.answers(
        pipeline,
        items,
        field="inputs",
        truncate=ask.truncate,
        direction=ask.truncation_direction,
    )
    rows = [
        [
            schema.Label(label, score, short)
            for label, score in sorted(answer.scores.items(), key=lambda pair: -pair[1])
        ]
        for answer, short in zip(answers, cut, strict=True)
    ]
    return reply(rows if many else rows[0], cut)


async def rerank(ask: schema.RerankAsk, context: RequestContext) -> Response:
    """How well each text answers the query, best first."""
    _, pipeline = context.pipeline("rerank", ask.model)
    pairs = [(ask.query, text) for text in ask.texts]
    logits, cut = await context.answers(
        pipeline,
        pairs,
        field="texts",
        truncate=ask.truncate,
        direction=ask.truncation_direction,
    )
    scores = np.array(logits, dtype=np.float64)
    if not np.isfinite(scores).all():
        raise ArithmeticError("the model gives a score that is not finite")
    shown = scores if ask.raw_scores else 1.0 / (1.0 + np.exp(-scores))
    return reply(
        [
            schema.Rank(
                place,
                float(shown[place]),
                ask.texts[place] if ask.return_text else None,
                cut[place],
            )
            for place in np.argsort(-scores, kind="stable").tolist()
        ],
        cut,
    )


async def search(ask: schema.SearchAsk, context: RequestContext) -> Response:
    """The documents of the store that answer a query best, each by its best passage."""
    _, pipeline = context.pipeline("search", ask.model)
    options = {name: getattr(ask, name) for name in ("top", "where", "hybrid", "min_score")}
    hits, cut = await context.answers(
        pipeline, [ask.query], field="query", truncate=ask.truncate, **options
    )
    return reply(hits[0], cut)


async def fill_mask(ask: schema.FillAsk, context: RequestContext) -> Response:
    """The likeliest pieces for each [MASK] of a text."""
    one = isinstance(ask.inputs, str)
    return await context.plain("fill-mask", ask, _listed(ask.inputs), one=one, top=ask.top)


async def next_sentence(ask: schema.NextAsk, context: RequestContext) -> Response:
    """How likely the second sentence follows the first."""
    given: Any = ask.inputs
    one = isinstance(given[0], str)
    pairs = [tuple(each) for each in ([given] if one else given)]
    return await context.plain("next-sentence", ask, pairs, one=one)


async def explain(ask: schema.ExplainAsk, context: RequestContext) -> Response:
    """What the model computes on the way: embeddings, attention, states of every layer."""
    given = ask.inputs
    text, pair = (given, None) if isinstance(given, str) else given
    return await context.plain(
        "explain", ask, [(text, pair, ask.off, tuple(map(str, ask.hide)))], one=True
    )


async def contexts(ask: schema.ContextsAsk, context: RequestContext) -> Response:
    """A word in several texts: how alike its states are there, layer by layer."""
    return await context.plain("contexts", ask, [(ask.word, ask.inputs)], one=True)


async def tokenize(ask: schema.TokenizeAsk, context: RequestContext) -> Response:
    """The pieces of texts, and where they stand in them."""
    texts = _listed(ask.inputs)
    _, pipeline = context.pipeline("tokenize", ask.model)
    assert isinstance(pipeline, Embed)
    tokenizer = pipeline.tokenizer

    def tokens(part: Sequence[str]) -> list[tuple[int, msgspec.Raw]]:
        # encoded here, one by one: a long answer would block the event loop
        rows = _tokens(tokenizer, part, special=ask.add_special_tokens)
        return [(len(row), msgspec.Raw(msgspec.json.encode(row))) for row in rows]

    rows = await context.read(texts, context.check(texts, "inputs"), tokens, lambda row: row[0])
    context.charge(sum(count for count, _ in rows), len(rows))
    return reply([encoded for _, encoded in rows])


def _tokens(
    tokenizer: Tokenizer, texts: Sequence[str], *, special: bool
) -> Iterator[list[schema.TokenInfo]]:
    for encoding in tokenizer.encode_batch(texts, max_length=NO_LIMIT):
        pieces = tokenizer.pieces(encoding.ids)
        row = []
        for id, piece, word, span in zip(
            encoding.ids.tolist(), pieces, encoding.words, encoding.offsets.tolist(), strict=True
        ):
            if word is not None:
                row.append(schema.TokenInfo(id, piece, False, *span))
            elif special:
                row.append(schema.TokenInfo(id, piece, True, None, None))
        yield row


def _listed(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs


def _texts_or_pairs(
    given: Any, learned_pairs: bool | None
) -> tuple[list[str | tuple[str, str]], bool]:
    """Texts and pairs, and whether there is a list of them; `learned_pairs` None is not known.

    TEI takes [a, b] for a pair, whatever the model learned.
    Raises: Refused for a list that may mean two things, or nothing.
    """
    if isinstance(given, str):
        return [given], False
    texts = sum(isinstance(part, str) for part in given)
    if texts == 0:
        return [part[0] if len(part) == 1 else (part[0], part[1]) for part in given], True
    if texts < len(given):
        raise invalid("expected texts alone, or lists of a text or two alone", "inputs")
    if learned_pairs is False:
        return given, True
    if texts > 2:
        why = "learned from pairs" if learned_pairs else "may have learned from pairs"
        raise invalid(
            f"this model {why}, so a list of texts is a pair, and here are {texts:,}; put each "
            "text, or pair, into a list of its own",
            "inputs",
        )
    return [given[0] if texts == 1 else (given[0], given[1])], False


ROUTES = (
    Route("/embed", embed, list[list[float]], schema.EmbedAsk, "embed"),
    Route("/v1/embeddings", openai_embeddings, schema.EmbeddingList, schema.OpenAIAsk, "embed"),
    Route("/similarity", similarity, list[float], schema.SimilarityAsk, "embed"),
    Route("/predict", predict, list[schema.Label], schema.PredictAsk, "predict", many=True),
    Route("/rerank", rerank, list[schema.Rank], schema.RerankAsk, "rerank"),
    Route("/search", search, list[Hit], schema.SearchAsk, "search"),
    Route("/fill-mask", fill_mask, list[MaskAnswer], schema.FillAsk, "fill-mask", many=True),
    Route(
        "/next-sentence",
        next_sentence,
        NextSentenceAnswer,
        schema.NextAsk,
        "next-sentence",
        many=True,
    ),
    Route("/v1/completions", completions, schema.Completion, schema.CompletionAsk, "write"),
    Route("/v1/chat/completions", chat_completions, schema.ChatCompletion, schema.ChatAsk, "chat"),
    Route("/translate", translate, GeneratedText, schema.TranslateAsk, "translate", many=True),
    Route("/explain", explain, Explanation, schema.ExplainAsk, "explain"),
    Route("/contexts", contexts, Contexts, schema.ContextsAsk, "contexts"),
    Route("/tokenize", tokenize, list[list[schema.TokenInfo]], schema.TokenizeAsk, "tokenize"),
)
"""All but the tasks' own."""


def task_route(task: type[Task[Any, Any]]) -> Route:
    """The route that a task declares."""
    ability, doc = task.route.strip("/"), inspect.getdoc(task) or task.name

    async def answer(ask: Any, context: RequestContext) -> Response:
        items, one = schema.task_items(ask, task), not isinstance(ask.inputs, list)
        return await context.plain(ability, ask, items, one=one)

    answer.__name__, answer.__doc__ = task.name, doc.partition("\n\n")[0]
    return Route(task.route, answer, task.Answer, schema.task_ask(task), ability, many=True)
