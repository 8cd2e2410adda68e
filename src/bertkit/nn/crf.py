"""A linear-chain conditional random field: tags of a sentence are scored together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

FORBIDDEN = -1e30
"""The score of what a mask forbids, where gradients are taken. Finite, so that they are too; so
low that no sum of real scores makes up for it; and 10⁸ of them still add up within fp32."""

CHUNK_WORDS = 512
"""Words from which on a sequence is cut into pieces (`CRF.pieces`)."""


class CRF(nn.Module):
    """A score for each word's tag, each pair of neighboring tags, and the first and last tag.

    The probability of a tag sequence is softmax over the summed scores of all tag sequences.
    `allowed` (L, L) [from, to], `starts` (L,) and `ends` (L,) are True where a tag may occur;
    without them any may. They must leave every sequence at least one tag sequence. The words of
    all sequences lie end to end; lengths are >= 1, in any order.
    Source: Lafferty et al. 2001; Lample et al. 2016, section 2.2.
    """

    def __init__(
        self,
        labels: int,
        allowed: Tensor | None = None,
        starts: Tensor | None = None,
        ends: Tensor | None = None,
    ) -> None:
        super().__init__()
        # At zero the field is a softmax for each word: what a fine-tuned tagger starts from.
        self.transitions = nn.Parameter(torch.zeros(labels, labels))
        self.start = nn.Parameter(torch.zeros(labels))
        self.end = nn.Parameter(torch.zeros(labels))
        # Plain tensors on the host, not buffers: a model made without storage is filled from a
        # file after `to_empty`, which leaves random bits in buffers too, and no file has the masks.
        anything = torch.ones(labels, labels, dtype=torch.bool, device="cpu")
        self.allowed = anything if allowed is None else allowed
        self.starts = anything[0] if starts is None else starts
        self.ends = anything[0] if ends is None else ends

    def forward(self, emissions: Tensor, tags: Tensor, lengths: Sequence[int]) -> Tensor:
        """The negative log-likelihood of each sequence's tags, in fp32 whatever comes in.

        The tags must be such as the masks allow. Shapes: emissions (W, L), tags (W,) -> (S,).
        """
        emissions, scores = _relative(emissions), self._scores(FORBIDDEN)
        return _log_total(emissions, *scores, lengths) - _score(emissions, *scores, tags, lengths)

    @torch.no_grad()
    def decode(self, emissions: Tensor, lengths: Sequence[int]) -> list[list[int]]:
        """The likeliest tags of each sequence (Viterbi), never what a mask forbids.

        Computed in fp64 on the host. Shapes: emissions (W, L).
        Raises: ValueError when the masks allow a sequence of this length no tags at all.
        """
        transitions, start, end = (x.cpu().double().numpy() for x in self._scores(-torch.inf))
        _, words, running = _by_time(lengths)
        by_time = emissions.detach().cpu().double().numpy()[words]
        now, *later = np.split(by_time, np.cumsum(running)[:-1])
        best = start + now  # (S, L) of the best path to each tag; stays once a sequence is over
        came_from = []
        for n, now in zip(running[1:], later, strict=True):
            paths = best[:n, None, :] + transitions.T  # (n, to, from)
            came_from.append(paths.argmax(-1))
            best[:n] = paths.max(-1) + now
        best += end
        tag = best.argmax(-1)
        if np.isneginf(best.max(-1)).any():
            raise ValueError("the masks allow a sequence of this length no tags at all")
        backwards = []
        for n, previous in zip(running[:0:-1], reversed(came_from), strict=True):
            backwards.append(tag[:n].copy())
            tag[:n] = previous[np.arange(n), tag[:n]]
        tags = np.empty_like(words)
        tags[words] = np.concatenate([tag, *reversed(backwards)])
        return [part.tolist() for part in np.split(tags, np.cumsum(lengths)[:-1])]

    def marginals(self, emissions: Tensor, lengths: Sequence[int]) -> Tensor:
        """The probability of each tag at each word, 0 where it is impossible; no gradient.

        It is the gradient of the log of the total: backpropagation is the backward pass of
        forward-backward. Source: Eisner 2016. Shapes: (W, L) -> (W, L) in fp32.
        """
        with torch.inference_mode(False), torch.enable_grad():
            transitions, start, end = (x.detach().clone() for x in self._scores(FORBIDDEN))
            inputs = _relative(emissions.detach().clone()).requires_grad_()
            total = _log_total(inputs, transitions, start, end, lengths).sum()
            return torch.autograd.grad(total, inputs)[0]

    def pieces(self, tags: Sequence[int]) -> Iterator[int]:
        """The lengths of pieces of a tag sequence, cut as soon as they may where no entity is open.

        The sums of a book would be too large for fp32, and slow; those of a piece are not.
        """
        starts, ends = self.starts.tolist(), self.ends.tolist()
        begin = 0
        for word in range(len(tags)):
            if word - begin >= CHUNK_WORDS and starts[tags[word]] and ends[tags[word - 1]]:
                yield word - begin
                begin = word
        yield len(tags) - begin

    def _scores(self, forbidden: float) -> tuple[Tensor, Tensor, Tensor]:
        """Transitions, start and end in fp32, with `forbidden` where a mask says so."""
        device = self.transitions.device
        return (
            self.transitions.float().masked_fill(~self.allowed.to(device), forbidden),
            self.start.float().masked_fill(~self.starts.to(device), forbidden),
            self.end.float().masked_fill(~self.ends.to(device), forbidden),
        )


def _relative(emissions: Tensor) -> Tensor:
    """The scores of each word in fp32, less a constant: no probability depends on it, and the
    sums of a long sequence stay small enough for fp32.
    """
    emissions = emissions.float()
    return emissions - emissions.detach().logsumexp(-1, keepdim=True)


def _by_time(
    lengths: Sequence[int],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """An order in which each step concerns the first rows only, so that nothing is padded.

    Shapes: (S,) the sequences, longest first; (W,) the first word of each, then the second of
    each that has one, ...; (T,) how many sequences have a word at each step.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes)
    steps = np.arange(sizes.max())[:, None]
    there = steps < sizes[order]  # (T, S)
    words = (np.cumsum(sizes) - sizes)[order] + steps
    return order, words[there], there.sum(1)


def _log_total(
    emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, lengths: Sequence[int]
) -> Tensor:
    """The log of the summed exp(score) of all tag sequences: the forward algorithm. -> (S,)."""
    order, words, running = _by_time(lengths)
    device = emissions.device
    now, *later = emissions[torch.from_numpy(words).to(device)].split(running.tolist())
    reach, over = start + now, []
    for now in later:
        n = len(now)
        if n < len(reach):
            over.append(reach[n:])
            reach = reach[:n]
        reach = torch.logsumexp(reach[:, None, :] + transitions.T, -1) + now  # (n, to, from)
    over.append(reach)
    totals = torch.logsumexp(torch.cat(over[::-1]) + end, -1)
    return totals[torch.from_numpy(np.argsort(order)).to(device)]


def _score(
    emissions: Tensor,
    transitions: Tensor,
    start: Tensor,
    end: Tensor,
    tags: Tensor,
    lengths: Sequence[int],
) -> Tensor:
    """The score of the given tags. -> (S,)."""
    sizes = torch.tensor(lengths, device="cpu")
    owner = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), sizes)
    later = 1 + (owner[1:] == owner[:-1]).nonzero()[:, 0]  # words that have one before them
    last = sizes.cumsum(0) - 1
    first = last - sizes + 1
    owner, owner_later, later, first, last = (
        x.to(emissions.device) for x in (owner, owner[later], later, first, last)
    )
    score = start[tags[first]] + end[tags[last]]
    score = score.index_add(0, owner, emissions.gather(1, tags[:, None])[:, 0])
    return score.index_add(0, owner_later, transitions[tags[later - 1], tags[later]])
