"""Data augmentation that replaces words with predictions of a model or with similar words.

Source: Jiao et al. 2020 (TinyBERT), section 3.2 and appendix, algorithm 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from bertkit.batch import Batch
from bertkit.config import Count, Seed
from bertkit.errors import ConfigError
from bertkit.extensions.classic.word_vectors import Vectors
from bertkit.pipelines import pipeline
from bertkit.storage import check_unused, write_text
from bertkit.tasks.classify import Classify
from bertkit.tasks.examples import read_examples
from bertkit.tasks.labeled_text import LabelExample
from bertkit.tasks.task import Reading
from bertkit.text.tokenizer import Tokenizer

WORD = re.compile(r"[^\W\d_]+")
"""Matches words that can be replaced. A word consists of consecutive letters."""

SPACE_MARKERS = "Ġ▁"
"""Characters with which a tokenizer marks that a space precedes a token."""

LONGEST_WORD = 100
"""Maximum number of characters of a word; WordPiece does not split longer words."""

CANDIDATE_FACTOR = 4
"""Number of tokens to predict per candidate, because tokens that are not words are dropped."""

Neighbors = Callable[[str, int], list[str]]
"""Function of a word and a number N. It returns up to N words whose vectors are most similar, or an
empty list if the word has no vector."""

Candidates = Mapping[tuple[int, int], Sequence[str]]
"""Candidates that can replace each word of a text. A key is the start and end of the word in
characters."""


def augment(
    data: Path,
    /,
    *,
    model: str | Path,
    out: Path,
    vectors: Path | None = None,
    copies: Count = 10,
    probability: float = 0.4,
    candidates: Count = 15,
    seed: Seed = 0,
    device: str = "auto",
    reading: Reading | None = None,
) -> dict[str, int]:
    """Augment labeled texts with copies in which some words are replaced.

    Each text or pair is written to `out`, followed by its copies, which have the same label. Each
    word of a copy is replaced with the given `probability`. If the word is a single token, it is
    masked, and one of the tokens that the model predicts replaces it. Any other word is replaced by
    a word that has a similar vector, or stays unchanged if `vectors` is not set. A copy depends
    only on the seed, the row, and the number of the copy.

    Args:
        data: File of labeled texts or text pairs.
        model: Directory or hub id of a model with an MLM head.
        out: Path of the .jsonl file to write. Must not exist.
        vectors: File of word vectors, used for words that the tokenizer splits.
        copies: Number of copies of each example, in addition to the original.
        probability: Probability that a word is replaced in a copy.
        candidates: Number of best candidates for each word. The replacement is sampled from them.
        seed: Random seed for selecting and replacing words.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
        reading: Columns and format of the examples.

    Returns:
        `rows` (number of examples read), `written` (number of examples written), and `changed`
        (number of copies that differ from their original).

    Raises:
        ConfigError: If `out` exists or is not a .jsonl file, or a value is out of range.
        CheckpointError: If the model does not have an MLM head.
    """
    check_unused(out)
    if out.suffix != ".jsonl":
        raise ConfigError(f"--out must be a .jsonl file, got {out}")
    if copies < 1 or candidates < 1 or not 0.0 < probability <= 1.0:
        raise ConfigError(
            "copies and candidates must be at least 1, and probability in (0, 1]; got copies = "
            f"{copies}, candidates = {candidates}, probability = {probability}"
        )
    guesser = Guesser(model, candidates, device)
    neighbors = None if vectors is None else _load_neighbors(vectors)
    rows: Sequence[LabelExample] = read_examples(Classify, data, reading)
    lines, changed = [], 0
    for number, row in enumerate(rows):
        parts = [row.text, *([] if row.pair is None else [row.pair])]
        replacements = [_candidates(part, guesser, neighbors, candidates) for part in parts]
        for copy in range(copies + 1):
            rng = np.random.default_rng((seed, number, copy))
            texts = [
                replace_words(part, words, probability if copy else 0.0, rng)
                for part, words in zip(parts, replacements, strict=True)
            ]
            changed += texts != parts
            names = ("text", "pair")[: len(texts)]
            lines.append(json.dumps({**dict(zip(names, texts, strict=True)), "label": row.label}))
    write_text(out, "".join(f"{line}\n" for line in lines))
    return {"rows": len(rows), "written": len(lines), "changed": changed}


def replace_words(text: str, candidates: Candidates, rate: float, rng: np.random.Generator) -> str:
    """Replace, with probability `rate`, each word that has candidates by one of them."""
    parts, end = [], 0
    for start, stop in sorted(candidates):
        if rng.random() < rate:
            words = candidates[start, stop]
            parts += [text[end:start], words[int(rng.integers(len(words)))]]
            end = stop
    return "".join([*parts, text[end:]])


def _load_neighbors(vectors: Path) -> Neighbors:
    """Return a function that finds the words with the most similar vectors in a file."""
    near = Vectors.load(vectors)
    return lambda word, count: [w for w, _ in near.nearest(word, count)] if word in near else []


def _candidates(text: str, guesser: Guesser, neighbors: Neighbors | None, count: int) -> Candidates:
    """Return candidates for each word of a text, found by the model or by the word vectors."""
    spans = [(match.start(), match.end()) for match in WORD.finditer(text)]
    tokens = [span for span in spans if guesser.is_token(text[slice(*span)])]
    candidates = dict(zip(tokens, guesser(text, tokens), strict=True))
    if neighbors is not None:
        for span in spans:
            if span not in candidates:
                candidates[span] = neighbors(text[slice(*span)].lower(), count)
    return {span: words for span, words in candidates.items() if words}


class Guesser:
    """Model with an MLM head that predicts which words can replace a word of a text.

    Args:
        model: Model directory or hub id.
        count: Maximum number of words per position.
        device: The device.
    """

    def __init__(self, model: str | Path, count: int, device: str = "auto") -> None:
        fill_mask = pipeline("fill-mask", model, device=device)
        self.engine, self.head, self.count = fill_mask.engine, fill_mask.head, count
        self.tokenizer: Tokenizer = fill_mask.tokenizer
        self.length = fill_mask.loaded.length
        tokens = self.tokenizer.pieces(range(self.tokenizer.vocab_size))
        starts = self.tokenizer.starts_word
        self.words = [
            token.lstrip(SPACE_MARKERS)
            if starts[i] and WORD.fullmatch(token.lstrip(SPACE_MARKERS))
            else ""
            for i, token in enumerate(tokens)
        ]

    def is_token(self, word: str) -> bool:
        """Return whether the tokenizer represents a word as a single token."""
        ids = self.tokenizer.ids([f" {word}"])[0]  # In the middle of a text, a space precedes it.
        return len(ids) == 1 and bool(self.words[ids[0]])

    def __call__(self, text: str, spans: Sequence[tuple[int, int]]) -> list[list[str]]:
        """Mask each word separately, and predict words that can replace it.

        Args:
            text: The text.
            spans: Start and end of each word, in characters.

        Returns:
            The most probable words for each span, best first, without the original word. The list
            of a span is empty if the span is beyond the maximum length of the model.
        """
        (mask,) = self.tokenizer.pieces([self.tokenizer.mask])
        encoding = self.tokenizer.encode(text, max_length=self.length, truncate="longest")
        # The model reads only text before the last offset. The text is not cut exactly there,
        # because the first part of a word may have other tokens than the whole word.
        limit = int(encoding.offsets[:, 1].max(initial=0)) + LONGEST_WORD
        inside = [i for i, (_, end) in enumerate(spans) if end <= limit]
        masked = [text[: spans[i][0]] + mask + text[spans[i][1] : limit] for i in inside]
        predictions: list[list[str]] = [[] for _ in spans]
        encodings = self.tokenizer.encode_batch(masked, max_length=self.length, truncate="longest")
        with_mask = [
            (i, encoding)
            for i, encoding in zip(inside, encodings, strict=True)
            if (encoding.ids == self.tokenizer.mask).sum() == 1
        ]
        best = self.engine.rows([encoding for _, encoding in with_mask], self._best)
        for (i, _), ids in zip(with_mask, best.astype(np.int64), strict=True):
            original = text[slice(*spans[i])].lower()
            words = [word for word in (self.words[token] for token in ids) if word]
            predictions[i] = [word for word in words if word.lower() != original][: self.count]
        return predictions

    def _best(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the ids of the most probable tokens at the mask of each sequence.

        Shapes:
            states: (T, D); returns (S, CANDIDATE_FACTOR · count).
        """
        positions = (batch.ids == self.tokenizer.mask).nonzero().squeeze(1)
        logits = self.head(states, replace(batch, token_indices=positions))[
            :, : self.tokenizer.vocab_size
        ]
        best: Tensor = logits.topk(
            min(CANDIDATE_FACTOR * self.count, self.tokenizer.vocab_size)
        ).indices
        return best
