"""Linear-chain conditional random field (CRF), which scores complete sequences of tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

FORBIDDEN = -1e30
"""Score of transitions and tags that a mask forbids, if gradients are computed.

The score is finite, so that gradients are also finite. No sum of allowed scores can compensate for
it, and the sum of 10⁸ such scores does not overflow in fp32.
"""

CHUNK_WORDS = 512
"""Minimum number of words of a chunk, except the last, if `CRF.chunk_lengths` splits a sequence."""


class CRF(nn.Module):
    """CRF with scores for the tag of each word, for adjacent tags, and for the first and last tag.

    The score of a tag sequence is the sum of these scores. Its probability is the softmax over the
    scores of all tag sequences. The words of all sequences are packed. Sequences have at least one
    word and may have any order. The masks must allow at least one tag sequence of every length.

    Args:
        labels: Number of tags L.
        allowed: Mask of the allowed transitions [from, to]. Default: all.
        starts: Mask of the tags with which a sequence may start. Default: all.
        ends: Mask of the tags with which a sequence may end. Default: all.

    Shapes:
        allowed: (L, L).
        starts, ends: (L,).

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
        # If all scores are zero, the CRF is equivalent to a softmax for each word, as in a tagger
        # without a CRF.
        self.transitions = nn.Parameter(torch.zeros(labels, labels))
        self.start = nn.Parameter(torch.zeros(labels))
        self.end = nn.Parameter(torch.zeros(labels))
        # The masks are not buffers, because checkpoints do not contain them. `to_empty`, which is
        # called before weights are loaded, would leave random values in buffers.
        unrestricted = torch.ones(labels, labels, dtype=torch.bool, device="cpu")
        self.allowed = unrestricted if allowed is None else allowed
        self.starts = unrestricted[0] if starts is None else starts
        self.ends = unrestricted[0] if ends is None else ends

    def forward(self, emissions: Tensor, tags: Tensor, lengths: Sequence[int]) -> Tensor:
        """Compute the negative log-likelihood of each sequence's tags, in fp32.

        Args:
            emissions: Score of each tag for each word.
            tags: Tag of each word. The masks must allow each tag sequence.
            lengths: Number of words in each sequence.

        Returns:
            One value per sequence.

        Shapes:
            emissions: (W, L).
            tags: (W,).
            returns: (S,).
        """
        emissions, scores = _normalize(emissions), self._scores(FORBIDDEN)
        return _log_z(emissions, *scores, lengths) - _score(emissions, *scores, tags, lengths)

    @torch.no_grad()
    def decode(self, emissions: Tensor, lengths: Sequence[int]) -> list[list[int]]:
        """Find the most probable allowed tags of each sequence by the Viterbi algorithm.

        The computation uses fp64 on the CPU.

        Args:
            emissions: Score of each tag for each word.
            lengths: Number of words in each sequence.

        Returns:
            The tags of each sequence.

        Raises:
            ValueError: If the masks do not allow any tag sequence of a sequence's length.

        Shapes:
            emissions: (W, L).
        """
        transitions, start, end = (x.cpu().double().numpy() for x in self._scores(-torch.inf))
        _, words, running = _by_time(lengths)
        by_time = emissions.detach().cpu().double().numpy()[words]
        now, *later = np.split(by_time, np.cumsum(running)[:-1])
        # `best` (S, L) is the score of the best path to each tag. After the end of a sequence, its
        # row does not change.
        best = start + now
        predecessors = []
        for n, now in zip(running[1:], later, strict=True):
            paths = best[:n, None, :] + transitions.T  # (n, to, from)
            predecessors.append(paths.argmax(-1))
            best[:n] = paths.max(-1) + now
        best += end
        tag = best.argmax(-1)
        if np.isneginf(best.max(-1)).any():
            raise ValueError("the masks allow no tags for a sequence of this length")
        backwards = []
        for n, previous in zip(running[:0:-1], reversed(predecessors), strict=True):
            backwards.append(tag[:n].copy())
            tag[:n] = previous[np.arange(n), tag[:n]]
        tags = np.empty_like(words)
        tags[words] = np.concatenate([tag, *reversed(backwards)])
        return [part.tolist() for part in np.split(tags, np.cumsum(lengths)[:-1])]

    def marginals(self, emissions: Tensor, lengths: Sequence[int]) -> Tensor:
        """Compute the probability of each tag for each word, without a gradient.

        Impossible tags have the probability 0. The probabilities are the gradient of the log
        partition function, so that backpropagation replaces the backward pass of the
        forward-backward algorithm. Source: Eisner 2016.

        Args:
            emissions: Score of each tag for each word.
            lengths: Number of words in each sequence.

        Shapes:
            emissions: (W, L).
            returns: (W, L), in fp32.
        """
        with torch.inference_mode(False), torch.enable_grad():
            transitions, start, end = (x.detach().clone() for x in self._scores(FORBIDDEN))
            inputs = _normalize(emissions.detach().clone()).requires_grad_()
            total = _log_z(inputs, transitions, start, end, lengths).sum()
            return torch.autograd.grad(total, inputs)[0]

    def chunk_lengths(self, tags: Sequence[int]) -> Iterator[int]:
        """Split a long tag sequence into chunks, and return the lengths of the chunks.

        A chunk ends at the first place between entities after `CHUNK_WORDS` words. Without chunks,
        the sums over a complete book would be slow, and inexact in fp32.

        Args:
            tags: Tags of all words.
        """
        starts, ends = self.starts.tolist(), self.ends.tolist()
        start = 0
        for word in range(len(tags)):
            if word - start >= CHUNK_WORDS and starts[tags[word]] and ends[tags[word - 1]]:
                yield word - start
                start = word
        yield len(tags) - start

    def _scores(self, forbidden: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the transition, start, and end scores in fp32. Masked scores are `forbidden`."""
        device = self.transitions.device
        return (
            self.transitions.float().masked_fill(~self.allowed.to(device), forbidden),
            self.start.float().masked_fill(~self.starts.to(device), forbidden),
            self.end.float().masked_fill(~self.ends.to(device), forbidden),
        )


def _normalize(emissions: Tensor) -> Tensor:
    """Subtract a constant from the scores of each word, in fp32.

    The constant does not change probabilities. It keeps the sums over a long sequence small enough
    for the precision of fp32.
    """
    emissions = emissions.float()
    return emissions - emissions.detach().logsumexp(-1, keepdim=True)


def _by_time(
    lengths: Sequence[int],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Order the words of all sequences by their positions, so that no padding is needed.

    The longest sequences come first, so that the sequences that have a word at a position are
    always the first ones.

    Returns:
        The indices of the sequences, from the longest to the shortest. The indices of the words:
        the first word of each sequence, then the second words, and so on. The number of sequences
        that have a word at each position.

    Shapes:
        returns: (S,), (W,) and (T,).
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    order = np.argsort(-sizes)
    steps = np.arange(sizes.max())[:, None]
    has_word = steps < sizes[order]  # (T, S)
    words = (np.cumsum(sizes) - sizes)[order] + steps
    return order, words[has_word], has_word.sum(1)


def _log_z(
    emissions: Tensor, transitions: Tensor, start: Tensor, end: Tensor, lengths: Sequence[int]
) -> Tensor:
    """Return the log of the sum of exp(score) over all tag sequences, by the forward algorithm."""
    order, words, running = _by_time(lengths)
    device = emissions.device
    now, *later = emissions[torch.from_numpy(words).to(device)].split(running.tolist())
    scores, finished = start + now, []
    for now in later:
        n = len(now)
        if n < len(scores):
            finished.append(scores[n:])
            scores = scores[:n]
        # (n, to, from)
        scores = torch.logsumexp(scores[:, None, :] + transitions.T, -1) + now
    finished.append(scores)
    totals = torch.logsumexp(torch.cat(finished[::-1]) + end, -1)
    return totals[torch.from_numpy(np.argsort(order)).to(device)]


def _score(
    emissions: Tensor,
    transitions: Tensor,
    start: Tensor,
    end: Tensor,
    tags: Tensor,
    lengths: Sequence[int],
) -> Tensor:
    """Compute the score of each sequence's tags."""
    sizes = torch.tensor(lengths, device="cpu")
    owner = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), sizes)
    # `later` contains the words that are not the first word of their sequence.
    later = 1 + (owner[1:] == owner[:-1]).nonzero()[:, 0]
    last = sizes.cumsum(0) - 1
    first = last - sizes + 1
    owner, owner_later, later, first, last = (
        x.to(emissions.device) for x in (owner, owner[later], later, first, last)
    )
    score = start[tags[first]] + end[tags[last]]
    score = score.index_add(0, owner, emissions.gather(1, tags[:, None])[:, 0])
    return score.index_add(0, owner_later, transitions[tags[later - 1], tags[later]])
