"""How a model that writes chooses its words: greedily, by chance, or by beam search.

Whatever is written depends on its own request alone: on no neighbor, and on no draw before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from bertkit.config import Count, Settings
from bertkit.models.stepper import Request, State, Stepper

Ended = Literal["end", "stop", "length"]
"""By the model's end token, by a stop string, or cut, as no room was left."""

Stops = Callable[[Sequence[int]], bool]
"""Whether what was written ends here, for a reason beside the end token."""


@dataclass(frozen=True)
class Rules:
    """What a model's texts have to be like, whoever asks for them."""

    ends: Sequence[int]
    """Tokens that end a text."""
    stops: Stops | None = None
    forbidden: Sequence[int] = ()
    """Tokens that are never written."""
    first: int | None = None
    """The token that every text begins with."""

    def bind(self, decoding: Decoding) -> bool:
        """Whether there may be a token that may not come next."""
        own = decoding.min_tokens > 0 or decoding.no_repeat is not None
        return own or bool(self.forbidden) or self.first is not None


LEAST = -1e9
"""The score of what is no candidate."""


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
    best: Count = 1
    """Texts for each prompt: beams, or draws."""

    def __post_init__(self) -> None:
        if self.beams > 1 and self.temperature > 0:
            raise ValueError("beams: words are drawn or searched for; leave out one of the two")
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


@dataclass(eq=False)
class Row:
    """A text while it is written."""

    request: Request
    room: int
    """Tokens that it may still have at its start."""
    key: int
    """Of its random numbers."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: Ended | None = None

    @property
    def written(self) -> Written:
        assert self.ended is not None
        ids = self.ids[:-1] if self.ended == "end" else self.ids
        return Written(ids, self.logprobs, float(np.sum(self.logprobs)), self.ended)


def generate(
    stepper: Stepper,
    requests: Sequence[Request],
    decoding: Decoding,
    rules: Rules,
) -> list[list[Written]]:
    """`best` texts for each request, best first."""
    if decoding.beams > 1:
        return beam_search(stepper, requests, decoding, rules)
    writing = Writing(stepper, decoding, rules)
    copies = [replace(one, number=number) for one in requests for number in range(decoding.best)]
    rows = writing.add(copies)
    while writing.rows:
        writing.step()
    written = [row.written for row in rows]
    best = decoding.best
    return [
        sorted(written[i : i + best], key=lambda one: -one.score)
        for i in range(0, len(written), best)
    ]


class Writing:
    """Rows that grow together, greedily or by chance; some may join while others are at work."""

    def __init__(self, stepper: Stepper, decoding: Decoding, rules: Rules) -> None:
        self.stepper, self.decoding, self.rules = stepper, decoding, rules
        self.rows: list[Row] = []
        self._state: State | None = None

    def add(self, requests: Sequence[Request]) -> list[Row]:
        """Read these prompts and choose the first word of each; those that go on are `rows`."""
        rows = [
            Row(request, self.stepper.room(request, self.decoding.max_tokens), self._key(request))
            for request in requests
        ]
        state, logits = self.stepper.start(requests)
        kept = self._chosen(rows, logits)
        if len(kept) < len(rows):
            state.keep(torch.tensor(kept, dtype=torch.long, device=logits.device))
        if self._state is None or not self.rows:
            self._state = state
        elif kept:
            self.stepper.join(self._state, state)
        self.rows += [rows[place] for place in kept]
        return rows

    def step(self) -> list[Row]:
        """Another word of each row; those that were written to, of which the ended leave."""
        if self._state is None or not self.rows:
            return []
        last = torch.tensor([[row.ids[-1]] for row in self.rows])
        device = self._device
        logits = self.stepper.step(self._state, last.to(device))[:, 0]
        self._state.advance(torch.ones(len(self.rows), dtype=torch.long, device=device))
        before, kept = self.rows, self._chosen(self.rows, logits)
        if len(kept) < len(before):
            self.drop(set(range(len(before))) - set(kept))
        return before

    def drop(self, places: set[int]) -> None:
        """Free these rows."""
        kept = [place for place in range(len(self.rows)) if place not in places]
        self.rows = [self.rows[place] for place in kept]
        if kept and self._state is not None:
            self._state.keep(torch.tensor(kept, dtype=torch.long, device=self._device))

    _device = torch.device("cpu")

    def _chosen(self, rows: Sequence[Row], logits: Tensor) -> list[int]:
        """Write the next word of each row; the places of those that have not ended."""
        self._device, decoding, scores = logits.device, self.decoding, logits
        if self.rules.bind(decoding):
            scores = logits.clone()
            texts = [(row.request.prompt.tolist(), row.ids) for row in rows]
            constrain(scores, texts, decoding, self.rules)
        if decoding.temperature:
            numbers = [uniform(row.key, len(row.ids)) for row in rows]
            chosen = draw(scores, torch.tensor(numbers, dtype=torch.float64), decoding)
        else:
            chosen = scores.argmax(-1)
        logprobs = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        ends, stops = {*self.rules.ends}, self.rules.stops
        alive = []
        words = zip(rows, chosen.tolist(), logprobs.tolist(), strict=True)
        for place, (row, token, logprob) in enumerate(words):
            row.ids.append(token)
            row.logprobs.append(logprob)
            if token in ends:
                row.ended = "end"
            elif stops is not None and stops(row.ids):
                row.ended = "stop"
            elif len(row.ids) == row.room:
                row.ended = "length"
            else:
                alive.append(place)
        return alive

    def _key(self, request: Request) -> int:
        """Its random numbers depend on the seed, its prompt and its number alone."""
        said = f"{self.decoding.seed} {request.number} {request.prompt.tolist()}"
        if request.source is not None:
            said += f" {request.source.tolist()}"
        return int.from_bytes(hashlib.blake2b(said.encode(), digest_size=8).digest(), "little")


def uniform(key: int, position: int) -> float:
    """A number from [0, 1), a pure function of both. Source: Salmon et al. 2011 (Philox)."""
    bits = np.random.Philox(key=np.array([key, position], dtype=np.uint64)).random_raw()
    return float(int(bits) >> 11) * 2.0**-53


def draw(scores: Tensor, uniform: Tensor, decoding: Decoding) -> Tensor:
    """A token for each row, by its number from [0, 1). Shapes: (R, V), (R,) -> (R,)."""
    scores, order = scores / decoding.temperature, None
    if decoding.top_k is not None or decoding.top_p < 1:
        scores, order = scores.topk(min(decoding.top_k or scores.shape[1], scores.shape[1]))
    chances = torch.softmax(scores.double(), -1)
    if decoding.min_p:
        chances = chances.where(chances >= decoding.min_p * chances.amax(-1, keepdim=True), 0.0)
    if decoding.top_p < 1:  # the first token has none before it, and stays
        chances = chances.where(chances.cumsum(-1) - chances < decoding.top_p, 0.0)
    sums = chances.cumsum(-1)
    sought = uniform.to(sums.device)[:, None] * sums[:, -1:]
    place = torch.searchsorted(sums, sought, right=True)
    # where rounding leads behind the last that has a chance
    last = (chances > 0).long().cumsum(-1).argmax(-1, keepdim=True)
    place = torch.minimum(place, last)
    chosen = place if order is None else order.gather(1, place)
    return chosen[:, 0]


def constrain(
    scores: Tensor,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    decoding: Decoding,
    rules: Rules,
) -> None:
    """Take away the tokens that may not come next, in place; `texts` are prompts and what was
    written behind them. Shapes: scores (R, V)."""
    if rules.forbidden:
        scores[:, list(rules.forbidden)] = -torch.inf
    for place, (prompt, ids) in enumerate(texts):
        if not ids and rules.first is not None:
            scores[place] = -torch.inf
            scores[place, rules.first] = 0.0
            continue
        if len(ids) < decoding.min_tokens:
            scores[place, list(rules.ends)] = -torch.inf
        if decoding.no_repeat is not None:
            scores[place, _repeats([*prompt, *ids], decoding.no_repeat)] = -torch.inf


def _repeats(ids: Sequence[int], size: int) -> list[int]:
    """The tokens that would end a sequence of `size` tokens that is there already."""
    tail = tuple(ids[len(ids) - size + 1 :])
    starts = range(len(ids) - size + 1)
    return [ids[i + size - 1] for i in starts if tuple(ids[i : i + size - 1]) == tail]


@torch.inference_mode()
def beam_search(
    stepper: Stepper,
    requests: Sequence[Request],
    decoding: Decoding,
    rules: Rules,
) -> list[list[Written]]:
    """The `best` of `beams` texts for each request.

    Each step weighs the 2 × `beams` likeliest continuations of a request's beams; those that end
    among the first `beams` are its results, of which the best stay. A request ends when no beam's
    score can pass its worst result: with `early_stopping` when there are `beams` results.
    """
    beams, end, stops = decoding.beams, torch.tensor(list(rules.ends)), rules.stops
    rooms = torch.tensor([stepper.room(request, decoding.max_tokens) for request in requests])
    state, logits = stepper.start(requests)
    device = logits.device
    end, rooms = end.to(device), rooms.to(device)
    live = torch.arange(len(requests))  # which request each group of rows belongs to
    state.keep(live.repeat_interleave(beams).to(device))
    logits = logits.repeat_interleave(beams, 0)
    running = torch.tensor([0.0] + [LEAST] * (beams - 1), device=device).repeat(len(live), 1)
    ids = torch.zeros(len(live), beams, 0, dtype=torch.long, device=device)
    logprobs = torch.zeros(len(live), beams, 0, device=device)
    results: list[list[Written]] = [[] for _ in requests]
    kept = max(2, 1 + len(rules.ends)) * beams

    def rows(of: Tensor, places: Tensor) -> Tensor:
        return of.gather(1, places[:, :, None].expand(-1, -1, of.shape[2]))

    for length in range(1, int(rooms.max()) + 1):
        scores = torch.log_softmax(logits, -1)
        if rules.bind(decoding):
            prompts = [requests[number].prompt.tolist() for number in live for _ in range(beams)]
            texts = list(zip(prompts, ids.flatten(0, 1).tolist(), strict=True))
            constrain(scores, texts, decoding, rules)
        vocab = scores.shape[-1]
        totals = (scores.view(len(live), beams, vocab) + running[:, :, None]).flatten(1)
        totals, places = totals.topk(min(kept, totals.shape[1]))
        beam, token = places // vocab, places % vocab
        each = scores.view(len(live), -1).gather(1, places)
        ids = torch.cat([rows(ids, beam), token[:, :, None]], 2)
        logprobs = torch.cat([rows(logprobs, beam), each[:, :, None]], 2)
        ended = torch.isin(token, end)
        full = (rooms[live.to(device)] == length)[:, None]
        stopped = torch.zeros_like(ended)
        if stops is not None:
            flags = [[stops(one) for one in group] for group in ids.tolist()]
            stopped = torch.tensor(flags, device=device) & ~ended
        hit = ended | stopped | full
        for place, number in hit[:, :beams].nonzero().tolist():
            if totals[place, number] > LEAST / 2:
                request = int(live[place])
                kind: Ended = "end" if ended[place, number] else "length"
                kind = "stop" if stopped[place, number] else kind
                whole = ids[place, number].tolist()
                results[request].append(
                    Written(
                        whole[:-1] if kind == "end" else whole,
                        logprobs[place, number].tolist(),
                        float(totals[place, number]) / length**decoding.length_penalty,
                        kind,
                    )
                )
        for request in live.tolist():
            results[request].sort(key=lambda one: -one.score)
            del results[request][beams:]
        running, following = (totals + hit * LEAST).topk(beams)
        going = []
        for place, request in enumerate(live.tolist()):
            best, ready = float(running[place, 0]), results[request]
            better = len(ready) < beams or (
                not decoding.early_stopping
                and best / length**decoding.length_penalty > ready[-1].score
            )
            if better and best > LEAST / 2:
                going.append(place)
        if not going:
            break
        on = torch.tensor(going, device=device)
        following, running, beam = following[on], running[on], beam[on]
        ids, logprobs = rows(ids[on], following), rows(logprobs[on], following)
        state.keep((on[:, None] * beams + beam.gather(1, following)).flatten())
        live = live[on.cpu()]
        logits = stepper.step(state, ids[:, :, -1].reshape(-1, 1))[:, 0]
        state.advance(torch.ones(len(logits), dtype=torch.long, device=device))
    return [ready[: decoding.best] for ready in results]
