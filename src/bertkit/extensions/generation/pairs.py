"""Pairs of texts on disk, what is read and what is to be written, as token ids.

A folder of these, little-endian, and a copy of the tokenizer in `tokenizer/`:

- `source.tokens`, `target.tokens`: ids end to end; uint16 where the vocabulary allows, else uint32
- `source.lengths`, `target.lengths`: uint32, tokens of each text; never 0
- `manifest.json`: what made it, and sizes and hashes of every file; written last
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from bertkit import storage
from bertkit.batch import Batch
from bertkit.data.corpus import PreparedText, check_ids, check_total, read_manifest
from bertkit.data.shuffling import Purpose, Shuffled, generator
from bertkit.errors import DataError
from bertkit.text.tokenizer import Tokenizer

FORMAT = 1
Ids = NDArray[np.int64]
SIDES = ("source", "target")
LENGTHS = np.dtype("<u4")
REMEDY = "make some with `bertkit prepare pairs`"


class PairManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything known about a folder of pairs. `tokenizer` is the fingerprint of the one that
    made it; `sha256` has the hash of each file.
    """

    kind: Literal["pairs"] = "pairs"
    format: int
    tokenizer: str
    vocab_size: int
    dtype: Literal["uint16", "uint32"]
    pairs: int
    source_tokens: int
    target_tokens: int
    sources: list[str]
    sha256: dict[str, str]


@dataclass(frozen=True)
class Pairs(PreparedText):
    """A prepared directory of pairs, numbered from 0."""

    manifest: PairManifest

    @staticmethod
    def open(folder: str | Path) -> Pairs:
        """Raises: DataError if anything is missing or of another size than the manifest says."""
        folder = Path(folder)
        path = folder / "manifest.json"
        if not path.is_file():
            raise DataError(f"{folder}: no pairs here (no manifest.json); {REMEDY}")
        manifest: PairManifest = read_manifest(path, PairManifest, FORMAT, REMEDY)
        pairs = Pairs(folder, manifest)
        width = np.dtype(manifest.dtype).itemsize
        for side in SIDES:
            tokens = getattr(manifest, f"{side}_tokens")
            for name, size in (("tokens", tokens * width), ("lengths", manifest.pairs * 4)):
                file = folder / f"{side}.{name}"
                if not file.is_file() or file.stat().st_size != size:
                    raise DataError(f"{file}: missing or cut short; prepare the pairs again")
        return pairs

    @property
    def tokens(self) -> int:
        """Number of tokens of both sides."""
        return self.manifest.source_tokens + self.manifest.target_tokens

    @cached_property
    def starts(self) -> dict[str, NDArray[np.int64]]:
        """(pairs + 1,) for each side: the first token of each text, and the end of the last."""
        starts = {}
        for side in SIDES:
            path = self.folder / f"{side}.lengths"
            lengths = np.fromfile(path, LENGTHS)
            check_total(lengths, getattr(self.manifest, f"{side}_tokens"), path)
            starts[side] = np.cumsum([0, *lengths])
        return starts

    def text(self, side: str, number: int) -> Ids:
        """Return the tokens of one text, without an end token.

        Raises:
            DataError: If a token is not in the vocabulary.
        """
        first, last = self.starts[side][number : number + 2]
        tokens = self._tokens[side][first:last].astype(np.int64)
        check_ids(tokens, self.manifest.vocab_size, self.folder, f"{side}.tokens")
        return tokens

    @cached_property
    def _tokens(self) -> dict[str, NDArray[Any]]:
        dtype = np.dtype(self.manifest.dtype).newbyteorder("<")
        return {side: np.memmap(self.folder / f"{side}.tokens", dtype, "r") for side in SIDES}


def write_pairs(
    folder: Path,
    tokenizer: Tokenizer,
    texts: dict[str, list[NDArray[np.int64]]],
    *,
    sources: Sequence[Path],
) -> Pairs:
    """Write the ids of both sides as a folder, whole or not at all."""
    dtype: Literal["uint16", "uint32"] = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    with storage.new_folder(folder) as place:
        tokenizer.save(place / "tokenizer")
        for side in SIDES:
            ids = np.concatenate(texts[side]).astype(np.dtype(dtype).newbyteorder("<"))
            lengths = np.array([len(text) for text in texts[side]], LENGTHS)
            (place / f"{side}.tokens").write_bytes(ids.tobytes())
            (place / f"{side}.lengths").write_bytes(lengths.tobytes())
        names = [f"{side}.{part}" for side in SIDES for part in ("tokens", "lengths")]
        manifest = PairManifest(
            format=FORMAT,
            tokenizer=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            dtype=dtype,
            pairs=len(texts["source"]),
            source_tokens=sum(map(len, texts["source"])),
            target_tokens=sum(map(len, texts["target"])),
            sources=[path.name for path in sources],
            sha256={name: storage.sha256(place / name) for name in names},
        )
        storage.write_text(place / "manifest.json", msgspec.json.encode(manifest).decode())
    return Pairs.open(folder)


@dataclass(frozen=True)
class Pair:
    """What an encoder reads and a decoder is to write. Shapes: source (T',); ids (T,), what the
    decoder reads, and labels (T,), what follows each.
    """

    source: Ids
    ids: Ids
    labels: Ids

    def __len__(self) -> int:
        """Tokens of both sides."""
        return len(self.source) + len(self.ids)


@dataclass(frozen=True)
class _Side:
    ids: Ids

    @property
    def types(self) -> Ids:
        return np.zeros_like(self.ids)


class PairSamples(Shuffled[Pair]):
    """Some pairs, each with the end token behind both texts and `start` before the target."""

    def __init__(
        self,
        pairs: Pairs,
        tokenizer: Tokenizer,
        *,
        start: int,
        length: int,
        documents: Ids | None = None,
        seed: int = 0,
    ) -> None:
        self.pairs, self.start, self.end, self.seed = pairs, start, tokenizer.eos, seed
        numbers = np.arange(pairs.manifest.pairs) if documents is None else documents
        longest = np.max([np.diff(pairs.starts[side])[numbers] for side in SIDES], axis=0) + 1
        self.numbers = numbers[longest <= length]
        self.left_out = int((longest > length).sum())
        if not len(self.numbers):
            raise DataError(f"{pairs.folder}: no pair of at most {length} tokens a side")

    def __len__(self) -> int:
        return len(self.numbers)

    def sample(self, epoch: int, index: int) -> Pair:
        """One pair, the same in every epoch."""
        number = int(self.numbers[index])
        source, target = (self.pairs.text(side, number) for side in SIDES)
        return Pair(
            np.append(source, self.end),
            np.concatenate([[self.start], target]).astype(np.int64),
            np.append(target, self.end),
        )


def split_pairs(pairs: Pairs, share: float) -> tuple[Ids, Ids]:
    """Pairs to learn from, and that share of them held out: the same for every seed of a run."""
    order = generator(0, 0, 0, Purpose.SPLIT).permutation(pairs.manifest.pairs)
    kept = int(share * pairs.manifest.pairs)
    return np.sort(order[kept:]), np.sort(order[:kept])


def pack_pairs(pairs: Sequence[Pair]) -> Batch:
    """Pack both sides of pairs, each with the shortest text first."""
    pairs = sorted(pairs, key=lambda pair: len(pair.ids))
    labels = np.concatenate([pair.labels for pair in pairs])
    return Batch.of(
        [_Side(pair.ids) for pair in pairs],
        targets={"lm": torch.from_numpy(labels)},
        sources=[_Side(pair.source) for pair in pairs],
    )
