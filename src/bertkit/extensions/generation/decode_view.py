"""Decoding steps that the web page shows: attention, candidate tokens, and beams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

from bertkit.errors import DataError
from bertkit.extensions.generation.alignment import check_attention
from bertkit.extensions.generation.beam import MIN_SCORE, BeamStep, beam_search
from bertkit.extensions.generation.decoding import Decoding, GeneratedTokens, Rules
from bertkit.extensions.generation.generate import generate
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.stepper import Request, Stepper
from bertkit.models.config import EncoderConfig
from bertkit.nn.attention import CrossAttention, Trace
from bertkit.pipelines import Candidate, Work
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer
from bertkit.view.arrays import Array, coded
from bertkit.view.page import source
from bertkit.view.page_data import Shape, Source
from bertkit.view.token_text import likeliest, spelled

MAX_TOKENS = 128
"""Maximum number of source tokens, and of generated tokens. The page shows a column per step."""

State = Literal["kept", "ended", "dropped"]

WEIGHT_BYTES = 4
"""Approximate number of bytes per attention weight in a response. A weight is a 16-bit number in
base64; the rest is for other values."""


class Beam(msgspec.Struct, frozen=True):
    """A candidate in one step of beam search."""

    before: int | None
    """Index of the candidate in the previous step that this candidate continues."""
    token: str
    """Last token of the candidate."""
    score: float
    """Log-probability of all tokens of the candidate."""
    state: State
    wins: bool
    """Whether the candidate is the generated text or a prefix of it."""


class DecoderSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding steps of a text of Tq tokens, generated from a source of Tk tokens."""

    text: str
    written: str
    cut: bool
    """Whether the generated text was truncated at the maximum length."""
    model: Shape
    """Number of layers and heads of the decoder. An LSTM counts as one layer with one head."""
    source: list[str]
    target: list[str]
    """Generated tokens, including the EOS token if it was generated."""
    scores: list[float]
    """Probability of each target token, given the source and the previous target tokens."""
    candidates: list[list[Candidate]]
    """Most probable tokens at each position of the target."""
    attention: list[Array]
    """Attention weights from each target token to the source tokens, of shape (H, Tq, Tk) for each
    decoder layer. Rows sum to one."""
    mean: list[Array]
    """Mean of the attention weights over the heads, of shape (Tq, Tk) for each decoder layer."""
    beams: list[list[Beam]]
    """Candidates in each step of beam search, most probable first. Empty without beam search."""
    sources: dict[str, Source]


def decoder_steps(
    writer: Generate, text: str, *, beams: int | None = None, max_tokens: int = MAX_TOKENS
) -> DecoderSteps:
    """Generate a text with an encoder-decoder model, and record each step.

    Args:
        writer: The model.
        text: The source text.
        beams: Number of beams. Default: the number in the settings of the model directory.
        max_tokens: Maximum number of tokens to generate.

    Raises:
        CheckpointError: If the model has no decoder that attends to a source.
        DataError: If the text is empty, or has more tokens than the model supports or than
            `MAX_TOKENS`.
    """
    pipeline = DecodePipeline(writer)
    works = pipeline.prepare([text], long="error", beams=beams, max_tokens=max_tokens)
    return pipeline.run(works)[0]


class DecodePipeline:
    """Pipeline that returns the decoding steps of an encoder-decoder model."""

    policies: tuple[Long, ...] = ("error",)

    def __init__(self, writer: Generate) -> None:
        self.writer, self.loaded = writer, writer.loaded

    def prepare(
        self,
        items: Sequence[str],
        *,
        long: Long,
        beams: int | None = None,
        max_tokens: int = MAX_TOKENS,
    ) -> list[Work]:
        """Tokenize texts, and return the work for each text.

        For the errors, see `decoder_steps`.
        """
        check_attention(self.loaded)
        for text in items:
            if not text.strip():
                raise DataError("text: must not be empty")
        works = self.writer.prepare(items, long=long, num_beams=beams, max_tokens=max_tokens)
        return [self._bounded(work) for work in works]

    def run(self, works: Sequence[Work]) -> list[DecoderSteps]:
        """Return the decoding steps of each text."""
        return [self._steps(*work.item) for work in works]

    def _bounded(self, work: Work) -> Work:
        """Add the size of the response to a work, and check the length of its source."""
        text, request, decoding = work.item
        tokens = len(request.source)
        if tokens > MAX_TOKENS:
            raise DataError(
                f"{text[:40]!r}…: has {tokens:,} tokens, but the page shows at most "
                f"{MAX_TOKENS}; shorten the text"
            )
        shape = self._config
        most = self.writer.stepper.max_new_tokens(request, decoding.max_tokens)
        size = WEIGHT_BYTES * shape.layers * (shape.heads + 1) * most * tokens
        return Work([], work.item, work.more + tokens + most, size)

    @torch.inference_mode()
    def _steps(self, text: str, request: Request, decoding: Decoding) -> DecoderSteps:
        writer, stepper = self.writer, self.writer.stepper
        rules, record = writer.rules([text]), list[BeamStep]()
        if decoding.num_beams > 1:
            ((best, *_),) = beam_search(stepper, [request], decoding, rules, record.append)
        else:
            ((best, *_),) = generate(stepper, [request], decoding, rules)
        ids, trace = request.source, Trace()
        assert ids is not None
        logits = stepper.read(request, best.ids, trace)
        target = _target(best, logits, rules)
        probabilities = torch.softmax(logits[: len(target)], -1)
        weights = torch.stack([layer[0][:, : len(target)] for layer in trace.cross])
        return DecoderSteps(
            text=text,
            written=writer.answer(best, request).text,
            cut=best.ended == "length",
            model=self._shape(len(weights)),
            source=spelled(writer.tokenizer, ids),
            target=spelled(writer.target, target),
            scores=probabilities[torch.arange(len(target)), target].tolist(),
            candidates=[likeliest(writer.target, row) for row in probabilities],
            attention=[coded(layer, "float16") for layer in weights],
            mean=[coded(layer, "float16") for layer in weights.mean(1)],
            beams=tree(record, decoding.num_beams, target, writer.target),
            sources={part: source(function) for part, function in SOURCES.items()},
        )

    @property
    def _config(self) -> EncoderConfig:
        decoder = self.loaded.model.decoder
        assert decoder is not None
        return decoder.config

    def _shape(self, layers: int) -> Shape:
        loaded, config = self.loaded, self._config
        name, family = loaded.folder.resolve().name, loaded.family.name
        return Shape(name, family, layers, config.heads, config.hidden, loaded.length)


def _target(written: GeneratedTokens, logits: Tensor, rules: Rules) -> list[int]:
    """Return the generated tokens. If the text ended with an EOS token, it is the last token."""
    if written.ended != "end":
        return written.ids
    ends = list(rules.ends)
    return [*written.ids, ends[int(logits[len(written.ids), ends].argmax())]]


def tree(
    record: Sequence[BeamStep], beams: int, target: Sequence[int], tokenizer: Tokenizer
) -> list[list[Beam]]:
    """Convert steps of beam search to the candidates that the page shows as a tree.

    Args:
        record: Steps of the search for one request.
        beams: Number of beams.
        target: Tokens of the best result.
        tokenizer: Tokenizer of the generated text.
    """
    steps: list[list[Beam]] = []
    # For each beam: its index in the last list of `steps`, and its tokens.
    active: list[tuple[int | None, list[int]]] = [(None, [])]
    for step in record:
        candidates: list[Beam] = []
        texts: dict[int, tuple[int, list[int]]] = {}
        tokens = spelled(tokenizer, step.tokens)
        for index, (beam, score) in enumerate(zip(step.beams, step.scores, strict=True)):
            if score <= MIN_SCORE / 2:
                continue
            before, ids = active[beam]
            text = [*ids, step.tokens[index]]
            texts[index] = len(candidates), text
            ended = step.ended[index] is not None and index < beams
            state: State = "ended" if ended else "kept" if index in step.kept else "dropped"
            wins = text == list(target[: len(text)])
            candidates.append(Beam(before, tokens[index], score, state, wins))
        steps.append(candidates)
        active = [texts.get(index, (None, [])) for index in step.kept]
    return steps


SOURCES: dict[str, Callable[..., Any]] = {
    "steps": Stepper.read,
    "attention": CrossAttention.forward,
    "beams": beam_search,
}
"""Functions that compute the parts of the page, which shows their source code."""
