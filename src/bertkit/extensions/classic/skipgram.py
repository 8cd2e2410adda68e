"""Training of word vectors with skip-gram and negative sampling (word2vec).

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
"""Number of consecutive words whose pairs are scored with one matrix multiplication."""

NOISE_WORDS = 64
"""Number of noise words that all pairs in a row share. They are weighted as if each pair had
`negatives` noise words."""

MAX_PAIRS_PER_WORD = 100
"""Maximum number of pairs in a step that update a word with full weight.

The gradients of a step are summed for each vector. Without this limit, the sums for frequent words
such as "the" would be so large that training diverges.
"""


class Skipgram(Settings, frozen=True):
    """Settings of skip-gram with negative sampling. The defaults suit small corpora."""

    width: Count = 100
    """Number of dimensions of a vector, D."""
    window: Count = 5
    """Maximum distance between a word and its context words. For each word, the distance is sampled
    from 1 to this value."""
    min_count: Count = 5
    """Minimum number of occurrences of a word. Words that occur less often are removed from the
    text."""
    negatives: Count = 5
    """Number of noise words per context word."""
    subsample: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-3
    """Relative frequency above which occurrences of a word are randomly skipped."""
    epochs: Count = 3
    """Number of passes over the text."""
    learning_rate: Positive = 0.025
    """Initial learning rate, which decreases linearly to 0."""
    seed: Seed = 0
    """Random seed for the initial vectors and all sampling."""
    batch: Count = 512
    """Number of words per step, rounded up to a multiple of 64. Each word has about `window` + 1
    pairs."""


@dataclass(frozen=True, eq=False)
class Text:
    """Text as word ids. Rare words are removed, and the most frequent word has the id 0.

    Shapes:
        counts: (V,), the number of occurrences of each word.
        ids: (N,), the id of each word in the text.
        document: (N,), the number of the document that contains each word in the text.
    """

    words: list[str]
    counts: NDArray[np.int64]
    ids: NDArray[np.int32]
    document: NDArray[np.int32]


def read_text(paths: Sequence[Path], min_count: int) -> Text:
    """Read the text of files, without rare words.

    Args:
        paths: The files.
        min_count: Minimum number of occurrences of a word.

    Raises:
        DataError: If fewer than two words are frequent enough.
    """
    id_of: dict[str, int] = {}
    all_ids, lengths = array("i"), array("q")
    with progress() as bar:
        task = bar.add_task("reading", total=None, note="")
        for part in documents(paths):
            words = tokens(part.text)
            all_ids.extend([id_of.setdefault(word, len(id_of)) for word in words])
            if part.continues:
                lengths[-1] += len(words)
            else:
                lengths.append(len(words))
            bar.update(task, note=f"{len(all_ids):,} words")
    ids = np.frombuffer(all_ids, np.int32) if all_ids else np.empty(0, np.int32)
    counts = np.bincount(ids, minlength=len(id_of))
    # Words with equal counts are in the order of their first occurrence.
    order = np.argsort(-counts, kind="stable")
    order = order[: np.count_nonzero(counts >= min_count)]
    if len(order) < 2:
        raise DataError(
            f"{paths[0]}: only {len(order)} words occur at least {min_count} times; reduce "
            "min_count or add more text"
        )
    new = np.full(len(id_of), -1, np.int32)
    new[order] = np.arange(len(order), dtype=np.int32)
    ids = new[ids]
    document = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    names = list(id_of)
    is_frequent = ids >= 0
    return Text([names[i] for i in order], counts[order], ids[is_frequent], document[is_frequent])


def learn(text: Text, settings: Skipgram) -> NDArray[np.float32]:
    """Train word vectors on a text.

    Args:
        text: The text.
        settings: Training settings.

    Returns:
        The vector of each word.

    Raises:
        TrainingError: If training diverges.

    Shapes:
        returns: (V, D).
    """
    random = np.random.default_rng(settings.seed)
    shape = (len(text.words), settings.width)
    inputs = torch.from_numpy((random.random(shape, np.float32) - 0.5) / settings.width)
    outputs = torch.zeros(shape)
    frequency = text.counts / text.counts.sum()
    keep = np.minimum(1.0, np.sqrt(settings.subsample / frequency)).astype(np.float32)
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
                progress_fraction = (epoch + start / len(words)) / settings.epochs
                rows = order[start : start + size]
                pairs = _pairs(document[rows], settings.window, random)
                noise_ids = np.searchsorted(noise, random.random((len(rows), NOISE_WORDS)))
                _step(
                    inputs,
                    outputs,
                    words[rows].long(),
                    torch.from_numpy(noise_ids),
                    pairs,
                    negatives=settings.negatives,
                    rate=settings.learning_rate * (1.0 - progress_fraction),
                )
                bar.update(task, completed=start + len(rows))
            if not torch.isfinite(inputs).all():
                raise TrainingError(
                    f"training diverged: learning_rate = {settings.learning_rate:g} is too high "
                    f"for batch = {settings.batch}; reduce learning_rate or batch"
                )
    return inputs.numpy()


def _rows(
    text: Text, keep: NDArray[np.float32], window: int, random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Subsample the text, and split it into rows of ROW words.

    Each row also contains the `window` words before it and after it. Positions before the start and
    after the end of the text have the document number -1.

    Shapes:
        Returns words and document numbers, both (rows, window + ROW + window).
    """
    mask = random.random(len(text.ids), np.float32) < keep[text.ids]
    ids, document = text.ids[mask], text.document[mask]
    length = max(-(-len(ids) // WORDS_PER_ROW), 1) * WORDS_PER_ROW + 2 * window
    padding = (window, length - window - len(ids))
    words = torch.from_numpy(np.pad(ids, padding))
    documents = torch.from_numpy(np.pad(document, padding, constant_values=-1))
    return words.unfold(0, WORDS_PER_ROW + 2 * window, WORDS_PER_ROW), documents.unfold(
        0, WORDS_PER_ROW + 2 * window, WORDS_PER_ROW
    )


def _pairs(document: Tensor, window: int, random: np.random.Generator) -> Tensor:
    """Return 1 for each pair of a center word and a word in its window, otherwise 0.

    Both words must be in the same document.

    Shapes:
        document: (R, window + ROW + window).
        returns: (R, ROW, window + ROW + window).
    """
    windows = torch.from_numpy(random.integers(1, window + 1, (len(document), WORDS_PER_ROW, 1)))
    distance = (
        torch.arange(document.shape[1]) - window - torch.arange(WORDS_PER_ROW)[:, None]
    ).abs()
    center = document[:, window:-window, None]
    in_window = (distance > 0) & (distance <= windows)
    return (in_window & (center == document[:, None]) & (center >= 0)).float()


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
    """Update the vectors in place with one step of gradient ascent on equation 4 of the paper.

    Shapes:
        inputs, outputs: (V, D).
        words: (R, C), rows of words with their neighbors.
        noise: (R, NOISE), the noise words of each row.
        pairs: (R, ROW, C).
    """
    window = (words.shape[1] - WORDS_PER_ROW) // 2
    centers = words[:, window:-window].reshape(-1)
    others = torch.cat([words, noise], 1)
    x = inputs[centers].view(len(words), WORDS_PER_ROW, -1)
    y = outputs[others]
    noise_weight = pairs.sum(2, keepdim=True) * (negatives / NOISE_WORDS)
    weight = torch.cat([pairs, noise_weight.expand(-1, -1, NOISE_WORDS)], 2)
    gradient = torch.bmm(x, y.transpose(1, 2)).sigmoid_().neg_()
    gradient[:, :, : words.shape[1]] += 1.0
    gradient *= weight * rate
    _add(inputs, centers, torch.bmm(gradient, y), weight.sum(2))
    _add(outputs, others.view(-1), torch.bmm(gradient.transpose(1, 2), x), weight.sum(1))


def _add(table: Tensor, rows: Tensor, change: Tensor, weight: Tensor) -> None:
    """Add changes to rows of a table, in place.

    The sum of changes to a row is scaled down if it comes from more than `MAX_PAIRS_PER_WORD`
    pairs.
    """
    total = torch.zeros(len(table)).index_add_(0, rows, weight.view(-1))
    change *= (MAX_PAIRS_PER_WORD / total[rows].clamp_(min=MAX_PAIRS_PER_WORD)).view(
        *weight.shape, 1
    )
    table.index_add_(0, rows, change.view(len(rows), -1))
