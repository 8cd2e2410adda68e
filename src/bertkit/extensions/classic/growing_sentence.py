"""Embeddings of a sentence that grows word by word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.batch import Batch
from bertkit.errors import DataError
from bertkit.extensions.classic.charts import CELLS, strip
from bertkit.extensions.classic.seq2seq import RecurrentEncoder
from bertkit.pipelines import BYTES_PER_NUMBER, Embed, Work
from bertkit.text.encoding import Encoding
from bertkit.text.long_texts import Long
from bertkit.view.figures import Cell, Figure, Table

WORDS, OTHERS = 40, 20
"""Maximum number of words in a sentence, and maximum number of other sentences."""


class Growing(msgspec.Struct, frozen=True):
    """Beginnings of a sentence (the first word, the first two words, and so on) with embeddings."""

    texts: list[str]
    vectors: list[list[float]]
    before: list[float]
    """Cosine similarity of each beginning with the previous beginning; 0 for the first."""
    nearest: list[tuple[str, float]]
    """For each beginning, the most similar other sentence and its cosine similarity. The list is
    empty if there are no other sentences."""
    written: list[str]
    """For each beginning, the text that the model generates from it. The list is empty if the model
    does not generate text."""
    attends: bool
    """Whether the decoder also attends to the states of all tokens."""


class GrowingPipeline:
    """Pipeline that embeds all beginnings of a sentence, and compares them with other sentences.

    For an LSTM translation model, the embedding is the final state of the last layer, from which
    the decoder starts (Sutskever et al. 2014, section 2).

    Args:
        embed: Pipeline that computes embeddings, for models that are not LSTM translation models.
        writer: Pipeline of an LSTM translation model, or None for other models.
    """

    policies: tuple[Long, ...] = ("error",)

    def __init__(self, embed: Embed, writer: Any) -> None:
        self.embed, self.writer, self.loaded = embed, writer, embed.loaded

    def prepare(self, items: Sequence[tuple[str, Sequence[str]]], *, long: Long) -> list[Work]:
        """Encode the beginnings of sentences, and the other sentences.

        Raises:
            DataError: If a sentence is too long or empty, or if there are too many other sentences.
        """
        works = []
        for text, others in items:
            words = text.split()
            if not 1 <= len(words) <= WORDS:
                raise DataError(f"text must have 1 to {WORDS} words, got {len(words)}")
            if len(others) > OTHERS:
                raise DataError(f"others must have at most {OTHERS} lines, got {len(others)}")
            texts = [" ".join(words[: end + 1]) for end in range(len(words))]
            lines = [*texts, *others]
            if self.writer is None:
                works_of_lines = self.embed.prepare(lines, long=long)
                tokens = sum(work.tokens for work in works_of_lines)
            else:
                works_of_lines = self.writer.prepare(lines, long=long, num_beams=1)
                tokens = sum(work.tokens for work in works_of_lines[: len(texts)])
            size = BYTES_PER_NUMBER * self.embed.dimension * len(texts)
            works.append(Work([], (texts, list(others), works_of_lines), tokens, size))
        return works

    def run(self, works: Sequence[Work]) -> list[Growing]:
        """Compute the embeddings of each sentence's beginnings."""
        return [self._compute(*work.item) for work in works]

    def _compute(self, texts: list[str], others: list[str], works: Sequence[Work]) -> Growing:
        written: list[str] = []
        if self.writer is None:
            vectors = self.embed.run(works)
        else:
            vectors = last_states(self.writer, works)
            written = [answer.text for answer in self.writer.run(works[: len(texts)])]
        units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        beginnings, other_units = units[: len(texts)], units[len(texts) :]
        scores = beginnings @ other_units.T
        best = scores.argmax(1) if others else []
        decoder = self.loaded.model.decoder
        return Growing(
            texts=texts,
            vectors=vectors[: len(texts)].tolist(),
            before=[0.0, *(beginnings[1:] * beginnings[:-1]).sum(1).tolist()],
            nearest=[(others[i], float(row[i])) for i, row in zip(best, scores, strict=False)],
            written=written,
            attends=bool(self.writer and decoder and decoder.config.attends_to_source),
        )


@torch.inference_mode()
def last_states(writer: Any, works: Sequence[Work]) -> NDArray[np.float32]:
    """Compute the final encoder state of each source, from which the decoder starts.

    Shapes:
        Returns (S, D).
    """
    encoder = writer.engine.model.encoder
    assert isinstance(encoder, RecurrentEncoder)
    sources = [work.item[1].source for work in works]
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    batch = Batch.of([Encoding.of_ids(sources[index]) for index in order])
    states = encoder.final_states(batch.to(writer.engine.device)).float().cpu().numpy()
    return np.asarray(states[np.argsort(order)])


def growing_figure(name: str, result: Growing) -> Figure:
    """Return a figure that shows each embedding as a strip of colors, all on the same scale.

    Args:
        name: Name of the model.
        result: Beginnings of the sentence, with their embeddings.
    """
    limit = max(abs(value) for vector in result.vectors for value in vector)
    columns = ["up to", "vector", "cosine with previous row"]
    columns += ["nearest", "its cosine"] if result.nearest else []
    columns += ["generated"] if result.written else []
    rows: list[list[Cell]] = []
    for number, text in enumerate(result.texts):
        row: list[Cell] = [text.split()[-1], strip(result.vectors[number], limit)]
        row.append(result.before[number] if number else "")
        if result.nearest:
            other, cosine = result.nearest[number]
            row += [other, cosine]
        row += [result.written[number]] if result.written else []
        rows.append(row)
    size = len(result.vectors[0])
    shown = f"{size} dimensions" if size <= CELLS else f"{size} dimensions ({CELLS} are shown)"
    caption = f"{shown} for every sentence length. Blue is positive, orange is negative."
    if result.attends:
        caption += " The decoder also attends to the states of all tokens."
    elif result.written:
        caption += " The decoder generates the text only from this vector."
    return Figure(name, caption, [Table(name, rows, columns, wraps=True)])
