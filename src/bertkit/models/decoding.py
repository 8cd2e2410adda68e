"""What is asked of a text that a model writes, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from msgspec import Meta
from torch import Tensor

from bertkit.config import Count, Settings

Ended = Literal["end", "stop", "length"]
"""By the model's end token, by a stop string, or cut, as no room was left."""

Stops = Callable[[Sequence[int]], bool]
"""Whether what was written ends here, for a reason beside the end token."""


@dataclass(frozen=True)
class Rules:
    """What a model's texts have to be like, whoever asks for them."""

    ends: Sequence[int]
    """Tokens that end a text; without any it ends by its length, or a stop string."""
    stops: Stops | None = None
    forbidden: Sequence[int] = ()
    """Tokens that are never written."""
    prefix: Sequence[int] = ()
    """The tokens that every text begins with."""
    allowed: Callable[[Sequence[int]], Sequence[int]] | None = None
    """Which tokens may follow those that were written behind the prefix."""

    def bind(self, decoding: Decoding) -> bool:
        """Whether there may be a token that may not come next."""
        own = decoding.min_tokens > 0 or decoding.no_repeat is not None
        return own or bool(self.forbidden) or bool(self.prefix) or self.allowed is not None


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
    beams: Count = 1
    """Beams of beam search; 1 is none."""
    length_penalty: float = 1.0
    """A beam's score is its log-probability over its length to this power."""
    early_stopping: bool = False
    """Whether beam search ends with as many ended beams as it has, though others may be better."""
    no_repeat: Count | None = None
    """No sequence of so many tokens comes twice."""
    lookup: Count | None = None
    """Guess so many tokens at a time, from where the last ones stood before, and read them in one
    step: the same text, sooner where it repeats what was read. Saxena 2023, prompt lookup."""
    best: Count = 1
    """Texts for each prompt: beams, or draws."""

    def __post_init__(self) -> None:
        if self.beams > 1 and self.temperature > 0:
            raise ValueError("beams: words are drawn or searched for; leave out one of the two")
        if self.beams > 1 and self.lookup is not None:
            raise ValueError("lookup: beam search guesses nothing; leave out one of the two")
        if self.best > max(self.beams, 1) and not self.temperature:
            raise ValueError(f"best: {self.best} texts need as many beams, or a temperature")


@dataclass(frozen=True)
class Written:
    """What was written. `ids` are without the end token, whose log-probability is the last of
    `logprobs` where there is one."""

    ids: list[int]
    logprobs: list[float]
    score: float
    """Their sum; in beam search over the length to the power of the penalty."""
    ended: Ended


def constrain(
    scores: Tensor,
    texts: Callable[[], Sequence[tuple[Sequence[int], Sequence[int]]]],
    decoding: Decoding,
    rules: Rules,
) -> None:
    """Take away the tokens that may not come next, in place; `texts` gives the prompts and what was
    written behind them. Shapes: scores (R, V)."""
    if rules.forbidden:
        scores[:, list(rules.forbidden)] = -torch.inf
    if not replace(rules, forbidden=()).bind(decoding):
        return
    for place, (prompt, ids) in enumerate(texts()):
        if len(ids) < len(rules.prefix):
            only(scores[place], [rules.prefix[len(ids)]])
            continue
        if rules.allowed is not None:
            only(scores[place], rules.allowed(ids[len(rules.prefix) :]))
            continue
        if len(ids) < decoding.min_tokens:
            scores[place, list(rules.ends)] = -torch.inf
        if decoding.no_repeat is not None:
            scores[place, _repeats([*prompt, *ids], decoding.no_repeat)] = -torch.inf


def only(scores: Tensor, allowed: Sequence[int]) -> None:
    """Take away all other tokens, in place; one that is alone has score 0. Shapes: scores (V,)."""
    kept = scores[list(allowed)]
    scores.fill_(-torch.inf)
    scores[list(allowed)] = kept if len(allowed) > 1 else 0.0


def one_of(choices: Sequence[Sequence[int]], ends: Sequence[int]) -> Callable[..., list[int]]:
    """Allows these texts alone, each to its end."""
    following: dict[tuple[int, ...], list[int]] = {}
    for choice in choices:
        whole = (*choice, ends[0])
        for place, token in enumerate(whole):
            after = following.setdefault(tuple(choice[:place]), [])
            if token not in after:
                after.append(token)
    return lambda ids: following[tuple(ids)]


def _repeats(ids: Sequence[int], size: int) -> list[int]:
    """The tokens that would end a sequence of `size` tokens that is there already."""
    tail = tuple(ids[len(ids) - size + 1 :])
    starts = range(len(ids) - size + 1)
    return [ids[i + size - 1] for i in starts if tuple(ids[i : i + size - 1]) == tail]
