"""How a decoder writes, step by step: where it looks, what else it may write, and its beams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

from bertkit.errors import DataError
from bertkit.extensions.generation.alignment import need_attention
from bertkit.extensions.generation.beam import LEAST, BeamStep, beam_search
from bertkit.extensions.generation.decoding import Decoding, Rules, Written
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
"""Tokens of a text that is read, and of one that is written, at most: a step is a column."""

State = Literal["kept", "ended", "dropped"]

WEIGHT_BYTES = 4
"""Bytes of a weight of attention: 16 bits in base64, and as much again for what is around it."""


class Beam(msgspec.Struct, frozen=True):
    """A text that one step of beam search weighed, by its last token."""

    before: int | None
    """Which text of the step before it goes on from."""
    token: str
    score: float
    """Log-probability of all of its tokens."""
    state: State
    wins: bool
    """Whether it is a beginning of the text that was written, or all of it."""


class DecoderSteps(msgspec.Struct, frozen=True, kw_only=True):
    """How a decoder writes a text from another. Tq is the tokens of what it wrote, Tk those of
    what it read.
    """

    text: str
    written: str
    cut: bool
    """Whether there was no room for the rest."""
    model: Shape
    """Its layers and heads are the decoder's; LSTMs have one attention, and so one of each."""
    source: list[str]
    target: list[str]
    """With the token that ends it, if that was written."""
    scores: list[float]
    """The probability of each token of the target, behind those before it."""
    candidates: list[list[Candidate]]
    """The likeliest tokens at each place of the target."""
    attention: list[Array]
    """(H, Tq, Tk) a layer of the decoder, the rows sum to one: where it looks in what it read while
    it writes each token."""
    mean: list[Array]
    """(Tq, Tk) a layer: over its heads."""
    beams: list[list[Beam]]
    """Of each step of beam search, the likeliest first; empty where one beam is kept."""
    sources: dict[str, Source]


def decoder_steps(
    writer: Generate, text: str, *, beams: int | None = None, max_tokens: int = MAX_TOKENS
) -> DecoderSteps:
    """How a model with an encoder writes another text from this one.

    It is written with so many `beams`, by default those of the model's folder. Raises: DataError
    for a text without words, or one that is longer than the model reads or `MAX_TOKENS` tokens.
    """
    pipeline = DecodePipeline(writer)
    works = pipeline.prepare([text], long="error", beams=beams, max_tokens=max_tokens)
    return pipeline.run(works)[0]


class DecodePipeline:
    """A pipeline: texts -> how a model with an encoder writes others from them."""

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
        """Raises: DataError as `decoder_steps` does."""
        need_attention(self.loaded)
        for text in items:
            if not text.strip():
                raise DataError("text: is empty; give it a word at least")
        works = self.writer.prepare(items, long=long, beams=beams, max_tokens=max_tokens)
        return [self._bounded(work) for work in works]

    def run(self, works: Sequence[Work]) -> list[DecoderSteps]:
        """How each is written."""
        return [self._steps(text, *asked) for text, *asked in (work.item for work in works)]

    def _bounded(self, work: Work) -> Work:
        text, request, decoding = work.item
        tokens = len(request.source)
        if tokens > MAX_TOKENS:
            raise DataError(
                f"{text[:40]!r}…: {tokens:,} tokens, and a page shows {MAX_TOKENS}; shorten it"
            )
        shape = self._config
        room = self.writer.stepper.room(request, decoding.max_tokens)
        size = WEIGHT_BYTES * shape.layers * (shape.heads + 1) * room * tokens
        return Work([], work.item, work.more + tokens + room, size)

    @torch.inference_mode()
    def _steps(self, text: str, request: Request, decoding: Decoding) -> DecoderSteps:
        writer, stepper = self.writer, self.writer.stepper
        rules, record = writer.rules([text]), list[BeamStep]()
        if decoding.beams > 1:
            ((best, *_),) = beam_search(stepper, [request], decoding, rules, record.append)
        else:
            ((best, *_),) = generate(stepper, [request], decoding, rules)
        read, trace = request.source, Trace()
        assert read is not None
        logits = stepper.read(request, best.ids, trace)
        target = _target(best, logits, rules)
        chances = torch.softmax(logits[: len(target)], -1)
        weights = torch.stack([layer[0][:, : len(target)] for layer in trace.cross])
        return DecoderSteps(
            text=text,
            written=writer.answer(best, request).text,
            cut=best.ended == "length",
            model=self._shape(len(weights)),
            source=spelled(writer.tokenizer, read),
            target=spelled(writer.target, target),
            scores=chances[torch.arange(len(target)), target].tolist(),
            candidates=[likeliest(writer.target, row) for row in chances],
            attention=[coded(layer, "float16") for layer in weights],
            mean=[coded(layer, "float16") for layer in weights.mean(1)],
            beams=tree(record, decoding.beams, target, writer.target),
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


def _target(written: Written, logits: Tensor, rules: Rules) -> list[int]:
    """What was written, with the token that ends it if there is one; of several the likeliest."""
    if written.ended != "end":
        return written.ids
    ends = list(rules.ends)
    return [*written.ids, ends[int(logits[len(written.ids), ends].argmax())]]


def tree(
    record: Sequence[BeamStep], beams: int, target: Sequence[int], tokenizer: Tokenizer
) -> list[list[Beam]]:
    """The search of one request, of which `target` is the best result."""
    steps: list[list[Beam]] = []
    living: list[tuple[int | None, list[int]]] = [(None, [])]  # where each beam is shown, its text
    for step in record:
        shown: list[Beam] = []
        here: dict[int, tuple[int, list[int]]] = {}
        pieces = spelled(tokenizer, step.tokens)
        for place, (beam, score) in enumerate(zip(step.beams, step.scores, strict=True)):
            if score <= LEAST / 2:
                continue
            before, ids = living[beam]
            text = [*ids, step.tokens[place]]
            here[place] = len(shown), text
            ended = step.ended[place] is not None and place < beams
            state: State = "ended" if ended else "kept" if place in step.kept else "dropped"
            wins = text == list(target[: len(text)])
            shown.append(Beam(before, pieces[place], score, state, wins))
        steps.append(shown)
        living = [here.get(place, (None, [])) for place in step.kept]
    return steps


SOURCES: dict[str, Callable[..., Any]] = {
    "steps": Stepper.read,
    "attention": CrossAttention.forward,
    "beams": beam_search,
}
"""What computes each part of the page."""
