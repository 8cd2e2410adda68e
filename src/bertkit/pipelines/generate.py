"""Texts to what a model writes behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.folder import Loaded
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError, DataError
from bertkit.models.generate import Decoding, Ended, Stops, Writing, Written, generate
from bertkit.models.stepper import CausalStepper, Request
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline, batched

ROWS = 64
"""Texts written at a time."""

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for the first bytes of a character whose others have not come."""


class GeneratedText(msgspec.Struct, frozen=True):
    """What a model wrote, without its prompt."""

    text: str
    score: float
    """Log-probability, in beam search over the length to the power of the penalty."""
    tokens: int
    ended: Ended
    """By the model's end token, by a stop string, or cut as no room was left."""


class Generate(ModelPipeline):
    """Prompts -> what the model writes behind them, best first.

    A text depends on its prompt and the settings alone: it is the same in any company.
    """

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self._needs("lm", "take a model that writes, such as GPT-2")
        self.stepper = CausalStepper(
            self.engine.model, loaded.length, vocab=loaded.tokenizer.vocab_size
        )

    def __call__(
        self, prompts: Sequence[str], decoding: Decoding | None = None, *, stop: Sequence[str] = ()
    ) -> list[list[GeneratedText]]:
        """The `best` texts for each prompt; one also ends before any of the strings `stop`.

        Raises: DataError for a prompt that leaves no room.
        """
        decoding = decoding or Decoding()
        requests, stops = self._requests(prompts), self._stops(stop)
        order = sorted(range(len(requests)), key=lambda place: len(requests[place].prompt))
        answers: list[list[GeneratedText]] = [[] for _ in requests]
        rows = max(1, ROWS // max(decoding.beams, decoding.best))
        for places in batched(order, rows):
            some = [requests[place] for place in places]
            texts = generate(self.stepper, some, decoding, ends=[self.tokenizer.eos], stops=stops)
            for place, written in zip(places, texts, strict=True):
                answers[place] = [self._answer(one, requests[place], stop) for one in written]
        return answers

    def stream(
        self, prompt: str, decoding: Decoding | None = None, *, stop: Sequence[str] = ()
    ) -> Iterator[str]:
        """The same text in pieces, as they are written.

        Raises: ConfigError for beam search, which knows its text at the end alone.
        """
        decoding = decoding or Decoding()
        if decoding.beams > 1 or decoding.best > 1:
            raise ConfigError("beams, best: one text is written as it comes; leave them out")
        (request,) = self._requests([prompt])
        ends = [self.tokenizer.eos]
        writing = Writing(self.stepper, decoding, ends=ends, stops=self._stops(stop))
        (row,) = writing.add([request])
        sent, longest = "", max(map(len, stop), default=1)
        while row.ended is None:
            text = self._text(row.ids, request.prompt)
            # the end may turn into a stop string, or another character
            ready = text.rstrip(UNFINISHED)[: len(text) - longest + 1]
            if len(ready) > len(sent):
                yield ready[len(sent) :]
                sent = ready
            writing.step()
        whole = self._answer(row.written, request, stop).text
        if len(whole) > len(sent):
            yield whole[len(sent) :]

    def _requests(self, prompts: Sequence[str]) -> list[Request]:
        requests = []
        for prompt, ids in zip(prompts, self.tokenizer.ids(prompts), strict=True):
            if not len(ids):
                ids = np.array([self.tokenizer.eos])
            if len(ids) >= self.stepper.length:
                raise DataError(
                    f"{prompt[:60]!r}: {len(ids):,} tokens fill the model, which has room for "
                    f"{self.stepper.length:,}; shorten it"
                )
            requests.append(Request(ids))
        return requests

    def _stops(self, stop: Sequence[str]) -> Stops | None:
        if not all(stop):
            raise ConfigError("stop: an empty string ends every text; leave it out")
        if not stop:
            return None
        # a stop string has at most as many tokens as bytes, and may begin inside of one
        tail = 1 + max(len(one.encode()) for one in stop)

        def stops(ids: Sequence[int]) -> bool:
            text = self.tokenizer.decode(ids[-tail:])
            return any(one in text for one in stop)

        return stops

    def _answer(self, written: Written, request: Request, stop: Sequence[str]) -> GeneratedText:
        text = self._text(written.ids, request.prompt)
        if written.ended == "stop":
            text = text[: min(place for one in stop if (place := text.find(one)) >= 0)]
        return GeneratedText(text, written.score, len(written.logprobs), written.ended)

    def _text(self, ids: Sequence[int], prompt: NDArray[np.int64]) -> str:
        """What these ids add to the text of the prompt, a space before its first word included."""
        if not ids:
            return ""
        last = prompt[-1:].tolist()
        before = self.tokenizer.decode(last)
        both = self.tokenizer.decode([*last, *ids])
        return both[len(before) :] if both.startswith(before) else self.tokenizer.decode(ids)
