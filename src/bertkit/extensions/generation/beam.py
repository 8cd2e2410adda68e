"""Beam search."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

import torch
from torch import Tensor

from bertkit.extensions.generation.decoding import (
    Decoding,
    Ended,
    GeneratedTokens,
    Rules,
    constrain,
)
from bertkit.extensions.generation.stepper import Request, Stepper

MIN_SCORE = -1e9
"""Score that marks an entry as not a candidate."""

COLUMN_ROWS = 8
"""Number of values per column when `topk` arranges a row of scores in columns."""


@dataclass(frozen=True)
class BeamStep:
    """Candidates that one step of beam search considers for a request, most probable first.

    An entry with a score near `MIN_SCORE` is not a candidate: it continues an unused beam.
    """

    request: int
    beams: list[int]
    """Index of the previous step's beam that each candidate continues; 0 at the first step."""
    tokens: list[int]
    scores: list[float]
    """Log-probability of each candidate, including its last token."""
    ended: list[Ended | None]
    """Reason why each candidate ended, or None if it can continue. A candidate that ended becomes a
    result if it is among the first `num_beams` candidates. Otherwise, it is dropped."""
    kept: list[int]
    """Indices of the candidates that become the next beams, in order. The list is empty if the
    search for the request ends."""


Observer = Callable[[BeamStep], None]


T = TypeVar("T")


def finish(steps: Generator[Any, None, T]) -> T:
    """Run a generator to its end, and return the value that it returns."""
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
) -> list[list[GeneratedTokens]]:
    """Search for the most probable texts without interruption; see `beam_steps`."""
    return finish(beam_steps(stepper, requests, decoding, rules, observe))


@torch.inference_mode()
def beam_steps(
    stepper: Stepper,
    requests: Sequence[Request],
    decoding: Decoding,
    rules: Rules,
    observe: Observer | None = None,
) -> Generator[int, None, list[list[GeneratedTokens]]]:
    """Search for the most probable texts, and yield the number of active beams after each step.

    In each step, the candidates of a request are the most probable continuations of its beams, at
    least 2 × `num_beams`. A candidate that ends becomes a result if it is among the first
    `num_beams` candidates. The best `num_beams` results are kept. The search for a request ends
    when it has `num_beams` results and no beam has a higher score than the worst result. With
    `early_stopping`, it ends as soon as it has `num_beams` results.

    Args:
        stepper: The model.
        requests: Prompts. For an encoder-decoder model, they also contain the source texts.
        decoding: Decoding settings.
        rules: Constraints on the generated texts.
        observe: Function that is called with each step of each request.

    Returns:
        `num_return_sequences` texts for each request, best first.

    Raises:
        DataError: If a prompt leaves no space for new tokens.
    """
    limits = [
        stepper.max_new_tokens(request, rules.max_tokens(len(request.prompt), decoding))
        for request in requests
    ]
    state, logits = stepper.start(requests)
    search = _Search(requests, limits, decoding, rules, logits.device, observe)
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
    return [
        [text for _, text in texts[: decoding.num_return_sequences]] for texts in search.results
    ]


class _Search:
    """Beams of the active requests, and the results of all requests.

    Shapes:
        scores: (S, B), the log-probability of each beam.
        ids, logprobs: (S, B, T), the tokens of each beam and their log-probabilities.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        limits: Sequence[int],
        decoding: Decoding,
        rules: Rules,
        device: torch.device,
        observe: Observer | None = None,
    ) -> None:
        self.observe = observe
        self.requests, self.decoding, self.rules = requests, decoding, rules
        self.beams, self.active = decoding.num_beams, list(range(len(requests)))
        self.limits = torch.tensor(limits, device=device)
        self.ends = torch.tensor(list(rules.ends), dtype=torch.long, device=device)
        # All beams of a request are equal at the start, so only the first counts.
        first = torch.tensor([0.0] + [MIN_SCORE] * (self.beams - 1), device=device)
        self.scores = first.repeat(len(requests), 1)
        self.ids = torch.zeros(len(requests), self.beams, 0, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(len(requests), self.beams, 0, device=device)
        self.results: list[list[tuple[float, GeneratedTokens]]] = [[] for _ in requests]
        """Results of each request, with the score that the search maximizes. The constraints are
        applied to this score."""
        self.changed = False
        """Whether a constraint may have changed the score of a token that is not forbidden."""

    def step(self, logprobs: Tensor, length: int) -> Tensor:
        """Extend the beams by the token at position `length`, counted from 1.

        Returns:
            For each new beam, the row of the beam that it continues.

        Shapes:
            logprobs: (S · B, V); returns (S' · B,).
        """
        free = logprobs
        left = (self.limits[self.active] - length + 1).repeat_interleave(self.beams).tolist()
        closes = self.rules.last is not None and 1 in left
        if closes or replace(self.rules, forbidden=()).bind(self.decoding, length - 1):
            self.changed, free = True, logprobs.clone()
        if closes or self.rules.bind(self.decoding, length - 1):
            constrain(logprobs, self._texts, self.decoding, self.rules, left)
        totals, beam = self._candidates(logprobs, free)
        tokens = self.ids[:, :, -1]
        full = (self.limits[self.active] == length)[:, None]
        ended = torch.isin(tokens, self.ends)
        if self.rules.last is not None:
            ended &= ~(full & (tokens == self.rules.last))
        stopped = self._stopped() & ~ended
        hit = ended | stopped | full
        penalty = length**self.decoding.length_penalty
        for index, number in hit[:, : self.beams].nonzero().tolist():
            reason = _reason(bool(ended[index, number]), bool(stopped[index, number]))
            self._collect(index, number, float(totals[index, number]), penalty, reason)
        for request in self.active:
            self.results[request].sort(key=lambda result: -result[0])
            del self.results[request][self.beams :]
        self.scores, chosen = (totals + hit * MIN_SCORE).topk(self.beams)
        indices = [
            index
            for index, best in enumerate(self.scores[:, 0].tolist())
            if best > MIN_SCORE / 2 and self._may_improve(self.active[index], best / penalty)
        ]
        self._notify(beam, totals, (hit, ended, stopped), chosen, indices)
        return self._keep(indices, chosen, beam)

    def _notify(
        self,
        beam: Tensor,
        totals: Tensor,
        flags: tuple[Tensor, Tensor, Tensor],
        chosen: Tensor,
        indices: Sequence[int],
    ) -> None:
        """Call `observe` with the candidates of the step.

        Args:
            beam: The beam that each candidate continues.
            totals: The score of each candidate.
            flags: Whether each candidate ended, whether it ended with an EOS token, and whether it
                ended with a stop string.
            chosen: The candidates that become the next beams.
            indices: Indices of the requests that continue.

        Shapes:
            beam, totals, flags: (S, C); chosen: (S, B).
        """
        if self.observe is None:
            return
        for index, request in enumerate(self.active):
            ended: list[Ended | None] = [
                _reason(end, stop) if hit else None
                for hit, end, stop in zip(*(x[index].tolist() for x in flags), strict=True)
            ]
            beams, tokens, scores = (x[index].tolist() for x in (beam, self.ids[:, :, -1], totals))
            following = chosen[index].tolist() if index in indices else []
            self.observe(BeamStep(request, beams, tokens, scores, ended, following))

    def _candidates(self, logprobs: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        """Replace the beams with their most probable continuations, the candidates of this step.

        Args:
            logprobs: Log-probabilities of the next token after the constraints are applied.
            free: Log-probabilities of the next token as the model predicts them.

        Returns:
            The score of each candidate, and the beam that it continues.

        Shapes:
            logprobs, free: (S · B, V); returns (S, C) and (S, C).
        """
        vocab = logprobs.shape[-1]
        # With this many candidates, at least `beams` of them do not end with an EOS token.
        count = max(2, 1 + len(self.rules.ends)) * self.beams
        values, tokens = topk(logprobs, min(count, vocab))
        totals = values.view(*self.scores.shape, -1) + self.scores[:, :, None]
        totals, indices = totals.flatten(1).topk(min(count, totals[0].numel()))
        beam = indices // values.shape[1]
        if free is not logprobs:
            values = free.gather(1, tokens)
        values, tokens = (x.reshape(len(totals), -1).gather(1, indices) for x in (values, tokens))
        self.ids = torch.cat([_select(self.ids, beam), tokens[:, :, None]], 2)
        self.logprobs = torch.cat([_select(self.logprobs, beam), values[:, :, None]], 2)
        return totals, beam

    def _collect(self, row: int, number: int, total: float, penalty: float, reason: Ended) -> None:
        """Add an ended candidate to the results of its request."""
        if total <= MIN_SCORE / 2:
            return
        ids, logprobs = self.ids[row, number].tolist(), self.logprobs[row, number].tolist()
        score = (sum(logprobs) if self.changed else total) / penalty
        text = GeneratedTokens(ids[:-1] if reason == "end" else ids, logprobs, score, reason)
        self.results[self.active[row]].append((total / penalty, text))

    def _may_improve(self, request: int, score: float) -> bool:
        results = self.results[request]
        if len(results) < self.beams:
            return True
        return not self.decoding.early_stopping and score > results[-1][0]

    def _keep(self, indices: list[int], chosen: Tensor, beam: Tensor) -> Tensor:
        """Keep the chosen candidates as the next beams of the requests that continue.

        Returns:
            For each new beam, the row of the beam that it continues.
        """
        rows = torch.tensor(indices, dtype=torch.long, device=chosen.device)
        chosen = chosen[rows]
        self.active = [self.active[index] for index in indices]
        self.scores = self.scores[rows]
        self.ids = _select(self.ids[rows], chosen)
        self.logprobs = _select(self.logprobs[rows], chosen)
        return (rows[:, None] * self.beams + beam[rows].gather(1, chosen)).flatten()

    def _stopped(self) -> Tensor:
        """Return a boolean mask (S, C) of the candidates that end for a reason other than EOS."""
        stops, shape = self.rules.stops, self.ids.shape[:2]
        if stops is None:
            return torch.zeros(shape, dtype=torch.bool, device=self.ids.device)
        flags = [[stops(ids) for ids in group] for group in self.ids.tolist()]
        return torch.tensor(flags, device=self.ids.device)

    def _texts(self) -> list[tuple[list[int], list[int]]]:
        """Return the prompt tokens and the generated tokens of each beam."""
        prompts = [self.requests[number].prompt.tolist() for number in self.active]
        return [
            (prompt, ids)
            for prompt, group in zip(prompts, self.ids.tolist(), strict=True)
            for ids in group
        ]


def _reason(end: bool, stop: bool) -> Ended:
    """Return the reason why a text ended."""
    if stop:
        return "stop"
    return "end" if end else "length"


def _select(values: Tensor, beams: Tensor) -> Tensor:
    """Select beams of each request.

    Shapes:
        values: (S, B, T); beams: (S, C); returns (S, C, T).
    """
    return values.gather(1, beams[:, :, None].expand(-1, -1, values.shape[2]))


def topk(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest values of each row and their indices, highest first.

    The values of a row are arranged in columns of `COLUMN_ROWS` values. The `count` highest values
    must be in the `count` columns with the highest maxima, so only these columns are searched. On
    CPUs, torch's `topk` over all values takes twice as long (notes/2026-11.md).

    Shapes:
        scores: (R, V); returns (R, count) and (R, count).
    """
    width = scores.shape[1] // COLUMN_ROWS
    if width < COLUMN_ROWS * count:
        highest, indices = scores.topk(count)
        return highest, indices
    columns = scores[:, : width * COLUMN_ROWS].view(-1, COLUMN_ROWS, width)
    best = columns.amax(1).topk(count).indices[:, None]
    first = torch.arange(COLUMN_ROWS, device=scores.device)[:, None] * width
    rest = torch.arange(width * COLUMN_ROWS, scores.shape[1], device=scores.device)
    indices = torch.cat([(best + first).flatten(1), rest.expand(len(scores), -1)], 1)
    highest, chosen = scores.gather(1, indices).topk(count)
    return highest, indices.gather(1, chosen)
