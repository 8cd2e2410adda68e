"""What is asked of a text that a model writes, and what comes back."""

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
"""By the model's end token, by a stop string, or cut, as no room was left."""

Stops = Callable[[Sequence[int]], bool]
"""Whether what was written ends here, for a reason beside the end token."""


@dataclass(frozen=True)
class Rules:
    """Constraints on all generated texts."""

    ends: Sequence[int]
    """Tokens that end a text; without any it ends by its length, or a stop string."""
    stops: Stops | None = None
    forbidden: Sequence[int] = ()
    """Tokens that are never written."""
    prefix: Sequence[int] = ()
    """The tokens that every text begins with."""
    allowed: Callable[[Sequence[int]], Sequence[int]] | None = None
    """Which tokens may follow those that were written behind the prefix. It takes precedence over
    all constraints below and over those of `Decoding`."""
    phrases: Sequence[Sequence[int]] = ()
    """Sequences of several tokens that are never written."""
    begin_forbidden: Sequence[int] = ()
    """Tokens that are never written directly after the prefix."""
    last: int | None = None
    """Token that a text without another end gets at its greatest length."""
    min_length: int = 0
    """Minimum number of tokens, including the prompt."""
    max_length: int | None = None
    """Maximum number of tokens, including the prompt, unless `Decoding.max_tokens` is set."""

    def bind(self, decoding: Decoding, length: int = 0) -> bool:
        """Return whether any constraint may apply to a text of at least `length` tokens."""
        begins = len(self.prefix) + bool(self.begin_forbidden)
        return bool(
            self.forbidden
            or self.phrases
            or self.allowed is not None
            or length < begins
            or decoding.no_repeat is not None
            or decoding.repetition_penalty != 1
            or length < max(decoding.min_tokens, self.min_length)
        )

    def max_tokens(self, prompt: int, decoding: Decoding) -> int | None:
        """Return the maximum number of tokens after a prompt of `prompt` tokens, if any.

        Raises: DataError if the prompt reaches `max_length`.
        """
        if decoding.max_tokens is not None or self.max_length is None:
            return decoding.max_tokens
        if prompt >= self.max_length:
            raise DataError(
                f"a prompt of {prompt:,} tokens reaches max_length = {self.max_length:,} of "
                "generation_config.json; set max_tokens"
            )
        return self.max_length - prompt


Texts = Annotated[int, Meta(ge=1, le=1_000)]
"""Number of texts that are generated together. Memory grows with it."""


class Decoding(Settings, frozen=True):
    """How words are chosen; greedily by default."""

    max_tokens: Count | None = None
    """Tokens written at most; by default as many as the model has room for."""
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    """Tokens written at least."""
    temperature: Annotated[float, Meta(ge=0.0)] = 0.0
    """Above 0 words are drawn: logits are divided by it. 0 takes the likeliest."""
    top_k: Count | None = None
    """Draw from so many of the likeliest."""
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Draw from the likeliest that together have this probability. Holtzman et al. 2020."""
    min_p: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """Draw from those that have this share of the likeliest's probability."""
    seed: Annotated[int, Meta(ge=0)] = 0
    """Another seed draws other words."""
    beams: Texts = 1
    """Number of beams of beam search, up to 1,000. Default: greedy search."""
    length_penalty: float = 1.0
    """A beam's score is its log-probability over its length to this power."""
    early_stopping: bool = False
    """Whether beam search ends with as many ended beams as it has, though others may be better."""
    no_repeat: Count | None = None
    """No sequence of so many tokens comes twice."""
    repetition_penalty: Annotated[float, Meta(gt=0.0)] = 1.0
    """Penalty on tokens of the prompt and of the text so far; 1 is none. Keskar et al. 2019."""
    lookup: Count | None = None
    """Guess so many tokens at a time, from where the last ones stood before, and read them in one
    step: the same text, sooner where it repeats what was read. Saxena 2023, prompt lookup."""
    best: Texts = 1
    """Texts for each prompt: beams, or draws."""

    def __post_init__(self) -> None:
        if self.beams > 1 and self.temperature > 0:
            raise ValueError(
                f"beams = {self.beams} cannot be combined with temperature > 0; set beams to 1, or "
                "temperature to 0"
            )
        if self.beams > 1 and self.lookup is not None:
            raise ValueError(f"lookup cannot be combined with beams = {self.beams}; set beams to 1")
        if self.best > max(self.beams, 1) and not self.temperature:
            raise ValueError(
                f"best = {self.best} requires as many beams, or temperature > 0; increase beams"
            )


@dataclass(frozen=True)
class Written:
    """What was written. `ids` are without the end token, whose log-probability is the last of
    `logprobs` where there is one.
    """

    ids: list[int]
    logprobs: list[float]
    score: float
    """Sum of `logprobs`, which ignore constraints; beam search divides it by the length to the
    power of the penalty."""
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
        texts: Function that returns each prompt and the tokens after it.
        decoding: How tokens are chosen.
        rules: The constraints.
        left: Number of tokens that each text may still have.

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
            only(row, [rules.prefix[len(ids)]])
        elif rules.allowed is not None:
            only(row, rules.allowed(ids[len(rules.prefix) :]))
        elif rules.last is not None and most == 1:
            only(row, [rules.last])
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
    if decoding.no_repeat is not None:
        row[_repeats(text, decoding.no_repeat)] = -torch.inf
    for *start, last in rules.phrases:
        if len(start) < len(text) and text[-len(start) :] == start:
            row[last] = -torch.inf
    if len(ids) < decoding.min_tokens or len(text) < rules.min_length:
        row[list(rules.ends)] = -torch.inf
    if len(ids) == len(rules.prefix):
        row[list(rules.begin_forbidden)] = -torch.inf


def only(scores: Tensor, allowed: Sequence[int]) -> None:
    """Take away all other tokens, in place; one that is alone has score 0. Shapes: scores (V,)."""
    selected = scores[list(allowed)]
    scores.fill_(-torch.inf)
    scores[list(allowed)] = 0.0 if len(allowed) == 1 else selected


def one_of(choices: Sequence[Sequence[int]], ends: Sequence[int]) -> Callable[..., list[int]]:
    """Return a function that allows only these texts, each with its end token.

    It allows no token after any other beginning, such as a beam that has ended.
    """
    following: dict[tuple[int, ...], list[int]] = {}
    for choice in choices:
        whole = (*choice, ends[0])
        for place, token in enumerate(whole):
            after = following.setdefault(tuple(choice[:place]), [])
            if token not in after:
                after.append(token)
    return lambda ids: following.get(tuple(ids), [])


def _repeats(ids: Sequence[int], size: int) -> list[int]:
    """The tokens that would end a sequence of `size` tokens that is there already."""
    tail = tuple(ids[len(ids) - size + 1 :])
    starts = range(len(ids) - size + 1)
    return [ids[i + size - 1] for i in starts if tuple(ids[i : i + size - 1]) == tail]
