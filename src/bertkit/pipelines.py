"""From texts to answers in one call: `pipeline("embed", model)(texts)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, overload

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.checkpoint.folder import Loaded, Pooling, load
from bertkit.engine.engine import Engine, Read, first, mean, pack
from bertkit.errors import CheckpointError, ConfigError, DataError, did_you_mean
from bertkit.nn.precision import Precision
from bertkit.text.tokenizer import NO_LIMIT, Encoding

Long = Literal["error", "truncate", "window"]
"""What to do with a text longer than the model: refuse it; cut it and say so; or read it in
overlapping windows and average."""

PART = 4096
"""Texts tokenized at a time, so that a long stream needs little memory."""


class LabelAnswer(msgspec.Struct, frozen=True):
    """The likeliest label of a text (or the number of a regression), and all of them."""

    label: str
    score: float
    scores: dict[str, float]
    truncated: bool = False


class Filler(msgspec.Struct, frozen=True):
    """A piece that may stand at a masked place, and its probability."""

    piece: str
    probability: float


class MaskAnswer(msgspec.Struct, frozen=True):
    """The likeliest pieces for one [MASK]; `place` counts the masks of the text from 0."""

    place: int
    fillers: list[Filler]


class NextAnswer(msgspec.Struct, frozen=True):
    """How likely B follows A."""

    next: float
    truncated: bool = False


class _Pipeline:
    def __init__(self, loaded: Loaded, precision: Precision) -> None:
        self.loaded, self.tokenizer = loaded, loaded.tokenizer
        self.engine = Engine(loaded.model, precision=precision)

    def _needs(self, head: str, hint: str) -> Any:
        if head not in self.loaded.model.heads:
            held = ", ".join(self.loaded.model.heads) or "none"
            raise CheckpointError(
                f"{self.loaded.folder}: has no {head} head (heads: {held}); {hint}"
            )
        return self.engine.model.heads[head]

    def _encode(
        self, texts: Sequence[str], pairs: Sequence[str] | None, long: Long
    ) -> tuple[list[Encoding], NDArray[np.int64]]:
        """Encodings, and which text each belongs to: windows of one text follow each other."""
        length = self.loaded.length
        if pairs is not None and len(pairs) != len(texts):
            raise DataError(f"{len(texts)} texts and {len(pairs)} second texts; give one for each")
        if pairs is not None and self.loaded.model.config.types < 2:
            raise DataError(f"{self.loaded.folder}: reads single texts only (it has one segment)")
        if long == "window":
            found, owner = [], []
            for place, text in enumerate(texts):
                pair = None if pairs is None else pairs[place]
                windows = self.tokenizer.windows(
                    text, pair, max_length=length, overlap=length // 4, slide=_slide(pair)
                )
                found += windows
                owner += [place] * len(windows)
            return found, np.array(owner, dtype=np.int64)
        limit = length if long == "truncate" else NO_LIMIT
        encodings = self.tokenizer.encode_batch(texts, pairs, max_length=limit, truncate="longest")
        for text, encoding in zip(texts, encodings, strict=True):
            if len(encoding) > length:
                raise DataError(
                    f"{text[:40]!r}…: {len(encoding)} tokens, and the model reads {length}; "
                    "shorten it, cut it (long = truncate) or read it in parts (long = window)"
                )
        return encodings, np.arange(len(texts))

    def _rows(
        self, texts: Sequence[str], pairs: Sequence[str] | None, long: Long, read: Read
    ) -> tuple[NDArray[np.float32], list[bool]]:
        """`read` of every text, windows averaged by their length, and which were cut."""
        rows, cut = [], []
        for start in range(0, len(texts), PART):
            part = texts[start : start + PART]
            other = None if pairs is None else pairs[start : start + PART]
            encodings, owner = self._encode(part, other, long)
            found = self.engine.run(encodings, read)
            if long == "window":
                sizes = np.array([len(e) for e in encodings], dtype=np.float32)
                sums = np.zeros((len(part), found.shape[1]), dtype=np.float32)
                np.add.at(sums, owner, found * sizes[:, None])
                weights = np.bincount(owner, sizes, len(part))[:, None]
                found = (sums / weights).astype(np.float32)
                cut += [False] * len(part)
            else:
                cut += [e.truncated for e in encodings]
            rows.append(found)
        return np.concatenate(rows), cut


def _slide(pair: str | None) -> Literal["first", "second"]:
    return "first" if pair is None else "second"


class Embed(_Pipeline):
    """Texts -> float32 vectors (S, D)."""

    def __init__(
        self, loaded: Loaded, precision: Precision = "fp32", pooling: str | None = None
    ) -> None:
        super().__init__(loaded, precision)
        held = loaded.pooling or Pooling()
        if pooling not in (None, "mean", "cls"):
            raise ConfigError(f"pooling: {pooling!r}; known: mean, cls")
        self.pooling = held if pooling is None else Pooling(pooling, held.normalize)  # type: ignore[arg-type]

    def __call__(self, texts: str | Sequence[str], *, long: Long = "error") -> NDArray[np.float32]:
        """A vector for each text, normalized if the folder says so; one text gives one row.

        Raises: DataError for a text longer than the model, unless `long` says what to do.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            return np.empty((0, self.loaded.model.config.hidden), dtype=np.float32)
        vectors, _ = self._rows(texts, None, long, mean if self.pooling.mode == "mean" else first)
        if self.pooling.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors


class Classify(_Pipeline):
    """Texts or pairs -> a label each, or a number for a regression."""

    def __init__(self, loaded: Loaded, precision: Precision = "fp32") -> None:
        super().__init__(loaded, precision)
        self.head = self._needs("classify", "fine-tune one with `bertkit finetune classify`")

    def outputs(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, long: Long = "error"
    ) -> tuple[NDArray[np.float32], list[bool]]:
        """The head's raw outputs (S, L), and which texts were cut."""
        return self._rows(texts, pairs, long, lambda s, b: self.head(s, b).float())

    def __call__(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, long: Long = "error"
    ) -> list[LabelAnswer]:
        """An answer for each text, in order."""
        if not texts:
            return []
        outputs, cut = self.outputs(texts, pairs, long=long)
        labels = self.loaded.labels
        if len(labels) == 1:
            return [
                LabelAnswer(labels[0], float(row[0]), {labels[0]: float(row[0])}, short)
                for row, short in zip(outputs, cut, strict=True)
            ]
        chances = torch.softmax(torch.from_numpy(outputs), -1).tolist()
        return [
            LabelAnswer(
                labels[int(np.argmax(row))],
                max(row),
                dict(zip(labels, row, strict=True)),
                short,
            )
            for row, short in zip(chances, cut, strict=True)
        ]


class FillMask(_Pipeline):
    """Texts with [MASK] -> the likeliest pieces for each."""

    def __init__(self, loaded: Loaded, precision: Precision = "fp32") -> None:
        super().__init__(loaded, precision)
        self.head = self._needs("mlm", "take a pretrained model")

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str], *, top: int = 10) -> list[list[MaskAnswer]]:
        """For each text its masks in order. Raises: DataError when a text has none."""
        if top < 1:
            raise ConfigError(f"top: {top} pieces; ask for one at least")
        answers = []
        for text in texts:
            encoding = self.tokenizer.encode(text, max_length=self.loaded.length)
            places = np.flatnonzero(encoding.ids == self.tokenizer.mask)
            if not len(places):
                mask = self.tokenizer.pieces([self.tokenizer.mask])[0]
                raise DataError(f"{text[:60]!r}: nothing is masked; write {mask} for a word")
            batch = replace(pack([encoding]), masked=torch.from_numpy(places)).to(
                self.engine.device
            )
            logits = self.head(self.engine.model.encoder(batch), batch).float()
            logits = logits[:, : self.tokenizer.vocab_size]  # a padded vocabulary has more rows
            best = torch.softmax(logits, -1).topk(min(top, self.tokenizer.vocab_size))
            answers.append(
                [
                    MaskAnswer(
                        place,
                        [
                            Filler(piece, chance)
                            for piece, chance in zip(
                                self.tokenizer.pieces(ids), chances, strict=True
                            )
                        ],
                    )
                    for place, (ids, chances) in enumerate(
                        zip(best.indices.tolist(), best.values.tolist(), strict=True)
                    )
                ]
            )
        return answers


class NextSentence(_Pipeline):
    """Pairs of sentences -> how likely the second follows the first."""

    def __init__(self, loaded: Loaded, precision: Precision = "fp32") -> None:
        super().__init__(loaded, precision)
        self.head = self._needs("nsp", "take a model pretrained with sampling.pairs = nsp")

    def __call__(
        self, a: Sequence[str], b: Sequence[str], *, long: Long = "error"
    ) -> list[NextAnswer]:
        if not a:
            return []
        outputs, cut = self._rows(a, b, long, lambda s, x: self.head(s, x).float())
        chances = torch.softmax(torch.from_numpy(outputs), -1)[:, 0].tolist()
        return [NextAnswer(chance, short) for chance, short in zip(chances, cut, strict=True)]


TASKS: Mapping[str, type[Embed | Classify | FillMask | NextSentence]] = {
    "embed": Embed,
    "classify": Classify,
    "fill-mask": FillMask,
    "next-sentence": NextSentence,
}


@overload
def pipeline(
    task: Literal["embed"],
    model: str | Path | Loaded,
    *,
    precision: Precision = ...,
    pooling: str | None = ...,
    revision: str | None = ...,
) -> Embed: ...
@overload
def pipeline(
    task: Literal["classify"],
    model: str | Path | Loaded,
    *,
    precision: Precision = ...,
    revision: str | None = ...,
) -> Classify: ...
@overload
def pipeline(
    task: Literal["fill-mask"],
    model: str | Path | Loaded,
    *,
    precision: Precision = ...,
    revision: str | None = ...,
) -> FillMask: ...
@overload
def pipeline(
    task: Literal["next-sentence"],
    model: str | Path | Loaded,
    *,
    precision: Precision = ...,
    revision: str | None = ...,
) -> NextSentence: ...
def pipeline(
    task: str,
    model: str | Path | Loaded,
    *,
    precision: Precision = "fp32",
    pooling: str | None = None,
    revision: str | None = None,
) -> Embed | Classify | FillMask | NextSentence:
    """A model made ready for one task; call it with texts.

    `model` is a folder, a hub id or an opened folder. `precision` bf16 (or auto) is faster where
    the machine has the instructions; `pooling` (mean or cls) is for embed alone.
    Raises: CheckpointError when the folder lacks the task's head.
    """
    if task not in TASKS:
        raise ConfigError(f"no pipeline is named {task!r}; {did_you_mean(task, TASKS)}")
    if pooling is not None and task != "embed":
        raise ConfigError(f"pooling: {task} has none; leave it out")
    loaded = model if isinstance(model, Loaded) else load(model, revision=revision)
    if task == "embed":
        return Embed(loaded, precision, pooling)
    return TASKS[task](loaded, precision)
