"""Pipeline of text generation."""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, cast

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from bertkit.batch import by_length
from bertkit.checkpoint.directory import Loaded
from bertkit.config import plain, with_keywords
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError, DataError, check_choice
from bertkit.extensions.generation.beam import finish
from bertkit.extensions.generation.chat_format import ChatFormat, Message, check_messages
from bertkit.extensions.generation.decoding import (
    Decoding,
    Ended,
    GeneratedTokens,
    Rules,
    allow_only,
)
from bertkit.extensions.generation.generate import (
    GeneratedRow,
    GenerationBatch,
    generate,
    generate_steps,
)
from bertkit.extensions.generation.generation_config import FIELDS, generation_of
from bertkit.extensions.generation.stepper import Request, stepper_of
from bertkit.models.model import Model
from bertkit.nn.precision import Inference
from bertkit.pipelines.base import CACHE_TOKENS, ModelPipeline, Work
from bertkit.synonyms import check_keywords, suggestion
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer

ANY_LENGTH = 1 << 30
"""Maximum length that truncates no text; the stepper checks the length instead."""

PARTIAL_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""Character that the tokenizer decodes for an incomplete sequence of UTF-8 bytes."""


Prompt = str | Sequence[Message]
"""A text, or a conversation that the model continues with the assistant's next message."""


def _messages(prompt: Prompt) -> Sequence[Message]:
    messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
    check_messages(messages, "messages")
    return messages


def merge_decoding(base: Decoding, decoding: Decoding | Mapping[str, Any] | None) -> Decoding:
    """Return the decoding settings of a call.

    Args:
        base: The settings of the model directory.
        decoding: A mapping changes some settings of `base`; a `Decoding` replaces all.

    Returns:
        The checked settings.

    Raises:
        ConfigError: If a setting is unknown or has an invalid value.
    """
    if decoding is None:
        return base
    if isinstance(decoding, Mapping):
        decoding = {**plain(base), **decoding}
    (checked,) = with_keywords("generate", {Decoding: decoding}, {})
    return cast(Decoding, checked)


def _prompt(loaded: Loaded) -> str:
    """Return the prompt that `finetune seq2seq` put before every text, or an empty string."""
    record = loaded.settings.get("bertkit", {}).get("task", {})
    options = record.get("options") if record.get("name") == "seq2seq" else None
    prompt = options.get("prompt") if isinstance(options, dict) else None
    return prompt if isinstance(prompt, str) else ""


class GeneratedToken(msgspec.Struct, frozen=True):
    """A generated token and its probability."""

    text: str
    probability: float


class GeneratedText(msgspec.Struct, frozen=True, omit_defaults=True):
    """A generated text, without its prompt."""

    text: str
    score: float
    """Log-probability of the text without constraints. Beam search divides it by the length to the
    power of `length_penalty`."""
    tokens: int
    ended: Ended
    """Reason for the end: an EOS token, a stop string, or the maximum length."""
    each: list[GeneratedToken] = []
    """The tokens with their probabilities, if requested."""


class Generate(ModelPipeline):
    """Pipeline that generates text from prompts, conversations, or source texts.

    An encoder-decoder model, such as Marian, generates text from source texts. A generated text
    depends only on its prompt and the settings, not on the other prompts of a batch.
    """

    @staticmethod
    def sample(model: Model, tokenizer: Tokenizer) -> str:
        """Return a text of at most 40 tokens from a causal model, always with the same seed."""
        stepper = stepper_of(model.eval(), vocab=tokenizer.vocab_size)
        start = Request(np.array(tokenizer.begin[-1:]))
        decoding = Decoding(max_tokens=40, temperature=1.0, top_p=0.9)
        ((text,),) = generate(stepper, [start], decoding, Rules([tokenizer.eos]))
        return tokenizer.decode(text.ids)

    def __init__(self, loaded: Loaded, engine: Engine | Inference = "fp32") -> None:
        super().__init__(loaded, engine)
        self._get_head("lm", "use a generative model such as GPT-2, T5, or BART")
        if loaded.generation.unsupported:
            raise CheckpointError(loaded.generation.unsupported)
        self.reads = self.engine.model.decoder is not None
        self.target = loaded.target
        vocab = self.target.vocab_size
        self.stepper = stepper_of(self.engine.model, loaded.length, vocab=vocab)
        self.prompt = _prompt(loaded)

    def with_settings(self, settings: Mapping[str, Any], prompt: str | None = None) -> Self:
        """Return a copy of this pipeline with other generation settings.

        Args:
            settings: Settings by the names of transformers, which take precedence over the settings
                of the model directory. With None, the default of transformers is used.
            prompt: Prompt that is put before every text. Default: the prompt of this pipeline.

        Raises:
            ConfigError: If a setting is unknown or not supported, or has an invalid value.
        """
        for name in settings:
            if name not in FIELDS:
                raise ConfigError(f"{name}: no such generation setting; {suggestion(name, FIELDS)}")
        values = {**self.loaded.generation.settings, **settings}
        try:
            generation = generation_of(values, "generation settings", self.target.vocab_size)
        except CheckpointError as error:
            raise ConfigError(str(error)) from None
        if generation.unsupported:
            raise ConfigError(generation.unsupported)
        changed = copy.copy(self)
        changed.loaded = replace(self.loaded, generation=generation)
        changed.prompt = self.prompt if prompt is None else prompt
        return changed

    @check_keywords
    def __call__(
        self,
        prompts: str | Sequence[Prompt],
        decoding: Decoding | Mapping[str, Any] | None = None,
        *,
        stop: Sequence[str] = (),
        prefix: str = "",
        choices: Sequence[str] = (),
        long: Long = "error",
    ) -> list[list[GeneratedText]]:
        """Generate `num_return_sequences` texts for each prompt.

        Args:
            prompts: Texts or conversations.
            decoding: Decoding settings. A mapping changes some settings of the model directory; a
                `Decoding` replaces all.
            stop: Strings that end a text; the text does not contain them.
            prefix: String that each text begins with.
            choices: The only strings that can be generated after the prefix.
            long: Policy for source texts longer than the maximum length: error or truncate.

        Returns:
            The texts of each prompt, best first.

        Raises:
            ConfigError: If settings cannot be combined.
            DataError: If a prompt is too long, or the tokenizer cannot represent the prefix or a
                choice.
        """
        if isinstance(prompts, str):
            prompts = [prompts]
        decoding = merge_decoding(self.loaded.generation.decoding, decoding)
        requests, rules = self.requests(prompts, long), self.rules(prompts, stop, prefix, choices)
        if choices:
            self._check_choices(requests, decoding, rules, choices)
        copies = max(decoding.num_beams, decoding.num_return_sequences)
        lengths = [copies * self.cost(request, decoding) for request in requests]
        answers: list[list[GeneratedText]] = [[] for _ in requests]
        for indices in by_length(lengths, CACHE_TOKENS):
            batch = [requests[index] for index in indices]
            texts = generate(self.stepper, batch, decoding, rules)
            for index, best in zip(indices, texts, strict=True):
                answers[index] = [self.answer(text, requests[index], stop) for text in best]
        return answers

    def stream(
        self,
        prompt: Prompt,
        decoding: Decoding | Mapping[str, Any] | None = None,
        *,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """Generate one text and yield its parts as soon as they are final.

        Args:
            prompt: A text or a conversation.
            decoding: Decoding settings. A mapping changes some settings of the model directory,
                with `num_beams` and `num_return_sequences` set to 1; a `Decoding` replaces all.
            stop: Strings that end the text; the text does not contain them.

        Raises:
            ConfigError: If `num_beams` or `num_return_sequences` is greater than 1. Beam search
                selects its text at the end only.
            DataError: If the prompt is too long.
        """
        base = structs.replace(self.loaded.generation.decoding, num_beams=1, num_return_sequences=1)
        decoding = merge_decoding(base, decoding)
        if decoding.num_beams > 1 or decoding.num_return_sequences > 1:
            raise ConfigError(
                "num_beams, num_return_sequences: not supported when streaming; remove them"
            )
        (request,), rules = self.requests([prompt]), self.rules([prompt], stop)
        batch = GenerationBatch(self.stepper)
        row = GeneratedRow.of(self.stepper, request, decoding, rules)
        batch.add([row])
        sent = 0
        while True:
            text = self.ready(row, stop)
            if len(text) > sent:
                yield text[sent:]
                sent = len(text)
            if row.ended is not None:
                return
            batch.step()

    def ready(self, row: GeneratedRow, stop: Sequence[str] = ()) -> str:
        """Return the part of a row's text that is final, or the complete text if it has ended."""
        if row.ended is not None:
            return self.answer(row.written, row.request, stop).text
        text, longest = self._text(row.ids, row.request.prompt), max(map(len, stop), default=1)
        # The last characters can become part of a stop string or of another character.
        return text.rstrip(PARTIAL_CHARACTER)[: len(text) - longest + 1]

    # ---- Batches of the server: a Pipeline

    policies: tuple[Long, ...] = ("error",)

    def prepare(
        self,
        items: Sequence[Prompt],
        *,
        long: Long,
        num_beams: int | None = None,
        max_tokens: int | None = None,
    ) -> list[Work]:
        """Tokenize the prompts and return the work of each.

        Raises:
            DataError: If a text is longer than the model supports.
        """
        options = {"num_beams": num_beams, "max_tokens": max_tokens}
        changes = {name: value for name, value in options.items() if value is not None}
        decoding = merge_decoding(self.loaded.generation.decoding, changes)
        return [
            Work([], (item, request, decoding), decoding.num_beams * self.cost(request, decoding))
            for item, request in zip(items, self.requests(items), strict=True)
        ]

    def cost(self, request: Request, decoding: Decoding) -> int:
        """Return the number of input tokens plus the maximum number of generated tokens."""
        return request.tokens + self.stepper.max_new_tokens(request, decoding.max_tokens)

    def run(self, works: Sequence[Work]) -> list[GeneratedText]:
        """Return the best text of each work. Works with equal settings share a batch."""
        return finish(self.steps(works))

    def steps(self, works: Sequence[Work]) -> Generator[int, None, list[GeneratedText]]:
        """Run like `run`, and yield the number of sequences after each step."""
        answers: dict[int, GeneratedText] = {}
        for decoding in {work.item[2] for work in works}:
            indices = [i for i, work in enumerate(works) if work.item[2] == decoding]
            prompts, requests, _ = zip(*(works[i].item for i in indices), strict=True)
            rules = self.rules(prompts)
            texts = yield from generate_steps(self.stepper, requests, decoding, rules)
            for index, request, (best, *_) in zip(indices, requests, texts, strict=True):
                answers[index] = self.answer(best, request, tokens=True)
        return [answers[index] for index in range(len(works))]

    def requests(self, prompts: Sequence[Prompt], long: Long = "error") -> list[Request]:
        """Tokenize the prompts and return the request of each.

        Args:
            prompts: Texts or conversations.
            long: Policy for source texts longer than the maximum length: error or truncate.

        Raises:
            ConfigError: If the model does not support the policy.
            DataError: If a prompt leaves no space for new tokens.
        """
        check_choice("long", long, ("error", "truncate") if self.reads else ("error",))
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if len(texts) < len(prompts):
            requests = [Request(self.chat.encode(_messages(prompt))[0]) for prompt in prompts]
        elif not self.reads:
            requests = [
                Request(ids if len(ids) else np.array([self._first]))
                for ids in self.tokenizer.ids(texts, special=True)
            ]
        else:
            length = self.loaded.length if long == "truncate" else ANY_LENGTH
            prefixes = [self.prompt] * len(texts)
            encodings = self.tokenizer.encode_batch(
                texts, max_length=length, truncate="longest", prompts=prefixes
            )
            requests = [self.request(encoding) for encoding in encodings]
        for prompt, request in zip(prompts, requests, strict=True):
            try:
                self.stepper.max_new_tokens(request)
            except DataError as error:
                text = prompt if isinstance(prompt, str) else prompt[-1].content
                raise DataError(f"{text[:60]!r}: {error}") from None
        return requests

    def request(self, encoding: Encoding) -> Request:
        """Return the request of an encoder-decoder model for a source text."""
        return Request(np.array([self._start]), encoding.ids)

    @property
    def _first(self) -> int:
        """Token that an empty prompt starts with.

        Raises:
            DataError: If the tokenizer has no EOS token.
        """
        if not self.tokenizer.ends:
            raise DataError(
                "prompt: it is empty, and the tokenizer has no EOS token to start from; "
                "pass the first words"
            )
        return self.tokenizer.eos

    @cached_property
    def chat(self) -> ChatFormat:
        """Conversation format of the tokenizer.

        Raises:
            CheckpointError: If the model has an encoder.
        """
        if self.reads:
            raise CheckpointError(
                f"{self.loaded.folder}: conversations are not supported by encoder-decoder models; "
                "use a decoder-only model such as SmolLM2"
            )
        return ChatFormat(self.tokenizer)

    @property
    def _start(self) -> int:
        """First token of the decoder.

        Raises:
            CheckpointError: If the model directory does not define the token.
        """
        start: int | None = self.loaded.generation.start
        if start is None:
            raise CheckpointError(
                f"{self.loaded.folder}: the first token of the decoder is not defined; "
                "set decoder_start_token_id in generation_config.json"
            )
        return start

    def rules(
        self,
        prompts: Sequence[Prompt],
        stop: Sequence[str] = (),
        prefix: str = "",
        choices: Sequence[str] = (),
    ) -> Rules:
        """Return the constraints on the texts of a call.

        Args:
            prompts: Texts or conversations.
            stop: Strings that end a text.
            prefix: String that each text begins with.
            choices: The only strings that can be generated after the prefix.

        Raises:
            ConfigError: If an option is invalid or cannot be combined with another one.
            DataError: If the tokenizer cannot represent the prefix or a choice.
        """
        if not all(stop):
            raise ConfigError("stop: an empty string ends every text; remove it")
        defaults = self.loaded.generation
        ends = defaults.ends or self.target.ends
        if not all(isinstance(prompt, str) for prompt in prompts):
            ends = tuple(dict.fromkeys([*ends, self.chat.end]))
        # transformers forces the first token only if nothing precedes it.
        first = [defaults.first] if self.reads and defaults.first is not None else []
        allowed = None
        if choices and stop:
            raise ConfigError("choices cannot be combined with stop; remove stop")
        if choices and not ends:
            raise ConfigError(
                "choices: the tokenizer has no EOS token; use `bertkit evaluate prompts` to score "
                "the texts"
            )
        if choices:
            allowed = allow_only([self._tokenize(text, "choices") for text in choices], ends)
        begins = [*first, *self._tokenize(prefix, "prefix")]
        rules = Rules(
            ends,
            forbidden=defaults.forbidden,
            prefix=begins,
            allowed=allowed,
            phrases=defaults.phrases,
            begin_forbidden=defaults.begin_forbidden,
            last=defaults.last,
            min_length=defaults.min_length,
            max_length=defaults.max_length,
        )
        if not stop:
            return rules
        # A stop string has at most as many tokens as bytes, and can begin within a token.
        tail = 1 + max(len(string.encode()) for string in stop)

        def stops(ids: Sequence[int]) -> bool:
            text = self.target.decode(ids[-tail:])
            return any(string in text for string in stop)

        return replace(rules, stops=stops)

    def _check_choices(
        self, requests: Sequence[Request], decoding: Decoding, rules: Rules, choices: Sequence[str]
    ) -> None:
        """Check that each choice is short enough.

        Raises:
            DataError: If a choice has too many tokens.
        """
        size = len(rules.prefix) + max(len(self._tokenize(text, "choices")) for text in choices)
        for request in requests:
            most = rules.max_tokens(len(request.prompt), decoding)
            capacity = self.stepper.max_new_tokens(request, most)
            if size > capacity:
                raise DataError(
                    f"choices: the longest text has {size:,} tokens, but at most {capacity:,} can "
                    "be generated; increase max_tokens, or shorten the prompt or the choice"
                )

    def _tokenize(self, text: str, name: str) -> list[int]:
        """Return the tokens of a text that the model is to generate.

        Raises:
            DataError: If the tokens do not decode to the text.
        """
        if not text and name == "prefix":
            return []
        ids: list[int] = self.target.ids([text])[0].tolist()
        if not ids or self.target.decode(ids).strip() != text.strip():
            raise DataError(
                f"{name}: the vocabulary cannot represent {text[:60]!r}; use other characters"
            )
        return ids

    def answer(
        self,
        written: GeneratedTokens,
        request: Request,
        stop: Sequence[str] = (),
        *,
        tokens: bool = False,
    ) -> GeneratedText:
        """Decode generated tokens, up to the first stop string.

        Args:
            written: The generated tokens.
            request: The request of the text.
            stop: Strings that end the text.
            tokens: Whether to return the tokens with their probabilities.
        """
        text = self._text(written.ids, request.prompt)
        if written.ended == "stop":
            text = text[: min(start for string in stop if (start := text.find(string)) >= 0)]
        each = [
            GeneratedToken(self._text([token], request.prompt), math.exp(logprob))
            for token, logprob in zip(written.ids, written.logprobs, strict=False)
            if tokens
        ]
        return GeneratedText(text, written.score, len(written.logprobs), written.ended, each)

    def _text(self, ids: Sequence[int], prompt: NDArray[np.int64]) -> str:
        """Decode generated tokens, including a space between the prompt and the first word."""
        if not ids:
            return ""
        if self.reads:
            return self.target.decode(ids)
        last = prompt[-1:].tolist()
        before = self.tokenizer.decode(last)
        both = self.tokenizer.decode([*last, *ids])
        return both[len(before) :] if both.startswith(before) else self.tokenizer.decode(ids)
