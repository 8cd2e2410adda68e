"""Text generation with greedy decoding, sampling, prompt lookup, or beam search.

A generated text depends only on its own request, not on other texts in the batch or on earlier
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
    """A text that is being generated, as a row of a `GenerationBatch`."""

    request: Request
    decoding: Decoding
    rules: Rules
    max_tokens: int
    """Maximum number of tokens to generate."""
    key: int
    """Seed of the random numbers that select the tokens of this text."""

    @staticmethod
    def of(stepper: Stepper, request: Request, decoding: Decoding, rules: Rules) -> GeneratedRow:
        """Return a row without generated tokens for a request.

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
    """Generate `num_return_sequences` texts for each request, best first."""
    return finish(generate_steps(stepper, requests, decoding, rules))


def generate_steps(
    stepper: Stepper, requests: Sequence[Request], decoding: Decoding, rules: Rules
) -> Generator[int, None, list[list[GeneratedTokens]]]:
    """Generate texts as `generate` does, and yield the number of active sequences after each step.

    The sequences are beams if `num_beams` is greater than 1, otherwise texts.
    """
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
    """Batch of texts that are generated together with greedy decoding or sampling.

    Each text can have its own settings. Texts can be added and removed between steps.
    """

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.rows: list[GeneratedRow] = []
        self._state: StepperState | None = None

    def add(self, rows: Sequence[GeneratedRow]) -> None:
        """Process the prompts of new rows, and append the first generated token to each row.

        Rows that continue after their first token are added to `self.rows`.
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
        """Append the next token to each row, and more tokens where a guess was correct.

        Rows that end in this step are removed from `self.rows`.

        Returns:
            All rows that were extended, including the rows that have ended.
        """
        if self._state is None or not self.rows:
            return []
        rows, device = self.rows, self._device
        # Each guessed token needs a position in the model, so long guesses are shortened.
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
        """Remove the rows with these indices from the batch."""
        rest = [index for index in range(len(self.rows)) if index not in indices]
        self.rows = [self.rows[index] for index in rest]
        if rest and self._state is not None:
            self._state.keep(torch.tensor(rest, dtype=torch.long, device=self._device))

    _device = torch.device("cpu")

    def _append_tokens(self, rows: Sequence[GeneratedRow], logits: Tensor) -> list[int]:
        """Select the next token of each row, and append it.

        Returns:
            The indices of the rows that have not ended.
        """
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

    The last n-gram of the row is searched for in the known text: the source text if there is one,
    otherwise the prompt, followed by the generated tokens. The guess consists of the tokens after
    its last earlier occurrence.
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
"""Maximum size of the n-gram that `guess` searches for. The largest n-gram that occurs earlier is
used."""


def _select_tokens(rows: Sequence[GeneratedRow], logits: Tensor) -> Tensor:
    """Select the next token of each row. All rows must have equal settings.

    Shapes:
        logits: (R, V); returns (R,).
    """
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
