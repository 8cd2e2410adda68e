"""More labelled rows from those there are: words replaced by what a model or vectors put there.

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
from bertkit.checkpoint.formats import FORMATS
from bertkit.config import Count, Seed
from bertkit.errors import ConfigError
from bertkit.pipelines import pipeline
from bertkit.storage import refuse_used, write_text
from bertkit.tasks.classify import Classify, LabelExample
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import Reading
from bertkit.text.tokenizer import Tokenizer

WORD = re.compile(r"[^\W\d_]+")
"""What may be replaced: a run of letters."""

SPACE_MARKERS = "Ġ▁"
"""What pieces spell a space before them with."""

LONGEST_WORD = 100
"""Characters; WordPiece knows no longer one."""

CANDIDATE_FACTOR = 4
"""So many times the candidates are asked of the model, since pieces inside words are none."""

Neighbors = Callable[[str, int], list[str]]
"""Function that returns up to N words with the most similar vectors; none for an unknown word."""

Candidates = Mapping[tuple[int, int], Sequence[str]]
"""For each word of a text, by where it stands, what may be put there."""


def augment(
    data: Path,
    /,
    *,
    model: str | Path,
    out: Path,
    vectors: Path | None = None,
    copies: Count = 10,
    share: float = 0.4,
    candidates: Count = 15,
    seed: Seed = 0,
    device: str = "auto",
    reading: Reading | None = None,
) -> dict[str, int]:
    """Augment labeled texts: replace words by probable words.

    Labelled texts or pairs are written to `out` (.jsonl), each followed by `copies` of it.

    In a copy each word is replaced with probability `share`: one that the model knows whole by
    one of the likeliest `candidates` at its masked place, another by one of its nearest by
    `vectors`, or not at all. Labels stay, so that a student learns from its teacher near the texts
    it was given. Draws depend on (seed, row, copy) alone.
    Raises: ConfigError when `out` is in use or no .jsonl, CheckpointError without a masked-LM head.

    Args:
        data: Labelled texts or pairs.
        model: A model with a masked-LM head, which says what could stand in a place.
        out: The .jsonl file to be made.
        vectors: Word vectors, for words that the model has in pieces.
        copies: Copies of each row, beside itself.
        share: How likely a word is replaced in a copy.
        candidates: How many of the likeliest words one is drawn from.
        seed: Random seed of the copies.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    refuse_used(out)
    if out.suffix != ".jsonl":
        raise ConfigError(f"{out}: rows are written as JSON; name a .jsonl file")
    if copies < 1 or candidates < 1 or not 0.0 < share <= 1.0:
        raise ConfigError(
            f"copies = {copies}, candidates = {candidates}, share = {share}: one copy and one "
            "candidate at least, and a share above 0 and up to 1"
        )
    guesser = Guesser(model, candidates, device)
    neighbors = None if vectors is None else FORMATS["word-vectors"](vectors).load_neighbors()
    rows: Sequence[LabelExample] = read_examples(Classify, data, reading)
    lines, changed = [], 0
    for number, row in enumerate(rows):
        parts = [row.text, *([] if row.pair is None else [row.pair])]
        known = [_candidates(part, guesser, neighbors, candidates) for part in parts]
        for copy in range(copies + 1):
            rng = np.random.default_rng((seed, number, copy))
            texts = [
                replaced(part, words, share if copy else 0.0, rng)
                for part, words in zip(parts, known, strict=True)
            ]
            changed += texts != parts
            names = ("text", "pair")[: len(texts)]
            lines.append(json.dumps({**dict(zip(names, texts, strict=True)), "label": row.label}))
    write_text(out, "".join(f"{line}\n" for line in lines))
    return {"rows": len(rows), "written": len(lines), "changed": changed}


def replaced(text: str, candidates: Candidates, share: float, rng: np.random.Generator) -> str:
    """The text with each word that has candidates replaced with probability `share`."""
    pieces, end = [], 0
    for start, stop in sorted(candidates):
        if rng.random() < share:
            words = candidates[start, stop]
            pieces += [text[end:start], words[int(rng.integers(len(words)))]]
            end = stop
    return "".join([*pieces, text[end:]])


def _candidates(text: str, guesser: Guesser, neighbors: Neighbors | None, count: int) -> Candidates:
    """Return the replacements of each word of a text: from the model, or its nearest words."""
    places = [(match.start(), match.end()) for match in WORD.finditer(text)]
    known = [place for place in places if guesser.knows(text[slice(*place)])]
    candidates = dict(zip(known, guesser(text, known), strict=True))
    if neighbors is not None:
        for place in places:
            if place not in candidates:
                candidates[place] = neighbors(text[slice(*place)].lower(), count)
    return {place: words for place, words in candidates.items() if words}


class Guesser:
    """A model that says which words could stand at places of a text."""

    def __init__(self, model: str | Path, count: int, device: str = "auto") -> None:
        fill_mask = pipeline("fill-mask", model, device=device)
        self.engine, self.head, self.count = fill_mask.engine, fill_mask.head, count
        self.tokenizer: Tokenizer = fill_mask.tokenizer
        self.length = fill_mask.loaded.length
        pieces = self.tokenizer.pieces(range(self.tokenizer.vocab_size))
        starts = self.tokenizer.starts_word
        self.words = [
            piece.lstrip(SPACE_MARKERS)
            if starts[i] and WORD.fullmatch(piece.lstrip(SPACE_MARKERS))
            else ""
            for i, piece in enumerate(pieces)
        ]

    def knows(self, word: str) -> bool:
        """Whether it is one piece."""
        ids = self.tokenizer.ids([f" {word}"])[0]  # as it stands within a text
        return len(ids) == 1 and bool(self.words[ids[0]])

    def __call__(self, text: str, places: Sequence[tuple[int, int]]) -> list[list[str]]:
        """For each place the likeliest words but the one that stands there, best first."""
        (mask,) = self.tokenizer.pieces([self.tokenizer.mask])
        encoding = self.tokenizer.encode(text, max_length=self.length, truncate="longest")
        # the model reads no further, but for the rest of a word
        seen = int(encoding.offsets[:, 1].max(initial=0)) + LONGEST_WORD
        near = [i for i, (_, end) in enumerate(places) if end <= seen]
        masked = [text[: places[i][0]] + mask + text[places[i][1] : seen] for i in near]
        likeliest: list[list[str]] = [[] for _ in places]
        encodings = self.tokenizer.encode_batch(masked, max_length=self.length, truncate="longest")
        kept = [
            (i, encoding)
            for i, encoding in zip(near, encodings, strict=True)
            if (encoding.ids == self.tokenizer.mask).sum() == 1
        ]
        guessed = self.engine.rows([encoding for _, encoding in kept], self._best)
        for (i, _), ids in zip(kept, guessed.astype(np.int64), strict=True):
            original = text[slice(*places[i])].lower()
            words = [word for word in (self.words[piece] for piece in ids) if word]
            likeliest[i] = [word for word in words if word.lower() != original][: self.count]
        return likeliest

    def _best(self, states: Tensor, batch: Batch) -> Tensor:
        """The likeliest pieces at the one mask of each sequence. Shapes: (S, MORE · count)."""
        places = (batch.ids == self.tokenizer.mask).nonzero().squeeze(1)
        logits = self.head(states, replace(batch, token_indices=places))[
            :, : self.tokenizer.vocab_size
        ]
        best: Tensor = logits.topk(
            min(CANDIDATE_FACTOR * self.count, self.tokenizer.vocab_size)
        ).indices
        return best
