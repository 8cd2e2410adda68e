"""Beam search: the likeliest texts, as far as a few of the likeliest beginnings lead to them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

import torch
from torch import Tensor

from bertkit.extensions.generation.decoding import Decoding, Ended, Rules, Written, constrain
from bertkit.extensions.generation.stepper import Request, Stepper

LEAST = -1e9
"""The score of what is no candidate."""

COLUMN_ROWS = 8
"""Numbers of a column, where the likeliest of many are sought."""


@dataclass(frozen=True)
class BeamStep:
    """What a step of one request's search weighed: a number of each list for each candidate, the
    likeliest first.

    Candidates whose score is `LEAST` or near it are none: the beams that they go on from are not
    there.
    """

    request: int
    beams: list[int]
    """The beam of the step before that each goes on from; 0 at the first step."""
    tokens: list[int]
    scores: list[float]
    """The log-probability of the whole beam, with this token."""
    ended: list[Ended | None]
    """Why it cannot go on; it is a result if it is among the first beams, else it is dropped."""
    kept: list[int]
    """The candidates that are the beams of the next step, in their order; none where the request
    ends here."""


Observer = Callable[[BeamStep], None]


T = TypeVar("T")


def finish(steps: Generator[Any, None, T]) -> T:
    """Run a generator to its end, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def beam_search(
    stepper: Stepper,
    requests: Sequence[Request],
    decoding: Decoding,
    rules: Rules,
    observe: Observer | None = None,
) -> list[list[Written]]:
    """Run all steps of `beam_steps`, and return its result."""
    return finish(beam_steps(stepper, requests, decoding, rules, observe))


@torch.inference_mode()
def beam_steps(
    stepper: Stepper,
    requests: Sequence[Request],
    decoding: Decoding,
    rules: Rules,
    observe: Observer | None = None,
) -> Generator[int, None, list[list[Written]]]:
    """The `best` of `beams` texts for each request. Yields: the number of beams after each step.

    Each step weighs the 2 × `beams` likeliest continuations of a request's beams; those that end
    among the first `beams` are its results, of which the best stay. A request ends when no beam's
    score can pass its worst result: with `early_stopping` when there are `beams` results. What each
    step weighs is told to `observe`.
    """
    rooms = [
        stepper.room(request, rules.max_tokens(len(request.prompt), decoding))
        for request in requests
    ]
    state, logits = stepper.start(requests)
    search = _Search(requests, rooms, decoding, rules, logits.device, observe)
    state = state.branch(search.beams)
    logits = logits.repeat_interleave(search.beams, 0)
    for length in count(1):
        rows = search.step(torch.log_softmax(logits, -1), length)
        if not len(rows):
            break
        yield len(rows)
        state.keep(rows)
        logits = stepper.step(state, search.ids[:, :, -1].reshape(-1, 1))[:, 0]
        state.advance(torch.ones(len(logits), dtype=torch.long, device=logits.device))
    return [[text for _, text in texts[: decoding.best]] for texts in search.results]


class _Search:
    """The beams of the requests that go on, and the results of all.

    Shapes: scores (S, B), the log-probability of each beam; ids and logprobs (S, B, T), its tokens
    and theirs.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        rooms: Sequence[int],
        decoding: Decoding,
        rules: Rules,
        device: torch.device,
        observe: Observer | None = None,
    ) -> None:
        self.observe = observe
        self.requests, self.decoding, self.rules = requests, decoding, rules
        self.beams, self.live = decoding.beams, list(range(len(requests)))
        self.rooms = torch.tensor(rooms, device=device)
        self.ends = torch.tensor(list(rules.ends), dtype=torch.long, device=device)
        first = torch.tensor([0.0] + [LEAST] * (self.beams - 1), device=device)  # all begin alike
        self.scores = first.repeat(len(requests), 1)
        self.ids = torch.zeros(len(requests), self.beams, 0, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(len(requests), self.beams, 0, device=device)
        self.results: list[list[tuple[float, Written]]] = [[] for _ in requests]
        """Results by the score that the search maximizes, which constraints change."""
        self.changed = False
        """Whether a constraint may have changed the score of a token that was not forbidden."""

    def step(self, logprobs: Tensor, length: int) -> Tensor:
        """Choose the tokens number `length`; the rows whose beams go on, in their new order.

        Shapes: (S · B, V) -> (S' · B,).
        """
        free = logprobs
        left = (self.rooms[self.live] - length + 1).repeat_interleave(self.beams).tolist()
        closes = self.rules.last is not None and 1 in left
        if closes or replace(self.rules, forbidden=()).bind(self.decoding, length - 1):
            self.changed, free = True, logprobs.clone()
        if closes or self.rules.bind(self.decoding, length - 1):
            constrain(logprobs, self._texts, self.decoding, self.rules, left)
        totals, beam = self._candidates(logprobs, free)
        tokens = self.ids[:, :, -1]
        full = (self.rooms[self.live] == length)[:, None]
        ended = torch.isin(tokens, self.ends)
        if self.rules.last is not None:
            ended &= ~(full & (tokens == self.rules.last))
        stopped = self._stopped() & ~ended
        hit = ended | stopped | full
        penalty = length**self.decoding.length_penalty
        for place, number in hit[:, : self.beams].nonzero().tolist():
            kind = _kind(bool(ended[place, number]), bool(stopped[place, number]))
            self._collect(place, number, float(totals[place, number]), penalty, kind)
        for request in self.live:
            self.results[request].sort(key=lambda one: -one[0])
            del self.results[request][self.beams :]
        self.scores, chosen = (totals + hit * LEAST).topk(self.beams)
        going = [
            place
            for place, best in enumerate(self.scores[:, 0].tolist())
            if best > LEAST / 2 and self._may_improve(self.live[place], best / penalty)
        ]
        self._tell(beam, totals, (hit, ended, stopped), chosen, going)
        return self._keep(going, chosen, beam)

    def _tell(
        self,
        beam: Tensor,
        totals: Tensor,
        flags: tuple[Tensor, Tensor, Tensor],
        chosen: Tensor,
        going: Sequence[int],
    ) -> None:
        """Tell who observes what was weighed; `flags` are of candidates that cannot go on, those
        with an end token, and those with a stop string. Shapes: (S, C), chosen (S, B).
        """
        if self.observe is None:
            return
        for place, request in enumerate(self.live):
            ended: list[Ended | None] = [
                _kind(end, stop) if hit else None
                for hit, end, stop in zip(*(x[place].tolist() for x in flags), strict=True)
            ]
            beams, tokens, scores = (x[place].tolist() for x in (beam, self.ids[:, :, -1], totals))
            kept = chosen[place].tolist() if place in going else []
            self.observe(BeamStep(request, beams, tokens, scores, ended, kept))

    def _candidates(self, logprobs: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        """Replace the beams by their most probable continuations.

        Args:
            logprobs: Log-probabilities with constraints.
            free: Log-probabilities of the model.

        Returns:
            The score of each candidate, and the beam that it continues.

        Shapes:
            (S · B, V) both; returns (S, C) both.
        """
        vocab = logprobs.shape[-1]
        wanted = max(2, 1 + len(self.rules.ends)) * self.beams  # so many that some go on
        each, tokens = likeliest(logprobs, min(wanted, vocab))
        totals = each.view(*self.scores.shape, -1) + self.scores[:, :, None]
        totals, places = totals.flatten(1).topk(min(wanted, totals[0].numel()))
        beam = places // each.shape[1]
        if free is not logprobs:
            each = free.gather(1, tokens)
        each, tokens = (x.reshape(len(totals), -1).gather(1, places) for x in (each, tokens))
        self.ids = torch.cat([_rows(self.ids, beam), tokens[:, :, None]], 2)
        self.logprobs = torch.cat([_rows(self.logprobs, beam), each[:, :, None]], 2)
        return totals, beam

    def _collect(self, place: int, number: int, total: float, penalty: float, kind: Ended) -> None:
        """Make a candidate a result."""
        if total <= LEAST / 2:
            return
        ids, logprobs = self.ids[place, number].tolist(), self.logprobs[place, number].tolist()
        score = (sum(logprobs) if self.changed else total) / penalty
        written = Written(ids[:-1] if kind == "end" else ids, logprobs, score, kind)
        self.results[self.live[place]].append((total / penalty, written))

    def _may_improve(self, request: int, score: float) -> bool:
        results = self.results[request]
        if len(results) < self.beams:
            return True
        return not self.decoding.early_stopping and score > results[-1][0]

    def _keep(self, going: list[int], chosen: Tensor, beam: Tensor) -> Tensor:
        """Keep the chosen candidates of these requests."""
        on = torch.tensor(going, dtype=torch.long, device=chosen.device)
        chosen = chosen[on]
        self.live = [self.live[place] for place in going]
        self.scores = self.scores[on]
        self.ids, self.logprobs = _rows(self.ids[on], chosen), _rows(self.logprobs[on], chosen)
        return (on[:, None] * self.beams + beam[on].gather(1, chosen)).flatten()

    def _stopped(self) -> Tensor:
        """Candidates that end for another reason than their last token."""
        stops, shape = self.rules.stops, self.ids.shape[:2]
        if stops is None:
            return torch.zeros(shape, dtype=torch.bool, device=self.ids.device)
        flags = [[stops(one) for one in group] for group in self.ids.tolist()]
        return torch.tensor(flags, device=self.ids.device)

    def _texts(self) -> list[tuple[list[int], list[int]]]:
        """The prompt of each beam, and what was written behind it."""
        prompts = [self.requests[number].prompt.tolist() for number in self.live]
        return [
            (prompt, ids)
            for prompt, group in zip(prompts, self.ids.tolist(), strict=True)
            for ids in group
        ]


def _kind(end: bool, stop: bool) -> Ended:
    """Why a text ends that does."""
    if stop:
        return "stop"
    return "end" if end else "length"


def _rows(of: Tensor, places: Tensor) -> Tensor:
    """Beams of each request. Shapes: (S, B, T), (S, C) -> (S, C, T)."""
    return of.gather(1, places[:, :, None].expand(-1, -1, of.shape[2]))


def likeliest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest numbers of each row and their places, highest first. Shapes: (R, V) -> (R, count)
    both.

    They are in the `count` columns whose maxima are the highest, of columns of a few numbers each:
    torch's `topk` over all takes twice as long on CPUs (notes/2026-11.md).
    """
    width = scores.shape[1] // COLUMN_ROWS
    if width < COLUMN_ROWS * count:
        highest, places = scores.topk(count)
        return highest, places
    columns = scores[:, : width * COLUMN_ROWS].view(-1, COLUMN_ROWS, width)
    best = columns.amax(1).topk(count).indices[:, None]
    first = torch.arange(COLUMN_ROWS, device=scores.device)[:, None] * width
    rest = torch.arange(width * COLUMN_ROWS, scores.shape[1], device=scores.device)
    places = torch.cat([(best + first).flatten(1), rest.expand(len(scores), -1)], 1)
    highest, chosen = scores.gather(1, places).topk(count)
    return highest, places.gather(1, chosen)
