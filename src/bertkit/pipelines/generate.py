"""Texts to what a model writes behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from bertkit.batch import by_length
from bertkit.checkpoint.folder import Loaded
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.models.decoding import Decoding, Ended, Rules, Written, one_of
from bertkit.models.generate import Writing, generate
from bertkit.models.stepper import CausalStepper, DecoderStepper, Request
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import ModelPipeline
from bertkit.text.chat import Chat, Message, check
from bertkit.text.tokenizer import Tokenizer

PLACES = 32_768
"""Tokens, with those to come, for which there is room in the cache at a time."""

ANY_LENGTH = 1 << 30
"""Of a text: whether it is too long is for the stepper to say."""

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for the first bytes of a character whose others have not come."""


Prompt = str | Sequence[Message]
"""A text, or a conversation whose next turn is the model's."""


def _messages(prompt: Prompt) -> Sequence[Message]:
    messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
    check(messages, "messages")
    return messages


class GeneratedText(msgspec.Struct, frozen=True):
    """What a model wrote, without its prompt."""

    text: str
    score: float
    """Log-probability, in beam search over the length to the power of the penalty."""
    tokens: int
    ended: Ended
    """By the model's end token, by a stop string, or cut as no room was left."""


class Generate(ModelPipeline):
    """Prompts or conversations -> what the model writes behind them, best first; of a model with an
    encoder (Marian) texts -> what it makes of them.

    A text depends on its prompt and the settings alone: it is the same in any company.
    """

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self._needs("lm", "take a model that writes, such as GPT-2")
        self.reads = self.engine.model.decoder is not None
        kind = DecoderStepper if self.reads else CausalStepper
        self.stepper = kind(self.engine.model, loaded.length, vocab=loaded.tokenizer.vocab_size)
        self.target = self.tokenizer
        if self.reads and (loaded.folder / "target.spm").exists():
            self.target = Tokenizer.load(loaded.folder, side="target")

    def __call__(
        self,
        prompts: Sequence[Prompt],
        decoding: Decoding | None = None,
        *,
        stop: Sequence[str] = (),
        prefix: str = "",
        choices: Sequence[str] = (),
    ) -> list[list[GeneratedText]]:
        """The `best` texts for each prompt; one also ends before any of the strings `stop`.

        A text begins with `prefix`, behind which it is one of the `choices` if there are any.
        Raises: DataError for a prompt that leaves no room, or what the vocabulary cannot write.
        """
        decoding = decoding or self.loaded.generation.decoding
        requests, rules = self._requests(prompts), self._rules(prompts, stop, prefix, choices)
        copies = max(decoding.beams, decoding.best)
        lengths = [
            copies * (one.tokens + self.stepper.room(one, decoding.max_tokens)) for one in requests
        ]
        answers: list[list[GeneratedText]] = [[] for _ in requests]
        for places in by_length(lengths, PLACES):
            some = [requests[place] for place in places]
            texts = generate(self.stepper, some, decoding, rules)
            for place, written in zip(places, texts, strict=True):
                answers[place] = [self._answer(one, requests[place], stop) for one in written]
        return answers

    def stream(
        self, prompt: Prompt, decoding: Decoding | None = None, *, stop: Sequence[str] = ()
    ) -> Iterator[str]:
        """The same text in pieces, as they are written.

        Raises: ConfigError for beam search, which knows its text at the end alone.
        """
        decoding = decoding or structs.replace(self.loaded.generation.decoding, beams=1)
        if decoding.beams > 1 or decoding.best > 1:
            raise ConfigError("beams, best: one text is written as it comes; leave them out")
        (request,) = self._requests([prompt])
        writing = Writing(self.stepper, decoding, self._rules([prompt], stop))
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

    def _requests(self, prompts: Sequence[Prompt]) -> list[Request]:
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if len(texts) < len(prompts):
            requests = [Request(self.chat.encode(_messages(prompt))[0]) for prompt in prompts]
        elif not self.reads:
            requests = [
                Request(ids if len(ids) else np.array([self.tokenizer.eos]))
                for ids in self.tokenizer.ids(texts)
            ]
        else:
            start = np.array([self._start])
            encodings = self.tokenizer.encode_batch(texts, max_length=ANY_LENGTH)
            requests = [Request(start, encoding.ids) for encoding in encodings]
        for prompt, request in zip(prompts, requests, strict=True):
            try:
                self.stepper.room(request)
            except DataError as error:
                text = prompt if isinstance(prompt, str) else prompt[-1].content
                raise DataError(f"{text[:60]!r}: {error}") from None
        return requests

    @cached_property
    def chat(self) -> Chat:
        """How the model's vocabulary writes conversations."""
        if self.reads:
            raise CheckpointError(
                f"{self.loaded.folder}: reads a text and writes another; conversations need a "
                "model that goes on with its prompt, such as SmolLM2"
            )
        return Chat(self.tokenizer)

    @property
    def _start(self) -> int:
        """What a decoder's texts begin with."""
        start = self.loaded.generation.start
        if start is None:
            raise CheckpointError(
                f"{self.loaded.folder}: nothing says what its texts begin with; name it as "
                "decoder_start_token_id in generation_config.json"
            )
        return start

    def _rules(
        self,
        prompts: Sequence[Prompt],
        stop: Sequence[str] = (),
        prefix: str = "",
        choices: Sequence[str] = (),
    ) -> Rules:
        if not all(stop):
            raise ConfigError("stop: an empty string ends every text; leave it out")
        said = self.loaded.generation
        ends = said.ends or (self.target.eos,)
        if not all(isinstance(prompt, str) for prompt in prompts):
            ends = tuple(dict.fromkeys([*ends, self.chat.end]))
        first = [] if said.first is None else [said.first]
        allowed = None
        if choices:
            allowed = one_of([self._written(text, "choices") for text in choices], ends)
        begins = [*first, *self._written(prefix, "prefix")]
        rules = Rules(ends, forbidden=said.forbidden, prefix=begins, allowed=allowed)
        if not stop:
            return rules
        # a stop string has at most as many tokens as bytes, and may begin inside of one
        tail = 1 + max(len(one.encode()) for one in stop)

        def stops(ids: Sequence[int]) -> bool:
            text = self.target.decode(ids[-tail:])
            return any(one in text for one in stop)

        return replace(rules, stops=stops)

    def _written(self, text: str, name: str) -> list[int]:
        """The tokens that a model writes for a text."""
        if not text and name == "prefix":
            return []
        ids: list[int] = self.target.ids([text])[0].tolist()
        if not ids or self.target.decode(ids).strip() != text.strip():
            raise DataError(
                f"{name}: the vocabulary cannot write {text[:60]!r}; write it otherwise"
            )
        return ids

    def _answer(self, written: Written, request: Request, stop: Sequence[str]) -> GeneratedText:
        text = self._text(written.ids, request.prompt)
        if written.ended == "stop":
            text = text[: min(place for one in stop if (place := text.find(one)) >= 0)]
        return GeneratedText(text, written.score, len(written.logprobs), written.ended)

    def _text(self, ids: Sequence[int], prompt: NDArray[np.int64]) -> str:
        """What these ids add to the text of the prompt, a space before its first word included."""
        if not ids:
            return ""
        if self.reads:
            return self.target.decode(ids)
        last = prompt[-1:].tolist()
        before = self.tokenizer.decode(last)
        both = self.tokenizer.decode([*last, *ids])
        return both[len(before) :] if both.startswith(before) else self.tokenizer.decode(ids)
