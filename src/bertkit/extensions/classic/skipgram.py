"""Skip-gram with negative sampling: vectors of the words of a text.

Source: Mikolov et al. 2013, "Distributed representations of words and phrases and their
compositionality", sections 2.2 and 2.3.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor

from bertkit.config import Count, Positive, Seed, Settings
from bertkit.data.document_readers import documents
from bertkit.errors import DataError, TrainingError
from bertkit.extensions.classic.word_vectors import tokens
from bertkit.progress import progress

WORDS_PER_ROW = 64
"""Words of running text whose pairs are scored by one matrix product."""

NOISE_WORDS = 64
"""Noise words that all pairs of a row share; each weighs as a part of a pair's negatives."""

MAX_PAIRS_PER_WORD = 100
"""A word met in more pairs of one step than this moves as far as by this many: the gradients of
a step are summed at the same vectors, and sums for "the" or "." would overshoot and diverge."""


class Skipgram(Settings, frozen=True):
    """Skip-gram with negative sampling; the defaults suit small corpora."""

    width: Count = 100
    """Numbers of a vector, D."""
    window: Count = 5
    """Farthest context word; each centre draws its own window from 1 to this."""
    min_count: Count = 5
    """Rarer words are left out, as if the text had not held them."""
    negatives: Count = 5
    """Noise words against one context word."""
    subsample: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-3
    """Words that are a larger share of the text than this are thinned out."""
    epochs: Count = 3
    learning_rate: Positive = 0.025
    """Falls linearly to 0."""
    seed: Seed = 0
    batch: Count = 512
    """Words of text in a step; each has about `window` + 1 pairs. Rounded up to rows of 64."""


@dataclass(frozen=True, eq=False)
class Text:
    """The frequent words of the files, the most frequent first.

    Shapes: counts (V,); ids (N,) each word of the text; document (N,) the number of its document.
    """

    words: list[str]
    counts: NDArray[np.int64]
    ids: NDArray[np.int32]
    document: NDArray[np.int32]


def read_text(paths: Sequence[Path], min_count: int) -> Text:
    """The frequent words of files. Raises: DataError when fewer than two are frequent enough."""
    known: dict[str, int] = {}
    words_met, lengths = array("i"), array("q")
    with progress() as bar:
        task = bar.add_task("reading", total=None, note="")
        for part in documents(paths):
            words = tokens(part.text)
            words_met.extend([known.setdefault(word, len(known)) for word in words])
            if part.continues:
                lengths[-1] += len(words)
            else:
                lengths.append(len(words))
            bar.update(task, note=f"{len(words_met):,} words")
    ids = np.frombuffer(words_met, np.int32) if words_met else np.empty(0, np.int32)
    counts = np.bincount(ids, minlength=len(known))
    order = np.argsort(-counts, kind="stable")  # of equal counts, the one met first
    order = order[: np.count_nonzero(counts >= min_count)]
    if len(order) < 2:
        raise DataError(
            f"{paths[0]}: {len(order)} words occur {min_count} times or more; "
            "lower min_count, or give more text"
        )
    new = np.full(len(known), -1, np.int32)
    new[order] = np.arange(len(order), dtype=np.int32)
    ids = new[ids]
    document = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    names = list(known)
    kept = ids >= 0
    return Text([names[i] for i in order], counts[order], ids[kept], document[kept])


def learn(text: Text, settings: Skipgram) -> NDArray[np.float32]:
    """The input vectors (V, D) after all epochs. Raises: TrainingError when they diverge."""
    random = np.random.default_rng(settings.seed)
    shape = (len(text.words), settings.width)
    inputs = torch.from_numpy((random.random(shape, np.float32) - 0.5) / settings.width)
    outputs = torch.zeros(shape)
    share = text.counts / text.counts.sum()
    keep = np.minimum(1.0, np.sqrt(settings.subsample / share)).astype(np.float32)
    noise = np.cumsum(text.counts**0.75)
    noise /= noise[-1]
    size = -(-settings.batch // WORDS_PER_ROW)
    with progress() as bar:
        for epoch in range(settings.epochs):
            words, document = _rows(text, keep, settings.window, random)
            order = torch.from_numpy(random.permutation(len(words)))
            task = bar.add_task(
                f"epoch {epoch + 1} of {settings.epochs}", total=len(words), note="rows"
            )
            for start in range(0, len(words), size):
                done = (epoch + start / len(words)) / settings.epochs
                rows = order[start : start + size]
                pairs = _pairs(document[rows], settings.window, random)
                drawn = np.searchsorted(noise, random.random((len(rows), NOISE_WORDS)))
                _step(
                    inputs,
                    outputs,
                    words[rows].long(),
                    torch.from_numpy(drawn),
                    pairs,
                    negatives=settings.negatives,
                    rate=settings.learning_rate * (1.0 - done),
                )
                bar.update(task, completed=start + len(rows))
            if not torch.isfinite(inputs).all():
                raise TrainingError(
                    f"learning_rate: {settings.learning_rate:g} is too large for "
                    f"batch = {settings.batch}: the vectors grew without bound; lower either"
                )
    return inputs.numpy()


def _rows(
    text: Text, keep: NDArray[np.float32], window: int, random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """The thinned text in rows of ROW words, each with its neighbours on both sides.

    Shapes: words and document (rows, window + ROW + window); document is -1 where no text is.
    """
    kept = random.random(len(text.ids), np.float32) < keep[text.ids]
    ids, document = text.ids[kept], text.document[kept]
    length = max(-(-len(ids) // WORDS_PER_ROW), 1) * WORDS_PER_ROW + 2 * window
    padding = (window, length - window - len(ids))
    words = torch.from_numpy(np.pad(ids, padding))
    owner = torch.from_numpy(np.pad(document, padding, constant_values=-1))
    return words.unfold(0, WORDS_PER_ROW + 2 * window, WORDS_PER_ROW), owner.unfold(
        0, WORDS_PER_ROW + 2 * window, WORDS_PER_ROW
    )


def _pairs(document: Tensor, window: int, random: np.random.Generator) -> Tensor:
    """1 where a centre and a context word are a pair: near enough, and of one document.

    Shapes: document (R, window + ROW + window) -> (R, ROW, window + ROW + window).
    """
    reach = torch.from_numpy(random.integers(1, window + 1, (len(document), WORDS_PER_ROW, 1)))
    distance = (
        torch.arange(document.shape[1]) - window - torch.arange(WORDS_PER_ROW)[:, None]
    ).abs()
    owner = document[:, window:-window, None]
    near = (distance > 0) & (distance <= reach)
    return (near & (owner == document[:, None]) & (owner >= 0)).float()


def _step(
    inputs: Tensor,
    outputs: Tensor,
    words: Tensor,
    noise: Tensor,
    pairs: Tensor,
    *,
    negatives: int,
    rate: float,
) -> None:
    """One step of gradient ascent on equation 4 of the paper, in place.

    Shapes: inputs and outputs (V, D); words (R, C) rows with their neighbours; noise (R, NOISE);
    pairs (R, ROW, C).
    """
    window = (words.shape[1] - WORDS_PER_ROW) // 2
    centres = words[:, window:-window].reshape(-1)
    others = torch.cat([words, noise], 1)
    x = inputs[centres].view(len(words), WORDS_PER_ROW, -1)
    y = outputs[others]
    each = pairs.sum(2, keepdim=True) * (negatives / NOISE_WORDS)
    weight = torch.cat([pairs, each.expand(-1, -1, NOISE_WORDS)], 2)
    gradient = torch.bmm(x, y.transpose(1, 2)).sigmoid_().neg_()
    gradient[:, :, : words.shape[1]] += 1.0
    gradient *= weight * rate
    _add(inputs, centres, torch.bmm(gradient, y), weight.sum(2))
    _add(outputs, others.view(-1), torch.bmm(gradient.transpose(1, 2), x), weight.sum(1))


def _add(table: Tensor, rows: Tensor, change: Tensor, weight: Tensor) -> None:
    """Add changes to rows of a table; none moves further than `MAX_PAIRS_PER_WORD` pairs would."""
    total = torch.zeros(len(table)).index_add_(0, rows, weight.view(-1))
    change *= (MAX_PAIRS_PER_WORD / total[rows].clamp_(min=MAX_PAIRS_PER_WORD)).view(
        *weight.shape, 1
    )
    table.index_add_(0, rows, change.view(len(rows), -1))
