"""Routes of core pipelines, compatible with text-embeddings-inference (TEI) and OpenAI."""

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
    """Return the name of the model, the embeddings, and whether each text was truncated."""
    name, pipeline = context.pipeline("embed", ask.model)
    assert isinstance(pipeline, Embed)
    if dimensions is not None and dimensions > pipeline.dimension:
        raise invalid(
            f"dimensions must not exceed {pipeline.dimension} for this model", "dimensions"
        )
    known, prompt = pipeline.prompt.prompts.named, ask.prompt_name
    if prompt and prompt not in known:
        message = f"prompt {prompt[:80]!r} not found; the model has {', '.join(known) or 'none'}"
        raise invalid(message, "prompt_name")
    vectors, cut = await context.answers(pipeline, texts, field=field, ask=ask, prompt=prompt)
    rows = require_finite(np.stack(vectors)[:, :dimensions])
    if normalize:
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return name, rows, cut


async def embed(ask: schema.EmbedAsk, context: RequestContext) -> Any:
    """Return an embedding for each text."""
    _, rows, cut = await _vectors(
        context, _as_list(ask.inputs), ask, "inputs", ask.dimensions, normalize=ask.normalize
    )
    return context.reply(rows.tolist(), cut)


async def openai_embeddings(ask: schema.OpenAIAsk, context: RequestContext) -> Any:
    """Return an embedding for each text, in the format of OpenAI."""
    name, rows, cut = await _vectors(context, _as_list(ask.input), ask, "input", ask.dimensions)
    coded: list[Any] = rows.tolist()
    if ask.encoding_format == "base64":
        coded = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
    data = [
        schema.EmbeddingObject(index=index, embedding=row, truncated=is_cut)
        for index, (row, is_cut) in enumerate(zip(coded, cut, strict=True))
    ]
    tokens = context.state["tokens"]
    usage = schema.Usage(tokens, tokens)
    return context.reply(EmbeddingList(data=data, model=name, usage=usage), cut)


async def similarity(ask: schema.SimilarityAsk, context: RequestContext) -> Any:
    """Return the cosine similarity of each sentence to the source sentence."""
    texts = [ask.inputs.source_sentence, *ask.inputs.sentences]
    _, rows, cut = await _vectors(context, texts, ask, "inputs")
    return context.reply((rows[1:] @ rows[0]).tolist(), cut)


async def predict(ask: schema.PredictAsk, context: RequestContext) -> Any:
    """Return the labels of texts or pairs, most probable first."""
    _, pipeline = context.pipeline("predict", ask.model)
    assert isinstance(pipeline, TaskPipeline)
    items, many = _texts_or_pairs(ask.inputs, getattr(pipeline.task.options, "pairs", None))
    answers, cut = await context.answers(pipeline, items, field="inputs", ask=ask)
    rows = []
    for answer, is_cut in zip(answers, cut, strict=True):
        ranked = sorted(answer.scores.items(), key=lambda pair: -pair[1])
        rows.append([Label(label, score, is_cut) for label, score in ranked])
    return context.reply(rows if many else rows[0], cut)


async def rerank(ask: schema.RerankAsk, context: RequestContext) -> Any:
    """Return the relevance of each text to the query, best first."""
    _, pipeline = context.pipeline("rerank", ask.model)
    pairs = [(ask.query, text) for text in ask.texts]
    logits, cut = await context.answers(pipeline, pairs, field="texts", ask=ask)
    scores = np.array(logits, dtype=np.float64)
    if not np.isfinite(scores).all():
        raise ArithmeticError("the model computed a score that is NaN or inf")
    shown = scores if ask.raw_scores else 1.0 / (1.0 + np.exp(-scores))
    texts = ask.texts if ask.return_text else [None] * len(scores)
    best = np.argsort(-scores, kind="stable").tolist()
    ranks = [schema.Rank(i, float(shown[i]), texts[i], cut[i]) for i in best]
    return context.reply(ranks, cut)


async def explain(ask: ExplainAsk, context: RequestContext) -> Any:
    """Return the internal values of the model: embeddings, attention, states of every layer."""
    text, pair = (ask.inputs, None) if isinstance(ask.inputs, str) else ask.inputs
    item = text, pair, ask.off, tuple(map(str, ask.hide))
    _, pipeline = context.pipeline("explain", ask.model)
    (answer,), cut = await context.answers(pipeline, [item], field="inputs", ask=ask)
    return context.reply(answer, cut)


async def tokenize(ask: TokenizeAsk, context: RequestContext) -> Any:
    """Return the tokens of texts, and their positions in the texts."""
    texts = _as_list(ask.inputs)
    _, pipeline = context.pipeline("tokenize", ask.model)
    assert isinstance(pipeline, Embed)
    tokenizer = pipeline.tokenizer

    def tokens(part: Sequence[str]) -> list[tuple[int, msgspec.Raw]]:
        # Encode the response here, text by text: a long response would block the event loop.
        rows = _tokens(tokenizer, part, special=ask.add_special_tokens)
        return [(len(row), msgspec.Raw(msgspec.json.encode(row))) for row in rows]

    rows = await context.read(texts, context.check(texts, "inputs"), tokens, lambda row: row[0])
    context.charge(sum(count for count, _ in rows), len(rows))
    return context.reply([encoded for _, encoded in rows])


def _tokens(
    tokenizer: Tokenizer, texts: Sequence[str], *, special: bool
) -> Iterator[list[schema.TokenInfo]]:
    for encoding in tokenizer.encode_batch(texts, max_length=NO_LIMIT):
        tokens = tokenizer.pieces(encoding.ids)
        row = []
        for id, token, word, span in zip(
            encoding.ids.tolist(), tokens, encoding.words, encoding.offsets.tolist(), strict=True
        ):
            if word is not None:
                row.append(schema.TokenInfo(id, token, False, *span))
            elif special:
                row.append(schema.TokenInfo(id, token, True, None, None))
        yield row


def _as_list(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs


def _texts_or_pairs(
    inputs: Any, learned_pairs: bool | None
) -> tuple[list[str | tuple[str, str]], bool]:
    """Return the texts and pairs of a request, and whether the request contains a list of them.

    TEI interprets [a, b] as a pair, even if the model was trained on single texts.

    Args:
        inputs: Inputs of the request.
        learned_pairs: Whether the model was trained on pairs, or None if unknown.

    Raises:
        RequestError: If the list is ambiguous or invalid.
    """
    if isinstance(inputs, str):
        return [inputs], False
    texts = sum(isinstance(part, str) for part in inputs)
    if texts == 0:
        return [part[0] if len(part) == 1 else (part[0], part[1]) for part in inputs], True
    if texts < len(inputs):
        raise invalid("expected only texts, or only lists of one or two texts", "inputs")
    if learned_pairs is False:
        return inputs, True
    if texts > 2:
        trained = "was trained" if learned_pairs else "may have been trained"
        raise invalid(
            f"the model {trained} on pairs, so a list of texts must be a pair, got {texts:,} "
            "texts; use a separate list for each text or pair",
            "inputs",
        )
    return [inputs[0] if texts == 1 else (inputs[0], inputs[1])], False


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
