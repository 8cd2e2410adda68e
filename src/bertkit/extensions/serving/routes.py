"""Routes of pipelines of the core, with the names of text-embeddings-inference and of OpenAI."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.extensions.serving import schema
from bertkit.extensions.serving.request_context import RequestContext
from bertkit.extensions.serving.schema import EmbeddingList, ExplainAsk, Label, TokenizeAsk
from bertkit.extensions.serving.served import explain_pipeline, require_finite
from bertkit.pipelines import Embed, TaskPipeline
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer
from bertkit.view.page_data import Explanation
from bertkit.web import Builders, Route, invalid


async def _vectors(
    context: RequestContext,
    texts: Sequence[str],
    ask: schema.EmbedAsk | schema.OpenAIAsk | schema.SimilarityAsk,
    field: str,
    dimensions: int | None = None,
    *,
    normalize: bool = True,
) -> tuple[str, NDArray[np.float32], list[bool]]:
    """The model's name, a vector for each text, and which were cut."""
    name, pipeline = context.pipeline("embed", ask.model)
    assert isinstance(pipeline, Embed)
    if dimensions is not None and dimensions > pipeline.dimension:
        raise invalid(f"the model's vectors have {pipeline.dimension} dimensions", "dimensions")
    known, prompt = pipeline.prompt.prompts.named, ask.prompt_name
    if prompt and prompt not in known:
        message = f"no prompt {prompt[:80]!r} in this model; it has {', '.join(known) or 'none'}"
        raise invalid(message, "prompt_name")
    vectors, cut = await context.answers(pipeline, texts, field=field, ask=ask, prompt=prompt)
    rows = require_finite(np.stack(vectors)[:, :dimensions])
    if normalize:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return name, rows, cut


async def embed(ask: schema.EmbedAsk, context: RequestContext) -> Any:
    """A vector for each text."""
    _, rows, cut = await _vectors(
        context, _listed(ask.inputs), ask, "inputs", ask.dimensions, normalize=ask.normalize
    )
    return context.reply(rows.tolist(), cut)


async def openai_embeddings(ask: schema.OpenAIAsk, context: RequestContext) -> Any:
    """The same, as OpenAI's clients ask for it."""
    name, rows, cut = await _vectors(context, _listed(ask.input), ask, "input", ask.dimensions)
    coded: list[Any] = rows.tolist()
    if ask.encoding_format == "base64":
        coded = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
    data = [
        schema.EmbeddingObject(index=place, embedding=row, truncated=short)
        for place, (row, short) in enumerate(zip(coded, cut, strict=True))
    ]
    tokens = context.state["tokens"]
    usage = schema.Usage(tokens, tokens)
    return context.reply(EmbeddingList(data=data, model=name, usage=usage), cut)


async def similarity(ask: schema.SimilarityAsk, context: RequestContext) -> Any:
    """How near each sentence is to the first: the cosine of their vectors."""
    texts = [ask.inputs.source_sentence, *ask.inputs.sentences]
    _, rows, cut = await _vectors(context, texts, ask, "inputs")
    return context.reply((rows[1:] @ rows[0]).tolist(), cut)


async def predict(ask: schema.PredictAsk, context: RequestContext) -> Any:
    """The labels of texts or pairs, likeliest first."""
    _, pipeline = context.pipeline("predict", ask.model)
    assert isinstance(pipeline, TaskPipeline)
    items, many = _texts_or_pairs(ask.inputs, getattr(pipeline.task.options, "pairs", None))
    answers, cut = await context.answers(pipeline, items, field="inputs", ask=ask)
    rows = []
    for answer, short in zip(answers, cut, strict=True):
        ranked = sorted(answer.scores.items(), key=lambda pair: -pair[1])
        rows.append([Label(label, score, short) for label, score in ranked])
    return context.reply(rows if many else rows[0], cut)


async def rerank(ask: schema.RerankAsk, context: RequestContext) -> Any:
    """How well each text answers the query, best first."""
    _, pipeline = context.pipeline("rerank", ask.model)
    pairs = [(ask.query, text) for text in ask.texts]
    logits, cut = await context.answers(pipeline, pairs, field="texts", ask=ask)
    scores = np.array(logits, dtype=np.float64)
    if not np.isfinite(scores).all():
        raise ArithmeticError("the model gives a score that is not finite")
    shown = scores if ask.raw_scores else 1.0 / (1.0 + np.exp(-scores))
    texts = ask.texts if ask.return_text else [None] * len(scores)
    best = np.argsort(-scores, kind="stable").tolist()
    ranks = [schema.Rank(place, float(shown[place]), texts[place], cut[place]) for place in best]
    return context.reply(ranks, cut)


async def explain(ask: ExplainAsk, context: RequestContext) -> Any:
    """What the model computes on the way: embeddings, attention, states of every layer."""
    given = ask.inputs
    text, pair = (given, None) if isinstance(given, str) else given
    item = text, pair, ask.off, tuple(map(str, ask.hide))
    _, pipeline = context.pipeline("explain", ask.model)
    (answer,), cut = await context.answers(pipeline, [item], field="inputs", ask=ask)
    return context.reply(answer, cut)


async def tokenize(ask: TokenizeAsk, context: RequestContext) -> Any:
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
    return context.reply([encoded for _, encoded in rows])


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
    Raises: RequestError for a list that may mean two things, or nothing.
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


EXPLAINS: Builders = {"explain": explain_pipeline}
TOKENIZES: Builders = {"tokenize": lambda model: model.embed}
TOKENS = list[list[schema.TokenInfo]]

EMBED = Route("/embed", embed, list[list[float]], schema.EmbedAsk, "embed")
EMBEDDINGS = Route("/v1/embeddings", openai_embeddings, EmbeddingList, schema.OpenAIAsk, "embed")
SIMILARITY = Route("/similarity", similarity, list[float], schema.SimilarityAsk, "embed")
PREDICT = Route("/predict", predict, list[Label], schema.PredictAsk, "predict", many=True)
RERANK = Route("/rerank", rerank, list[schema.Rank], schema.RerankAsk, "rerank")
EXPLAIN = Route("/explain", explain, Explanation, ExplainAsk, "explain", pipelines=EXPLAINS)
TOKENIZE = Route("/tokenize", tokenize, TOKENS, TokenizeAsk, "tokenize", pipelines=TOKENIZES)
