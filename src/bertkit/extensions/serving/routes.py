"""Routes of core pipelines, compatible with text-embeddings-inference (TEI) and OpenAI."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.extensions.serving import schema, token_ids
from bertkit.extensions.serving.request_context import RequestContext
from bertkit.extensions.serving.schema import EmbeddingList, ExplainAsk, Label, TokenizeAsk, Usage
from bertkit.extensions.serving.served import (
    embed_all_pipeline,
    explain_pipeline,
    raw_scores_pipeline,
    require_finite,
)
from bertkit.pipelines import Embed, TaskPipeline
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer
from bertkit.view.page_data import Explanation
from bertkit.web import Builders, Route, invalid


async def _embedded(
    context: RequestContext, ability: str, ask: schema.VectorAsk, inputs: Any, field: str
) -> tuple[str, list[Any], list[bool]]:
    """Return the name of the model, the results, and whether each text was truncated."""
    name, pipeline = cast("tuple[str, Any]", context.pipeline(ability, ask.model))
    _check_prompt(pipeline, ask.prompt_name)
    dimensions = getattr(ask, "dimensions", None)
    if dimensions is not None and dimensions > pipeline.dimension:
        message = f"dimensions must not exceed {pipeline.dimension} for this model"
        raise invalid(message, "dimensions")
    convert = partial(token_ids.text_of, pipeline.tokenizer, field)
    texts = await token_ids.texts_of(context, inputs, field, convert)
    prompt = ask.prompt_name
    return name, *await context.answers(pipeline, texts, field=field, ask=ask, prompt=prompt)


def _check_prompt(pipeline: Embed, name: str | None) -> None:
    known = pipeline.prompt.prompts.named
    if name and name not in known:
        message = f"prompt {name[:80]!r} not found; the model has {', '.join(known) or 'none'}"
        raise invalid(message, "prompt_name")


def _rows(
    vectors: Sequence[Any], dimensions: int | None = None, *, normalize: bool = True
) -> NDArray[np.float32]:
    """Stack embeddings to an array (S, D), after checking that they are finite."""
    rows = require_finite(np.stack(vectors)[:, :dimensions])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize else rows


async def embed(ask: schema.EmbedAsk, context: RequestContext) -> Any:
    """Return an embedding for each text."""
    _, vectors, cut = await _embedded(context, "embed", ask, ask.inputs, "inputs")
    rows = _rows(vectors, ask.dimensions, normalize=ask.normalize)
    return context.reply(rows.tolist(), cut)


async def embed_all(ask: schema.TextsAsk, context: RequestContext) -> Any:
    """Return, for each text, the last hidden state of each token, including special tokens."""
    _, states, cut = await _embedded(context, "embed-all", ask, ask.inputs, "inputs")
    return context.reply(states, cut)


async def embed_sparse(ask: schema.TextsAsk, context: RequestContext) -> Any:
    """Return the weights of tokens of the vocabulary that are not 0, for each text."""
    _, rows, cut = await _embedded(context, "sparse-embedding", ask, ask.inputs, "inputs")
    values = [sorted(schema.SparseValue(w.index, w.weight) for w in row) for row in rows]
    return context.reply(values, cut)


async def openai_embeddings(ask: schema.OpenAIAsk, context: RequestContext) -> Any:
    """Return an embedding for each text in OpenAI's format."""
    name, vectors, cut = await _embedded(context, "embed", ask, ask.input, "input")
    rows = _rows(vectors, ask.dimensions)
    coded: list[Any] = rows.tolist()
    if ask.encoding_format == "base64":
        coded = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]
    data = [
        schema.EmbeddingObject(index=index, embedding=row, truncated=is_cut)
        for index, (row, is_cut) in enumerate(zip(coded, cut, strict=True))
    ]
    return context.reply(EmbeddingList(data=data, model=name, usage=_usage(context)), cut)


def _usage(context: RequestContext) -> Usage:
    return Usage(context.state["tokens"], context.state["tokens"])


async def similarity(ask: schema.SimilarityAsk, context: RequestContext) -> Any:
    """Return the cosine similarity between the source sentence and each other sentence."""
    texts = [ask.inputs.source_sentence, *ask.inputs.sentences]
    _, vectors, cut = await _embedded(context, "embed", ask, texts, "inputs")
    rows = _rows(vectors)
    return context.reply((rows[1:] @ rows[0]).tolist(), cut)


async def predict(ask: schema.PredictAsk, context: RequestContext) -> Any:
    """Return the labels of texts or pairs, most probable first."""
    ability = "raw-scores" if ask.raw_scores else "predict"
    _, pipeline = context.pipeline(ability, ask.model)
    assert isinstance(pipeline, TaskPipeline)
    items, many = _texts_or_pairs(ask.inputs, getattr(pipeline.task.options, "pairs", None))
    answers, cut = await context.answers(pipeline, items, field="inputs", ask=ask)
    rows = []
    for answer, is_cut in zip(answers, cut, strict=True):
        ranked = sorted(answer.scores.items(), key=lambda pair: -pair[1])
        rows.append([Label(label, score, is_cut) for label, score in ranked])
    return context.reply(rows if many else rows[0], cut)


async def _scores(
    context: RequestContext, ask: schema.QueryAsk, texts: Sequence[str], field: str
) -> tuple[NDArray[np.float64], list[int], list[bool]]:
    """Return the score of each text, the indices of the best texts, and which were truncated."""
    _, pipeline = context.pipeline("rerank", ask.model)
    pairs = [(ask.query, text) for text in texts]
    logits, cut = await context.answers(pipeline, pairs, field=field, ask=ask)
    scores = np.array(logits, dtype=np.float64)
    if not np.isfinite(scores).all():
        raise ArithmeticError("the model computed a score that is NaN or inf")
    best: list[int] = np.argsort(-scores, kind="stable").tolist()
    is_raw = getattr(ask, "raw_scores", False)
    return scores if is_raw else 1.0 / (1.0 + np.exp(-scores)), best, cut


async def rerank(ask: schema.RerankAsk, context: RequestContext) -> Any:
    """Return the relevance of each text to the query, most relevant first."""
    scores, best, cut = await _scores(context, ask, ask.texts, "texts")
    texts = ask.texts if ask.return_text else [None] * len(scores)
    ranks = [schema.Rank(i, float(scores[i]), texts[i], cut[i]) for i in best]
    return context.reply(ranks, cut)


async def rank_documents(ask: schema.RankAsk, context: RequestContext) -> Any:
    """Return the relevance of each document to the query, in the format of Cohere and Jina."""
    name, _ = context.pipeline("rerank", ask.model)
    length = context.registry.models[name].supported.length
    if ask.max_tokens_per_doc is not None and ask.max_tokens_per_doc < length:
        raise invalid(
            f"must be at least {length}, the model's maximum length", "max_tokens_per_doc"
        )
    documents = [{"text": doc} if isinstance(doc, str) else doc for doc in ask.documents]
    texts = [document.get("text", "") for document in documents]
    if "" in texts:
        raise invalid("the document has no text", f"documents.{texts.index('')}.text")
    scores, best, cut = await _scores(context, ask, texts, "documents")
    results = [
        schema.Ranked(i, float(scores[i]), documents[i] if ask.return_documents else None)
        for i in best[: ask.top_n]
    ]
    tokens, usage = context.state["tokens"], _usage(context)
    meta = {"tokens": {"input_tokens": tokens, "output_tokens": 0}}
    ranking = schema.Ranking(id=context.id, model=name, results=results, meta=meta, usage=usage)
    return context.reply(ranking, cut)


async def explain(ask: ExplainAsk, context: RequestContext) -> Any:
    """Return what the model computes: embeddings, attention weights, and states of every layer."""
    text, pair = (ask.inputs, None) if isinstance(ask.inputs, str) else ask.inputs
    item = text, pair, ask.off, tuple(map(str, ask.hide))
    _, pipeline = context.pipeline("explain", ask.model)
    (answer,), cut = await context.answers(pipeline, [item], field="inputs", ask=ask)
    return context.reply(answer, cut)


async def tokenize(ask: TokenizeAsk, context: RequestContext) -> Any:
    """Return the tokens of texts, and their positions in the texts."""
    _, pipeline = context.pipeline("tokenize", ask.model)
    assert isinstance(pipeline, Embed)
    _check_prompt(pipeline, ask.prompt_name)
    prompt = pipeline.prompt(ask.prompt_name or "")
    texts = [ask.inputs] if isinstance(ask.inputs, str) else ask.inputs
    texts, tokenizer = [prompt + text for text in texts], pipeline.tokenizer

    def tokens(part: Sequence[str]) -> list[tuple[int, msgspec.Raw]]:
        # Encode the response here, text by text, because encoding a long one would block the event
        # loop.
        rows = _tokens(tokenizer, part, special=ask.add_special_tokens)
        return [(len(row), msgspec.Raw(msgspec.json.encode(row))) for row in rows]

    rows = await context.read(texts, context.check(texts, "inputs"), tokens, lambda row: row[0])
    context.charge(sum(count for count, _ in rows), len(rows))
    return context.reply([encoded for _, encoded in rows])


def _tokens(
    tokenizer: Tokenizer, texts: Sequence[str], *, special: bool
) -> Iterator[list[schema.TokenInfo]]:
    encodings = tokenizer.encode_batch(texts, max_length=NO_LIMIT)
    for text, encoding in zip(texts, encodings, strict=True):
        tokens = tokenizer.pieces(encoding.ids)
        row = []
        for id, token, word, (start, stop) in zip(
            encoding.ids.tolist(), tokens, encoding.words, encoding.offsets.tolist(), strict=True
        ):
            if word is not None:
                row.append(schema.TokenInfo(id, text[start:stop], False, start, stop))
            elif special:
                row.append(schema.TokenInfo(id, token, True, None, None))
        yield row


async def decode(ask: schema.DecodeAsk, context: RequestContext) -> Any:
    """Convert token ids to texts."""
    _, pipeline = context.pipeline("tokenize", ask.model)
    assert isinstance(pipeline, Embed)
    skip, tokenizer = ask.skip_special_tokens, pipeline.tokenizer
    convert = partial(token_ids.decode, tokenizer, skip_special_tokens=skip)
    return context.reply(await token_ids.texts_of(context, ask.ids, "ids", convert))


def _texts_or_pairs(
    inputs: Any, learned_pairs: bool | None
) -> tuple[list[str | tuple[str, str]], bool]:
    """Return the texts and pairs in a request, and whether they were passed as a list.

    As in TEI, [a, b] is a pair, even if the model was trained on single texts.

    Args:
        inputs: Field `inputs` of the request.
        learned_pairs: Whether the model was trained on pairs, or None if this is unknown.

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
        message = f"for this model, a list of texts is a pair, but the list has {texts:,} texts"
        raise invalid(f"{message}; use a separate list for each text or pair", "inputs")
    return [inputs[0] if texts == 1 else (inputs[0], inputs[1])], False


PIPELINES: Builders = {
    "embed-all": embed_all_pipeline,
    "explain": explain_pipeline,
    "raw-scores": raw_scores_pipeline,
    "tokenize": lambda model: model.embed,
}
STATES = list[list[list[float]]]
SPARSE = list[list[schema.SparseValue]]
TOKENS = list[list[schema.TokenInfo]]

EMBED = Route("/embed", embed, list[list[float]], schema.EmbedAsk, "embed")
EMBED_ALL = Route("/embed_all", embed_all, STATES, schema.TextsAsk, "embed-all")
EMBED_SPARSE = Route("/embed_sparse", embed_sparse, SPARSE, schema.TextsAsk, "sparse-embedding")
EMBEDDINGS = Route("/v1/embeddings", openai_embeddings, EmbeddingList, schema.OpenAIAsk, "embed")
SIMILARITY = Route("/similarity", similarity, list[float], schema.SimilarityAsk, "embed")
PREDICT = Route("/predict", predict, list[Label], schema.PredictAsk, "predict", many=True)
RERANK = Route("/rerank", rerank, list[schema.Rank], schema.RerankAsk, "rerank")
RANK_V1 = Route("/v1/rerank", rank_documents, schema.Ranking, schema.RankAsk, "rerank")
RANK_V2 = replace(RANK_V1, path="/v2/rerank")
EXPLAIN = Route("/explain", explain, Explanation, ExplainAsk, "explain", pipelines=PIPELINES)
TOKENIZE = Route("/tokenize", tokenize, TOKENS, TokenizeAsk, "tokenize")
DECODE = Route("/decode", decode, list[str], schema.DecodeAsk, "tokenize")
