"""A sentence word by word, and the one vector that a model has for it each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.batch import Batch
from bertkit.errors import DataError
from bertkit.extensions.classic.seq2seq import RecurrentEncoder
from bertkit.pipelines import BYTES_PER_NUMBER, Embed, Work
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.view.chart import CELLS, strip
from bertkit.view.figures import Cell, Figure, Table

WORDS, OTHERS = 40, 20
"""Of a sentence, and lines beside it, at most."""


class Growing(msgspec.Struct, frozen=True):
    """The beginnings of a sentence, each with its vector."""

    texts: list[str]
    vectors: list[list[float]]
    before: list[float]
    """The cosine of each with the one before it; 0 for the first."""
    nearest: list[tuple[str, float]]
    """The nearest of other sentences, and its cosine; empty without any."""
    written: list[str]
    """What is written from each alone; empty for a model that writes nothing."""
    attends: bool
    """Whether what is written looks at the states of all tokens, too."""


class GrowingPipeline:
    """Compute the embeddings of all beginnings of sentences, each with other lines.

    The embedding of an LSTM translator is the state of the last layer after the last token, from
    which the decoder starts (Sutskever et al. 2014, section 2).

    Args:
        embed: Pipeline of the embeddings of other models.
        writer: Pipeline of an LSTM translator, or None.
    """

    policies: tuple[Long, ...] = ("error",)

    def __init__(self, embed: Embed, writer: Any) -> None:
        self.embed, self.writer, self.loaded = embed, writer, embed.loaded

    def prepare(self, items: Sequence[tuple[str, Sequence[str]]], *, long: Long) -> list[Work]:
        """Raises: DataError for a sentence or line that is long or empty, or too many lines."""
        works = []
        for text, others in items:
            words = text.split()
            if not 1 <= len(words) <= WORDS:
                raise DataError(f"text: {len(words)} words; a page shows 1 to {WORDS}")
            if len(others) > OTHERS:
                raise DataError(f"others: {len(others)} lines; a page compares {OTHERS} at most")
            texts = [" ".join(words[: end + 1]) for end in range(len(words))]
            every = [*texts, *others]
            if self.writer is None:
                read = self.embed.prepare(every, long=long)
                tokens = sum(work.tokens for work in read)
            else:
                read = self.writer.prepare(every, long=long, beams=1)
                tokens = sum(work.tokens for work in read[: len(texts)])
            size = BYTES_PER_NUMBER * self.embed.dimension * len(texts)
            works.append(Work([], (texts, list(others), read), tokens, size))
        return works

    def run(self, works: Sequence[Work]) -> list[Growing]:
        """The vectors of each sentence's beginnings."""
        return [self._grown(*work.item) for work in works]

    def _grown(self, texts: list[str], others: list[str], read: Sequence[Work]) -> Growing:
        written: list[str] = []
        if self.writer is None:
            vectors = self.embed.run(read)
        else:
            vectors = last_states(self.writer, read)
            written = [one.text for one in self.writer.run(read[: len(texts)])]
        units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        own, rest = units[: len(texts)], units[len(texts) :]
        likeness = own @ rest.T
        best = likeness.argmax(1) if others else []
        decoder = self.loaded.model.decoder
        return Growing(
            texts=texts,
            vectors=vectors[: len(texts)].tolist(),
            before=[0.0, *(own[1:] * own[:-1]).sum(1).tolist()],
            nearest=[(others[at], float(row[at])) for at, row in zip(best, likeness, strict=False)],
            written=written,
            attends=bool(self.writer and decoder and decoder.config.attends_to_source),
        )


@torch.inference_mode()
def last_states(writer: Any, works: Sequence[Work]) -> NDArray[np.float32]:
    """Return the final state of each source, from which the decoder starts. Shapes: (S, D)."""
    encoder = writer.engine.model.encoder
    assert isinstance(encoder, RecurrentEncoder)
    sources = [work.item[1].source for work in works]
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    batch = Batch.of([Encoding.of_ids(sources[place]) for place in order])
    states = encoder.final_states(batch.to(writer.engine.device)).float().cpu().numpy()
    return np.asarray(states[np.argsort(order)])


def growing_figure(name: str, grown: Growing) -> Figure:
    """A strip of colors for each beginning, which its last word names, in one scale."""
    reach = max(abs(value) for vector in grown.vectors for value in vector)
    columns = ["up to", "vector", "cosine with the one before"]
    columns += ["nearest", "its cosine"] if grown.nearest else []
    columns += ["written"] if grown.written else []
    rows: list[list[Cell]] = []
    for number, text in enumerate(grown.texts):
        row: list[Cell] = [text.split()[-1], strip(grown.vectors[number], reach)]
        row.append(grown.before[number] if number else "")
        if grown.nearest:
            other, cosine = grown.nearest[number]
            row += [other, cosine]
        row += [grown.written[number]] if grown.written else []
        rows.append(row)
    size = len(grown.vectors[0])
    shown = f"{size} numbers" if size <= CELLS else f"{size} numbers, of which {CELLS} are shown,"
    says = f"{shown} however long the sentence: blue above zero, orange below."
    if grown.attends:
        says += " The decoder looks at the states of all tokens besides."
    elif grown.written:
        says += " All that is written is written from them."
    return Figure(name, says, [Table(name, rows, columns, wraps=True)])
