"""Decoding settings, constraints on generated texts, and generated tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from msgspec import Meta
from torch import Tensor

from bertkit.config import Count, Settings
from bertkit.errors import DataError

Ended = Literal["end", "stop", "length"]
"""Reason why a text ended: an EOS token (`end`), a stop string (`stop`), or the maximum length
(`length`)."""

Stops = Callable[[Sequence[int]], bool]
"""Function that takes the generated tokens, and returns whether the text ends without an EOS
token."""


@dataclass(frozen=True)
class Rules:
    """Constraints that apply to all generated texts of a call."""

    ends: Sequence[int]
    """EOS tokens. If there are none, a text ends at its maximum length or before a stop string."""
    stops: Stops | None = None
    forbidden: Sequence[int] = ()
    """Tokens that are never generated."""
    prefix: Sequence[int] = ()
    """Tokens that every text begins with."""
    allowed: Callable[[Sequence[int]], Sequence[int]] | None = None
    """Function that takes the tokens after the prefix, and returns the tokens that may follow. If
    it is set, the constraints below and the constraints of `Decoding` have no effect."""
    phrases: Sequence[Sequence[int]] = ()
    """Sequences of several tokens that are never generated."""
    begin_forbidden: Sequence[int] = ()
    """Tokens that are never generated directly after the prefix."""
    last: int | None = None
    """Token that is forced as the last token of a text that reaches its maximum length."""
    min_length: int = 0
    """Minimum number of tokens, including the prompt."""
    max_length: int | None = None
    """Maximum number of tokens, including the prompt, unless `Decoding.max_tokens` is set."""

    def bind(self, decoding: Decoding, length: int = 0) -> bool:
        """Return whether any constraint may apply to texts of at least `length` tokens."""
        begins = len(self.prefix) + bool(self.begin_forbidden)
        return bool(
            self.forbidden
            or self.phrases
            or self.allowed is not None
            or length < begins
            or decoding.no_repeat_ngram_size is not None
            or decoding.repetition_penalty != 1
            or length < max(decoding.min_tokens, self.min_length)
        )

    def max_tokens(self, prompt: int, decoding: Decoding) -> int | None:
        """Return the maximum number of tokens to generate after a prompt of `prompt` tokens.

        Returns:
            The number, or None if neither `decoding` nor these rules set a maximum.

        Raises:
            DataError: If the prompt reaches `max_length`.
        """
        if decoding.max_tokens is not None or self.max_length is None:
            return decoding.max_tokens
        if prompt >= self.max_length:
            raise DataError(
                f"the prompt has {prompt:,} tokens, but max_length in generation_config.json is "
                f"{self.max_length:,}; set max_tokens"
            )
        return self.max_length - prompt


Texts = Annotated[int, Meta(ge=1, le=1_000)]
"""Number of texts that are generated together. The required memory grows with this number."""


class Decoding(Settings, frozen=True):
    """Settings for decoding. The default values select greedy decoding."""

    max_tokens: Count | None = None
    """Maximum number of tokens to generate. Default: the maximum that the model supports."""
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    """Minimum number of tokens to generate."""
    temperature: Annotated[float, Meta(ge=0.0)] = 0.0
    """Sampling temperature. 0 disables sampling, so greedy decoding or beam search is used."""
    top_k: Count | None = None
    """Number of most probable tokens to sample from. Default: all tokens."""
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Total probability of the tokens to sample from (nucleus sampling, Holtzman et al. 2020). The
    smallest set of most probable tokens that reaches it is used. 1 disables it."""
    min_p: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """Minimum probability of a sampled token, as a fraction of the highest probability."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Random seed for sampling."""
    num_beams: Texts = 1
    """Number of beams in beam search, up to 1,000. 1 disables beam search."""
    length_penalty: float = 1.0
    """Exponent of the length in the score of beam search. The score is the log-probability divided
    by the length to the power of this value."""
    early_stopping: bool = False
    """Whether to end beam search as soon as `num_beams` texts are complete, even if other texts
    might have higher scores."""
    no_repeat_ngram_size: Count | None = None
    """Size of the n-grams that must not occur more than once. Default: no restriction."""
    repetition_penalty: Annotated[float, Meta(gt=0.0)] = 1.0
    """Penalty on tokens that occur in the prompt or in the text so far (Keskar et al. 2019). 1
    disables it."""
    prompt_lookup_num_tokens: Count | None = None
    """Number of tokens to guess in each step (prompt lookup, Saxena 2023). The guess is the text
    after an earlier occurrence of the last tokens. The model verifies it, so the result does not
    change, but repetitive text is generated faster. Default: no guesses."""
    num_return_sequences: Texts = 1
    """Number of texts to return for each prompt."""

    def __post_init__(self) -> None:
        if self.num_beams > 1 and self.temperature > 0:
            raise ValueError(
                f"num_beams = {self.num_beams} cannot be combined with temperature > 0; set "
                "num_beams to 1, or temperature to 0"
            )
        if self.num_beams > 1 and self.prompt_lookup_num_tokens is not None:
            raise ValueError(
                "prompt_lookup_num_tokens cannot be combined with num_beams = "
                f"{self.num_beams}; set num_beams to 1"
            )
        if self.num_return_sequences > max(self.num_beams, 1) and not self.temperature:
            raise ValueError(
                f"num_return_sequences = {self.num_return_sequences} requires at least as many "
                "beams, or temperature > 0; increase num_beams or temperature"
            )


@dataclass(frozen=True)
class GeneratedTokens:
    """Tokens of a generated text, with their log-probabilities.

    `ids` does not contain the EOS token. If the text ended with an EOS token, its log-probability
    is the last value of `logprobs`.
    """

    ids: list[int]
    logprobs: list[float]
    score: float
    """Sum of `logprobs`, which are computed without constraints. Beam search divides the sum by the
    length to the power of `length_penalty`."""
    ended: Ended


def constrain(
    scores: Tensor,
    texts: Callable[[], Sequence[tuple[Sequence[int], Sequence[int]]]],
    decoding: Decoding,
    rules: Rules,
    left: Sequence[int],
) -> None:
    """Apply the constraints to the scores of the next token, in place.

    Args:
        scores: Logits or log-probabilities of the next token.
        texts: Function that returns, for each text, the prompt and the tokens generated so far.
        decoding: Decoding settings.
        rules: The constraints.
        left: For each text, the number of tokens that can still be generated.

    Shapes:
        scores: (R, V).
    """
    if rules.forbidden:
        scores[:, list(rules.forbidden)] = -torch.inf
    closes = rules.last is not None and 1 in left
    if not closes and not replace(rules, forbidden=()).bind(decoding):
        return
    for row, (prompt, ids), most in zip(scores, texts(), left, strict=True):
        if len(ids) < len(rules.prefix):
            forbid_others(row, [rules.prefix[len(ids)]])
        elif rules.allowed is not None:
            forbid_others(row, rules.allowed(ids[len(rules.prefix) :]))
        elif rules.last is not None and most == 1:
            forbid_others(row, [rules.last])
        else:
            _constrain_row(row, prompt, ids, decoding, rules)


def _constrain_row(
    row: Tensor, prompt: Sequence[int], ids: Sequence[int], decoding: Decoding, rules: Rules
) -> None:
    text = [*prompt, *ids]
    penalty = decoding.repetition_penalty
    if penalty != 1:
        seen = list(set(text))
        row[seen] = torch.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
    if decoding.no_repeat_ngram_size is not None:
        row[_repeats(text, decoding.no_repeat_ngram_size)] = -torch.inf
    for *start, last in rules.phrases:
        if len(start) < len(text) and text[-len(start) :] == start:
            row[last] = -torch.inf
    if len(ids) < decoding.min_tokens or len(text) < rules.min_length:
        row[list(rules.ends)] = -torch.inf
    if len(ids) == len(rules.prefix):
        row[list(rules.begin_forbidden)] = -torch.inf


def forbid_others(scores: Tensor, allowed: Sequence[int]) -> None:
    """Set the scores of all tokens except the allowed tokens to -inf, in place.

    If only one token is allowed, its score becomes 0.

    Shapes:
        scores: (V,).
    """
    selected = scores[list(allowed)]
    scores.fill_(-torch.inf)
    scores[list(allowed)] = 0.0 if len(allowed) == 1 else selected


def allow_only(choices: Sequence[Sequence[int]], ends: Sequence[int]) -> Callable[..., list[int]]:
    """Return a function for `Rules.allowed` that permits only the given texts.

    Each text is followed by the first EOS token in `ends`. The function permits no token after
    tokens that are not the beginning of a given text, such as a beam that has ended.
    """
    following: dict[tuple[int, ...], list[int]] = {}
    for choice in choices:
        for index, token in enumerate((*choice, ends[0])):
            after = following.setdefault(tuple(choice[:index]), [])
            if token not in after:
                after.append(token)
    return lambda ids: following.get(tuple(ids), [])


def _repeats(ids: Sequence[int], size: int) -> list[int]:
    """Return the next tokens that would repeat an n-gram of `size` tokens."""
    tail = tuple(ids[len(ids) - size + 1 :])
    starts = range(len(ids) - size + 1)
    return [ids[i + size - 1] for i in starts if tuple(ids[i : i + size - 1]) == tail]
