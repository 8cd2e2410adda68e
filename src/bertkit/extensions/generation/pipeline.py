"""Pipeline for text generation, and its results."""

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
from bertkit.pipelines.base import CACHE_TOKENS, ModelPipeline
from bertkit.synonyms import check_keywords, suggestion
from bertkit.tasks.inference import Work
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.text.tokenizer import Tokenizer

ANY_LENGTH = 1 << 30
"""Maximum length for the tokenizer that truncates no text. The stepper checks the length
instead."""

PARTIAL_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""Character that the tokenizer returns when it decodes an incomplete sequence of UTF-8 bytes."""


Prompt = str | Sequence[Message]
"""A text, or a conversation that the model continues with the assistant's next message."""


def _messages(prompt: Prompt) -> Sequence[Message]:
    messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
    check_messages(messages, "messages")
    return messages


def merge_decoding(base: Decoding, decoding: Decoding | Mapping[str, Any] | None) -> Decoding:
    """Combine the settings of a model directory with the settings that are passed to a call.

    Args:
        base: Settings of the model directory.
        decoding: Settings of the call. A mapping changes individual settings of `base`. A
            `Decoding` replaces all of them.

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
    """Return the prompt that `finetune seq2seq` prepended to every text, or an empty string."""
    record = loaded.settings.get("bertkit", {}).get("task", {})
    options = record.get("options") if record.get("name") == "seq2seq" else None
    prompt = options.get("prompt") if isinstance(options, dict) else None
    return prompt if isinstance(prompt, str) else ""


class GeneratedToken(msgspec.Struct, frozen=True):
    """Generated token, with its probability."""

    text: str
    probability: float


class GeneratedText(msgspec.Struct, frozen=True, omit_defaults=True):
    """Generated text, without the prompt."""

    text: str
    score: float
    """Log-probability of the text, computed without constraints. Beam search divides it by the
    length to the power of `length_penalty`."""
    tokens: int
    ended: Ended
    """Reason why the text ended: an EOS token, a stop string, or the maximum length."""
    each: list[GeneratedToken] = []
    """Tokens of the text with their probabilities, if they were requested."""


class Generate(ModelPipeline):
    """Pipeline that generates text from prompts, conversations, or source texts.

    For an encoder-decoder model, such as Marian, the prompts are source texts. A generated text
    depends only on its prompt and the settings, not on other prompts in the batch.
    """

    @staticmethod
    def sample(model: Model, tokenizer: Tokenizer) -> str:
        """Generate a text of at most 40 tokens with a causal model. The random seed is fixed."""
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
            settings: Settings with their names in transformers. They replace settings of the model
                directory. The value None selects the default of transformers.
            prompt: Text that is prepended to every input. Default: the prompt of this pipeline.

        Raises:
            ConfigError: If a setting is unknown or not supported, or its value is invalid.
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
            decoding: Decoding settings. A mapping changes individual settings of the model
                directory. A `Decoding` replaces all of them.
            stop: Strings that end a text. The text does not contain them.
            prefix: String that each generated text begins with.
            choices: Texts of which the model generates one after the prefix. Default: any text.
            long: Whether to raise an error for source texts longer than the maximum length
                ("error") or truncate them ("truncate").

        Returns:
            The texts of each prompt, best first.

        Raises:
            ConfigError: If settings cannot be combined.
            DataError: If a prompt is too long, or the vocabulary cannot represent the prefix or a
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
        """Generate one text, and yield its parts as soon as they are final.

        Args:
            prompt: A text or a conversation.
            decoding: Decoding settings. A mapping changes individual settings of the model
                directory, after `num_beams` and `num_return_sequences` are set to 1. A `Decoding`
                replaces all settings.
            stop: Strings that end the text. The text does not contain them.

        Raises:
            ConfigError: If `num_beams` or `num_return_sequences` is greater than 1. Beam search
                cannot be streamed, because it selects a text only at the end.
            DataError: If the prompt is too long.
        """
        base = structs.replace(self.loaded.generation.decoding, num_beams=1, num_return_sequences=1)
        decoding = merge_decoding(base, decoding)
        if decoding.num_beams > 1 or decoding.num_return_sequences > 1:
            raise ConfigError(
                "num_beams, num_return_sequences: values above 1 are not supported for streaming; "
                "remove them"
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
        """Return the part of a row's text that more tokens cannot change.

        This is the complete text if the row has ended.
        """
        if row.ended is not None:
            return self.answer(row.written, row.request, stop).text
        text, longest = self._text(row.ids, row.request.prompt), max(map(len, stop), default=1)
        # The last characters may turn out to belong to a stop string or to another character.
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
        """Tokenize prompts, and return the work for each prompt.

        Raises:
            DataError: If a prompt is longer than the model supports.
        """
        options = {"num_beams": num_beams, "max_tokens": max_tokens}
        changes = {name: value for name, value in options.items() if value is not None}
        decoding = merge_decoding(self.loaded.generation.decoding, changes)
        return [
            Work([], (item, request, decoding), decoding.num_beams * self.cost(request, decoding))
            for item, request in zip(items, self.requests(items), strict=True)
        ]

    def cost(self, request: Request, decoding: Decoding) -> int:
        """Return the number of input tokens plus the maximum number of tokens to generate."""
        return request.tokens + self.stepper.max_new_tokens(request, decoding.max_tokens)

    def run(self, works: Sequence[Work]) -> list[GeneratedText]:
        """Generate the best text for each work. Works with equal settings share a batch."""
        return finish(self.steps(works))

    def steps(self, works: Sequence[Work]) -> Generator[int, None, list[GeneratedText]]:
        """Generate texts as `run` does, and yield the number of sequences after each step."""
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
        """Tokenize prompts, and return a request for each prompt.

        Args:
            prompts: Texts or conversations.
            long: Whether to raise an error for source texts longer than the maximum length
                ("error") or truncate them ("truncate"). Prompts of a decoder-only model cannot be
                truncated.

        Raises:
            ConfigError: If the model does not support the value of `long`.
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
        """Return the request of an encoder-decoder model for a tokenized source text."""
        return Request(np.array([self._start]), encoding.ids)

    @property
    def _first(self) -> int:
        """Id of the token that replaces an empty prompt.

        Raises:
            DataError: If the tokenizer has no EOS token.
        """
        if not self.tokenizer.ends:
            raise DataError(
                "prompt: must not be empty, because the tokenizer has no EOS token to start from; "
                "pass at least one word"
            )
        return self.tokenizer.eos

    @cached_property
    def chat(self) -> ChatFormat:
        """Converter of conversations to token ids, in the chat format of the tokenizer.

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
        """Id of the token that starts the decoder's input.

        Raises:
            CheckpointError: If the model directory does not define this token.
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
        """Combine the arguments of a call and the model's settings into constraints on the texts.

        Args:
            prompts: Texts or conversations.
            stop: Strings that end a text.
            prefix: String that each generated text begins with.
            choices: Texts of which the model generates one after the prefix. Default: any text.

        Raises:
            ConfigError: If an option is invalid or cannot be combined with another option.
            DataError: If the vocabulary cannot represent the prefix or a choice.
        """
        if not all(stop):
            raise ConfigError("stop: an empty string would end every text; remove the empty string")
        defaults = self.loaded.generation
        ends = defaults.ends or self.target.ends
        if not all(isinstance(prompt, str) for prompt in prompts):
            ends = tuple(dict.fromkeys([*ends, self.chat.end]))
        # transformers forces the first token only if no prompt precedes it.
        first = [defaults.first] if self.reads and defaults.first is not None else []
        allowed = None
        if choices and stop:
            raise ConfigError("choices cannot be combined with stop; remove stop")
        if choices and not ends:
            raise ConfigError(
                "choices: the tokenizer has no EOS token to end a choice; use `bertkit evaluate "
                "prompts` to score the choices"
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
        # A stop string has at most as many tokens as bytes, and may begin within a token.
        tail = 1 + max(len(string.encode()) for string in stop)

        def stops(ids: Sequence[int]) -> bool:
            text = self.target.decode(ids[-tail:])
            return any(string in text for string in stop)

        return replace(rules, stops=stops)

    def _check_choices(
        self, requests: Sequence[Request], decoding: Decoding, rules: Rules, choices: Sequence[str]
    ) -> None:
        """Check that the model can generate the longest choice for every request.

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
        """Tokenize a text that the model must generate.

        Raises:
            DataError: If decoding the tokens does not give the same text.
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
            request: The request that the tokens were generated for.
            stop: Strings that end the text.
            tokens: Whether the result contains the tokens with their probabilities.
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
        """Decode generated tokens. A space between the prompt and the first word is kept."""
        if not ids:
            return ""
        if self.reads:
            return self.target.decode(ids)
        last = prompt[-1:].tolist()
        before = self.tokenizer.decode(last)
        both = self.tokenizer.decode([*last, *ids])
        return both[len(before) :] if both.startswith(before) else self.tokenizer.decode(ids)
