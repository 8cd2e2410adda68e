"""Texts to what a model writes behind them."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from bertkit.batch import by_length
from bertkit.checkpoint.directory import Loaded
from bertkit.config import plain, with_keywords
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.generation.beam import finish
from bertkit.extensions.generation.chat_format import ChatFormat, Message, check
from bertkit.extensions.generation.decoding import Decoding, Ended, Rules, Written, one_of
from bertkit.extensions.generation.generate import GeneratedRow, Writing, generate, generate_steps
from bertkit.extensions.generation.stepper import Request, stepper_of
from bertkit.models.model import Model
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import CACHE_TOKENS, ModelPipeline, Work
from bertkit.synonyms import check_keywords
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer

ANY_LENGTH = 1 << 30
"""Of a text: whether it is too long is for the stepper to say."""

PARTIAL_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for the first bytes of a character whose others have not come."""


Prompt = str | Sequence[Message]
"""A text, or a conversation whose next turn is the model's."""


def _messages(prompt: Prompt) -> Sequence[Message]:
    messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
    check(messages, "messages")
    return messages


def merge_decoding(base: Decoding, decoding: Decoding | Mapping[str, Any] | None) -> Decoding:
    """Return the settings of a call.

    Args:
        base: The settings of the model directory.
        decoding: A mapping changes some settings of `base`; an object replaces all.

    Raises:
        ConfigError: If a setting is unknown, or has a value that it cannot have.
    """
    if decoding is None:
        return base
    if isinstance(decoding, Mapping):
        decoding = {**plain(base), **decoding}
    (checked,) = with_keywords("generate", {Decoding: decoding}, {})
    return cast(Decoding, checked)


def _prompt(loaded: Loaded) -> str:
    """What a model was taught to find before every text, by `finetune seq2seq`."""
    record = loaded.settings.get("bertkit", {}).get("task", {})
    options = record.get("options") if record.get("name") == "seq2seq" else None
    prompt = options.get("prompt") if isinstance(options, dict) else None
    return prompt if isinstance(prompt, str) else ""


class WrittenToken(msgspec.Struct, frozen=True):
    """A token, and how likely the model found it."""

    text: str
    probability: float


class GeneratedText(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model wrote, without its prompt."""

    text: str
    score: float
    """Log-probability of the text, whatever the constraints; in beam search divided by the length
    to the power of the penalty."""
    tokens: int
    ended: Ended
    """By the model's end token, by a stop string, or truncated at the maximum length."""
    each: list[WrittenToken] = []
    """Its tokens, where they are asked for."""


class Generate(ModelPipeline):
    """Prompts or conversations -> what the model writes behind them, best first; of a model with an
    encoder (Marian) texts -> what it makes of them.

    A text depends on its prompt and the settings alone: it is the same in any company.
    """

    @staticmethod
    def sample(model: Model, tokenizer: Tokenizer) -> str:
        """Return a text of at most 40 tokens that a causal model writes; it is always the same."""
        stepper = stepper_of(model.eval(), vocab=tokenizer.vocab_size)
        start = Request(np.array(tokenizer.begin[-1:]))
        decoding = Decoding(max_tokens=40, temperature=1.0, top_p=0.9)
        ((text,),) = generate(stepper, [start], decoding, Rules([tokenizer.eos]))
        return tokenizer.decode(text.ids)

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self._get_head("lm", "take a model that writes, such as GPT-2")
        if loaded.generation.unsupported:
            raise CheckpointError(loaded.generation.unsupported)
        self.reads = self.engine.model.decoder is not None
        self.target = loaded.target
        vocab = self.target.vocab_size
        self.stepper = stepper_of(self.engine.model, loaded.length, vocab=vocab)
        self.prompt = _prompt(loaded)

    @check_keywords
    def __call__(
        self,
        prompts: str | Sequence[Prompt],
        decoding: Decoding | Mapping[str, Any] | None = None,
        *,
        stop: Sequence[str] = (),
        prefix: str = "",
        choices: Sequence[str] = (),
    ) -> list[list[GeneratedText]]:
        """Generate the `best` texts for each prompt.

        Args:
            prompts: Texts or conversations.
            decoding: How tokens are chosen. A mapping changes some settings of the model directory;
                a `Decoding` replaces all.
            stop: Strings before which a text ends, too.
            prefix: String that each text begins with.
            choices: Strings of which each text is one, after the prefix.

        Raises:
            ConfigError: If settings cannot be combined.
            DataError: If a prompt leaves no room, or if the vocabulary cannot write a text.
        """
        if isinstance(prompts, str):
            prompts = [prompts]
        decoding = merge_decoding(self.loaded.generation.decoding, decoding)
        requests, rules = self.requests(prompts), self.rules(prompts, stop, prefix, choices)
        if choices:
            self._check_choices(requests, decoding, rules, choices)
        copies = max(decoding.beams, decoding.best)
        lengths = [copies * self.cost(one, decoding) for one in requests]
        answers: list[list[GeneratedText]] = [[] for _ in requests]
        for places in by_length(lengths, CACHE_TOKENS):
            some = [requests[place] for place in places]
            texts = generate(self.stepper, some, decoding, rules)
            for place, written in zip(places, texts, strict=True):
                answers[place] = [self.answer(one, requests[place], stop) for one in written]
        return answers

    def stream(
        self,
        prompt: Prompt,
        decoding: Decoding | Mapping[str, Any] | None = None,
        *,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """The same text in pieces, as they are written.

        Raises: ConfigError for beam search, which knows its text at the end alone.
        """
        base = structs.replace(self.loaded.generation.decoding, beams=1, best=1)
        decoding = merge_decoding(base, decoding)
        if decoding.beams > 1 or decoding.best > 1:
            raise ConfigError("beams, best: one text is written as it comes; leave them out")
        (request,), rules = self.requests([prompt]), self.rules([prompt], stop)
        writing = Writing(self.stepper)
        row = GeneratedRow.of(self.stepper, request, decoding, rules)
        writing.add([row])
        sent = 0
        while True:
            text = self.ready(row, stop)
            if len(text) > sent:
                yield text[sent:]
                sent = len(text)
            if row.ended is not None:
                return
            writing.step()

    def ready(self, row: GeneratedRow, stop: Sequence[str] = ()) -> str:
        """What of a row's text will not change any more, all of it when it has ended."""
        if row.ended is not None:
            return self.answer(row.written, row.request, stop).text
        text, longest = self._text(row.ids, row.request.prompt), max(map(len, stop), default=1)
        # the end may turn into a stop string, or another character
        return text.rstrip(PARTIAL_CHARACTER)[: len(text) - longest + 1]

    # ---- in company, behind a server: a Pipeline

    policies: tuple[Long, ...] = ("error",)

    def prepare(
        self,
        items: Sequence[Prompt],
        *,
        long: Long,
        beams: int | None = None,
        max_tokens: int | None = None,
    ) -> list[Work]:
        """Raises: DataError for a text that is longer than the model reads."""
        given = {"beams": beams, "max_tokens": max_tokens}
        changes = {name: value for name, value in given.items() if value is not None}
        decoding = merge_decoding(self.loaded.generation.decoding, changes)
        return [
            Work([], (item, request, decoding), decoding.beams * self.cost(request, decoding))
            for item, request in zip(items, self.requests(items), strict=True)
        ]

    def cost(self, request: Request, decoding: Decoding) -> int:
        """Tokens that are read, and that may be written."""
        return request.tokens + self.stepper.room(request, decoding.max_tokens)

    def run(self, works: Sequence[Work]) -> list[GeneratedText]:
        """Return the best text for each; those with equal settings are generated together."""
        return finish(self.steps(works))

    def steps(self, works: Sequence[Work]) -> Generator[int, None, list[GeneratedText]]:
        """Run like `run`. Yields: the number of sequences after each step."""
        answers: dict[int, GeneratedText] = {}
        for decoding in {work.item[2] for work in works}:
            places = [i for i, work in enumerate(works) if work.item[2] == decoding]
            prompts, requests, _ = zip(*(works[i].item for i in places), strict=True)
            rules = self.rules(prompts)
            texts = yield from generate_steps(self.stepper, requests, decoding, rules)
            for place, request, (best, *_) in zip(places, requests, texts, strict=True):
                answers[place] = self.answer(best, request, tokens=True)
        return [answers[place] for place in range(len(works))]

    def requests(self, prompts: Sequence[Prompt]) -> list[Request]:
        """What a model goes on from. Raises: DataError for a prompt that leaves no room."""
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if len(texts) < len(prompts):
            requests = [Request(self.chat.encode(_messages(prompt))[0]) for prompt in prompts]
        elif not self.reads:
            requests = [
                Request(ids if len(ids) else np.array([self._first]))
                for ids in self.tokenizer.ids(texts, special=True)
            ]
        else:
            encodings = self.tokenizer.encode_batch(
                texts, max_length=ANY_LENGTH, prompts=[self.prompt] * len(texts)
            )
            requests = [self.request(encoding) for encoding in encodings]
        for prompt, request in zip(prompts, requests, strict=True):
            try:
                self.stepper.room(request)
            except DataError as error:
                text = prompt if isinstance(prompt, str) else prompt[-1].content
                raise DataError(f"{text[:60]!r}: {error}") from None
        return requests

    def request(self, encoding: Encoding) -> Request:
        """A text for a model's encoder, of which its decoder is to write another."""
        return Request(np.array([self._start]), encoding.ids)

    @property
    def _first(self) -> int:
        """What stands before a text that nothing else stands before."""
        if not self.tokenizer.ends:
            raise DataError(
                "prompt: it is empty, and the vocabulary has no token that stands between texts; "
                "give the first words"
            )
        return self.tokenizer.eos

    @cached_property
    def chat(self) -> ChatFormat:
        """How the model's vocabulary writes conversations."""
        if self.reads:
            raise CheckpointError(
                f"{self.loaded.folder}: reads a text and writes another; conversations need a "
                "model that goes on with its prompt, such as SmolLM2"
            )
        return ChatFormat(self.tokenizer)

    @property
    def _start(self) -> int:
        """What a decoder's texts begin with."""
        start: int | None = self.loaded.generation.start
        if start is None:
            raise CheckpointError(
                f"{self.loaded.folder}: nothing says what its texts begin with; name it as "
                "decoder_start_token_id in generation_config.json"
            )
        return start

    def rules(
        self,
        prompts: Sequence[Prompt],
        stop: Sequence[str] = (),
        prefix: str = "",
        choices: Sequence[str] = (),
    ) -> Rules:
        """What its texts have to be like. Raises: ConfigError, DataError for what cannot be."""
        if not all(stop):
            raise ConfigError("stop: an empty string ends every text; leave it out")
        said = self.loaded.generation
        ends = said.ends or self.target.ends
        if not all(isinstance(prompt, str) for prompt in prompts):
            ends = tuple(dict.fromkeys([*ends, self.chat.end]))
        # transformers forces the first token only where nothing precedes it.
        first = [said.first] if self.reads and said.first is not None else []
        allowed = None
        if choices and stop:
            raise ConfigError("choices cannot be combined with stop; remove stop")
        if choices and not ends:
            raise ConfigError(
                "choices: the vocabulary has no token that ends a text; score the texts by "
                "`bertkit evaluate prompts`"
            )
        if choices:
            allowed = one_of([self._written(text, "choices") for text in choices], ends)
        begins = [*first, *self._written(prefix, "prefix")]
        rules = Rules(
            ends,
            forbidden=said.forbidden,
            prefix=begins,
            allowed=allowed,
            phrases=said.phrases,
            begin_forbidden=said.begin_forbidden,
            last=said.last,
            min_length=said.min_length,
            max_length=said.max_length,
        )
        if not stop:
            return rules
        # a stop string has at most as many tokens as bytes, and may begin inside of one
        tail = 1 + max(len(one.encode()) for one in stop)

        def stops(ids: Sequence[int]) -> bool:
            text = self.target.decode(ids[-tail:])
            return any(one in text for one in stop)

        return replace(rules, stops=stops)

    def _check_choices(
        self,
        requests: Sequence[Request],
        decoding: Decoding,
        rules: Rules,
        choices: Sequence[str],
    ) -> None:
        """Check that each choice fits. Raises: DataError if it does not."""
        size = len(rules.prefix) + max(len(self._written(text, "choices")) for text in choices)
        for request in requests:
            most = rules.max_tokens(len(request.prompt), decoding)
            room = self.stepper.room(request, most)
            if size > room:
                raise DataError(
                    f"choices: the longest text has {size:,} tokens, and {room:,} are allowed; "
                    "increase max_tokens, or shorten the prompt or the choice"
                )

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

    def answer(
        self,
        written: Written,
        request: Request,
        stop: Sequence[str] = (),
        *,
        tokens: bool = False,
    ) -> GeneratedText:
        """The text of what was written, and its tokens if they are wanted."""
        text = self._text(written.ids, request.prompt)
        if written.ended == "stop":
            text = text[: min(place for one in stop if (place := text.find(one)) >= 0)]
        each = [
            WrittenToken(self._text([token], request.prompt), math.exp(logprob))
            for token, logprob in zip(written.ids, written.logprobs, strict=False)
            if tokens
        ]
        return GeneratedText(text, written.score, len(written.logprobs), written.ended, each)

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
