"""Text generation: greedy decoding, sampling, prompt lookup, or beam search.

A generated text depends only on its own request, not on other texts of the batch or on earlier
samples.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from bertkit.extensions.generation.beam import beam_steps, finish
from bertkit.extensions.generation.decoding import (
    Decoding,
    Ended,
    GeneratedTokens,
    Rules,
    constrain,
)
from bertkit.extensions.generation.sampling import sample, seed_of, uniform
from bertkit.extensions.generation.stepper import Request, Stepper, StepperState


@dataclass(eq=False)
class GeneratedRow:
    """A text while it is generated."""

    request: Request
    decoding: Decoding
    rules: Rules
    max_tokens: int
    """Maximum number of tokens to generate."""
    key: int
    """Seed of its random numbers."""

    @staticmethod
    def of(stepper: Stepper, request: Request, decoding: Decoding, rules: Rules) -> GeneratedRow:
        """Return the row of a request.

        Raises:
            DataError: If the prompt leaves no space for new tokens.
        """
        limit = rules.max_tokens(len(request.prompt), decoding)
        max_tokens, key = stepper.max_new_tokens(request, limit), seed_of(request, decoding.seed)
        return GeneratedRow(request, decoding, rules, max_tokens, key)

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: Ended | None = None

    @property
    def written(self) -> GeneratedTokens:
        assert self.ended is not None
        ids = self.ids[:-1] if self.ended == "end" else self.ids
        return GeneratedTokens(ids, self.logprobs, float(np.sum(self.logprobs)), self.ended)


def generate(
    stepper: Stepper, requests: Sequence[Request], decoding: Decoding, rules: Rules
) -> list[list[GeneratedTokens]]:
    """Generate `num_return_sequences` texts of each request, best first."""
    return finish(generate_steps(stepper, requests, decoding, rules))


def generate_steps(
    stepper: Stepper, requests: Sequence[Request], decoding: Decoding, rules: Rules
) -> Generator[int, None, list[list[GeneratedTokens]]]:
    """Generate like `generate`, and yield the number of sequences after each step."""
    if decoding.num_beams > 1:
        return (yield from beam_steps(stepper, requests, decoding, rules))
    batch = GenerationBatch(stepper)
    copies = [
        replace(x, number=number)
        for x in requests
        for number in range(decoding.num_return_sequences)
    ]
    rows = [GeneratedRow.of(stepper, request, decoding, rules) for request in copies]
    batch.add(rows)
    while batch.rows:
        yield len(batch.rows)
        batch.step()
    texts = [row.written for row in rows]
    best = decoding.num_return_sequences
    return [
        sorted(texts[i : i + best], key=lambda text: -text.score)
        for i in range(0, len(texts), best)
    ]


class GenerationBatch:
    """Texts that are generated together, by greedy decoding or sampling.

    Each text has its own settings. Texts can be added and dropped between steps.
    """

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.rows: list[GeneratedRow] = []
        self._state: StepperState | None = None

    def add(self, rows: Sequence[GeneratedRow]) -> None:
        """Process the prompts of new rows and append the first token of each.

        Rows that have not ended after their first token are added to `rows`.
        """
        state, logits = self.stepper.start([row.request for row in rows])
        active = self._append_tokens(rows, logits)
        if len(active) < len(rows):
            state.keep(torch.tensor(active, dtype=torch.long, device=logits.device))
        if self._state is None or not self.rows:
            self._state = state
        elif active:
            self._state.join(state)
        self.rows += [rows[index] for index in active]

    def step(self) -> list[GeneratedRow]:
        """Append the next token to each row, and further tokens that were guessed correctly.

        Rows that have ended are removed from `rows`.

        Returns:
            The rows with new tokens, including rows that have ended.
        """
        if self._state is None or not self.rows:
            return []
        rows, device = self.rows, self._device
        # Each guessed token needs a position in the model.
        left = min(row.max_tokens - len(row.ids) for row in rows)
        guesses = [guess(row)[: left - 1] for row in rows]
        width = 1 + max(map(len, guesses))
        ids = [
            [row.ids[-1], *tokens, *[row.ids[-1]] * (width - 1 - len(tokens))]
            for row, tokens in zip(rows, guesses, strict=True)
        ]
        logits = self.stepper.step(self._state, torch.tensor(ids, device=device))
        counts = torch.ones(len(rows), dtype=torch.long)
        correct = self._append_tokens(rows, logits[:, 0])
        active = set(correct)
        for ahead in range(1, width):
            correct = [i for i in correct if rows[i].ids[-1:] == guesses[i][ahead - 1 : ahead]]
            if not correct:
                break
            counts[correct] += 1
            running = self._append_tokens([rows[i] for i in correct], logits[correct, ahead])
            active -= set(correct) - {correct[i] for i in running}
            correct = [correct[i] for i in running]
        self._state.advance(counts.to(device))
        if len(active) < len(rows):
            self.drop(set(range(len(rows))) - active)
        return rows

    def drop(self, indices: set[int]) -> None:
        """Remove rows."""
        rest = [index for index in range(len(self.rows)) if index not in indices]
        self.rows = [self.rows[index] for index in rest]
        if rest and self._state is not None:
            self._state.keep(torch.tensor(rest, dtype=torch.long, device=self._device))

    _device = torch.device("cpu")

    def _append_tokens(self, rows: Sequence[GeneratedRow], logits: Tensor) -> list[int]:
        """Append the next token to each row, and return the indices of rows that continue."""
        self._device = logits.device
        groups: dict[tuple[int, int], list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault((id(row.decoding), id(row.rules)), []).append(index)
        if len(groups) == 1:
            tokens = _select_tokens(rows, logits)
        else:
            tokens = torch.empty(len(rows), dtype=torch.long, device=logits.device)
            for indices in groups.values():
                tokens[indices] = _select_tokens([rows[i] for i in indices], logits[indices])
        logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)
        active = []
        new = zip(rows, tokens.tolist(), logprobs.tolist(), strict=True)
        for index, (row, token, logprob) in enumerate(new):
            row.ids.append(token)
            row.logprobs.append(logprob)
            if token == row.rules.last and len(row.ids) == row.max_tokens:
                row.ended = "length"
            elif token in row.rules.ends:
                row.ended = "end"
            elif row.rules.stops is not None and row.rules.stops(row.ids):
                row.ended = "stop"
            elif len(row.ids) == row.max_tokens:
                row.ended = "length"
            else:
                active.append(index)
        return active


def guess(row: GeneratedRow) -> list[int]:
    """Guess the next tokens of a row (prompt lookup).

    The guess is the tokens after the last earlier occurrence of the row's final n-gram, in the
    source or prompt or in the generated tokens.
    """
    if row.decoding.prompt_lookup_num_tokens is None:
        return []
    known = row.request.prompt if row.request.source is None else row.request.source
    text = np.concatenate([known, np.array(row.ids, dtype=np.int64)])
    for size in range(min(MAX_NGRAM, len(text) - 1), 0, -1):
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
        starts = np.flatnonzero((windows == text[-size:]).all(1))
        if len(starts):
            end = int(starts[-1]) + size
            return [int(token) for token in text[end : end + row.decoding.prompt_lookup_num_tokens]]
    return []


MAX_NGRAM = 3
"""Maximum size of the n-gram that a guess follows. The largest n-gram with an earlier occurrence is
used."""


def _select_tokens(rows: Sequence[GeneratedRow], logits: Tensor) -> Tensor:
    """Select the next token of rows with equal settings, from logits (R, V)."""
    decoding, rules = rows[0].decoding, rows[0].rules
    left = [row.max_tokens - len(row.ids) for row in rows]
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
        # On CPUs this takes a third of the time of argmax.
        return logits.max(-1).indices
    numbers = [uniform(row.key, len(row.ids)) for row in rows]
    return sample(logits, torch.tensor(numbers, dtype=torch.float64), decoding)
