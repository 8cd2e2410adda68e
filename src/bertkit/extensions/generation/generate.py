"""How a model that writes chooses its words: greedily, by chance, or by beam search.

Whatever is written depends on its own request alone: on no neighbor, and on no draw before it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from bertkit.extensions.generation.beam import beam_steps, finish
from bertkit.extensions.generation.decoding import Decoding, Ended, Rules, Written, constrain
from bertkit.extensions.generation.sampling import sample, seed_of, uniform
from bertkit.extensions.generation.stepper import Request, Stepper, StepperState


@dataclass(eq=False)
class GeneratedRow:
    """A text while it is written."""

    request: Request
    decoding: Decoding
    rules: Rules
    room: int
    """Tokens that it may still have at its start."""
    key: int
    """Of its random numbers."""

    @staticmethod
    def of(stepper: Stepper, request: Request, decoding: Decoding, rules: Rules) -> GeneratedRow:
        """Raises: DataError for a prompt that leaves no room."""
        most = rules.max_tokens(len(request.prompt), decoding)
        room, key = stepper.room(request, most), seed_of(request, decoding.seed)
        return GeneratedRow(request, decoding, rules, room, key)

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
    return finish(generate_steps(stepper, requests, decoding, rules))


def generate_steps(
    stepper: Stepper,
    requests: Sequence[Request],
    decoding: Decoding,
    rules: Rules,
) -> Generator[int, None, list[list[Written]]]:
    """Generate as `generate` does. Yields: the number of sequences after each step."""
    if decoding.beams > 1:
        return (yield from beam_steps(stepper, requests, decoding, rules))
    writing = Writing(stepper)
    copies = [replace(one, number=number) for one in requests for number in range(decoding.best)]
    rows = [GeneratedRow.of(stepper, request, decoding, rules) for request in copies]
    writing.add(rows)
    while writing.rows:
        yield len(writing.rows)
        writing.step()
    written = [row.written for row in rows]
    best = decoding.best
    return [
        sorted(written[i : i + best], key=lambda one: -one.score)
        for i in range(0, len(written), best)
    ]


class Writing:
    """Rows that grow together, greedily or by chance, each as it was asked for; some may join while
    others are at work.
    """

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.rows: list[GeneratedRow] = []
        self._state: StepperState | None = None

    def add(self, rows: Sequence[GeneratedRow]) -> None:
        """Read these prompts and choose the first word of each; those that go on are `rows`."""
        state, logits = self.stepper.start([row.request for row in rows])
        kept = self._chosen(rows, logits)
        if len(kept) < len(rows):
            state.keep(torch.tensor(kept, dtype=torch.long, device=logits.device))
        if self._state is None or not self.rows:
            self._state = state
        elif kept:
            self._state.join(state)
        self.rows += [rows[place] for place in kept]

    def step(self) -> list[GeneratedRow]:
        """Another word of each row, and those behind it that were guessed rightly; the rows that
        were written to, of which the ended leave.
        """
        if self._state is None or not self.rows:
            return []
        before, device = self.rows, self._device
        left = min(
            row.room - len(row.ids) for row in before
        )  # a guess must have a position in the model
        guesses = [guess(row)[: left - 1] for row in before]
        width = 1 + max(map(len, guesses))
        ids = [
            [row.ids[-1], *some, *[row.ids[-1]] * (width - 1 - len(some))]
            for row, some in zip(before, guesses, strict=True)
        ]
        logits = self.stepper.step(self._state, torch.tensor(ids, device=device))
        stay = torch.ones(len(before), dtype=torch.long)
        right = self._chosen(before, logits[:, 0])
        alive = set(right)
        for ahead in range(1, width):
            right = [
                place for place in right
                if before[place].ids[-1:] == guesses[place][ahead - 1 : ahead]
            ]  # fmt: skip
            if not right:
                break
            stay[right] += 1
            going = self._chosen([before[place] for place in right], logits[right, ahead])
            alive -= set(right) - {right[place] for place in going}
            right = [right[place] for place in going]
        self._state.advance(stay.to(device))
        if len(alive) < len(before):
            self.drop(set(range(len(before))) - alive)
        return before

    def drop(self, places: set[int]) -> None:
        """Free these rows."""
        kept = [place for place in range(len(self.rows)) if place not in places]
        self.rows = [self.rows[place] for place in kept]
        if kept and self._state is not None:
            self._state.keep(torch.tensor(kept, dtype=torch.long, device=self._device))

    _device = torch.device("cpu")

    def _chosen(self, rows: Sequence[GeneratedRow], logits: Tensor) -> list[int]:
        """Write the next word of each row; the places of those that have not ended."""
        self._device = logits.device
        alike: dict[tuple[int, int], list[int]] = {}
        for place, row in enumerate(rows):
            alike.setdefault((id(row.decoding), id(row.rules)), []).append(place)
        if len(alike) == 1:
            chosen = _chosen(rows, logits)
        else:
            chosen = torch.empty(len(rows), dtype=torch.long, device=logits.device)
            for places in alike.values():
                chosen[places] = _chosen([rows[place] for place in places], logits[places])
        logprobs = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        alive = []
        words = zip(rows, chosen.tolist(), logprobs.tolist(), strict=True)
        for place, (row, token, logprob) in enumerate(words):
            row.ids.append(token)
            row.logprobs.append(logprob)
            if token == row.rules.last and len(row.ids) == row.room:
                row.ended = "length"
            elif token in row.rules.ends:
                row.ended = "end"
            elif row.rules.stops is not None and row.rules.stops(row.ids):
                row.ended = "stop"
            elif len(row.ids) == row.room:
                row.ended = "length"
            else:
                alive.append(place)
        return alive


def guess(row: GeneratedRow) -> list[int]:
    """What may come next: what stood behind the row's last tokens where they came before, in what
    was read or written.
    """
    if row.decoding.lookup is None:
        return []
    read = row.request.prompt if row.request.source is None else row.request.source
    text = np.concatenate([read, np.array(row.ids, dtype=np.int64)])
    for size in range(min(MAX_NGRAM, len(text) - 1), 0, -1):
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
        places = np.flatnonzero((windows == text[-size:]).all(1))
        if len(places):
            behind = int(places[-1]) + size
            return [int(token) for token in text[behind : behind + row.decoding.lookup]]
    return []


MAX_NGRAM = 3
"""A guess follows as many of the last tokens as came before, so many at most."""


def _chosen(rows: Sequence[GeneratedRow], logits: Tensor) -> Tensor:
    """The next token of rows that are written alike. Shapes: (R, V) -> (R,)."""
    decoding, rules = rows[0].decoding, rows[0].rules
    left = [row.room - len(row.ids) for row in rows]
    closes = rules.last is not None and 1 in left
    if closes or rules.bind(decoding, min(len(row.ids) for row in rows)):
        logits = logits.clone()
        constrain(
            logits,
            lambda: [(row.request.prompt.tolist(), row.ids) for row in rows],
            decoding,
            rules,
            left,
        )
    if not decoding.temperature:
        return logits.max(-1).indices  # a third of the time of argmax on CPUs
    numbers = [uniform(row.key, len(row.ids)) for row in rows]
    return sample(logits, torch.tensor(numbers, dtype=torch.float64), decoding)
