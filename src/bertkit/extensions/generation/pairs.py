"""Prepared directories that contain pairs of a source and a target text, as token ids.

A directory contains a copy of the tokenizer in `tokenizer/`, and these files. Numbers are stored in
little-endian order.

- `source.tokens`, `target.tokens`: concatenated token ids, as uint16 if the vocabulary has at most
  65,536 tokens, otherwise as uint32
- `source.lengths`, `target.lengths`: number of tokens in each text, as uint32; never 0
- `manifest.json`: the input files, the tokenizer, the sizes, and the hash of each file above; it is
  written last
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
REMEDY = "run `bertkit prepare pairs`"


class PairManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Manifest of a prepared directory of pairs."""

    kind: Literal["pairs"] = "pairs"
    format: int
    tokenizer: str
    """Fingerprint of the tokenizer."""
    vocab_size: int
    dtype: Literal["uint16", "uint32"]
    pairs: int
    source_tokens: int
    target_tokens: int
    sources: list[str]
    sha256: dict[str, str]
    """SHA-256 hash of each file with tokens or lengths."""


@dataclass(frozen=True)
class Pairs(PreparedText):
    """Directory of prepared text pairs, which are numbered from 0."""

    manifest: PairManifest

    @staticmethod
    def open(folder: str | Path) -> Pairs:
        """Open a prepared directory of pairs.

        Raises:
            DataError: If a file is missing, or its size differs from the size in the manifest.
        """
        folder = Path(folder)
        path = folder / "manifest.json"
        if not path.is_file():
            raise DataError(f"{folder}: not a directory of pairs (no manifest.json); {REMEDY}")
        manifest: PairManifest = read_manifest(path, PairManifest, FORMAT, REMEDY)
        pairs = Pairs(folder, manifest)
        width = np.dtype(manifest.dtype).itemsize
        for side in SIDES:
            tokens = getattr(manifest, f"{side}_tokens")
            for name, size in (("tokens", tokens * width), ("lengths", manifest.pairs * 4)):
                file = folder / f"{side}.{name}"
                if not file.is_file() or file.stat().st_size != size:
                    raise DataError(f"{file}: missing or truncated; run `bertkit prepare pairs`")
        return pairs

    @property
    def tokens(self) -> int:
        """Number of tokens in all source and target texts."""
        return self.manifest.source_tokens + self.manifest.target_tokens

    @cached_property
    def starts(self) -> dict[str, NDArray[np.int64]]:
        """Index of each text's first token, followed by the number of tokens, for each side.

        Shapes:
            (pairs + 1,) for each side.
        """
        starts = {}
        for side in SIDES:
            path = self.folder / f"{side}.lengths"
            lengths = np.fromfile(path, LENGTHS)
            check_total(lengths, getattr(self.manifest, f"{side}_tokens"), path)
            starts[side] = np.cumsum([0, *lengths])
        return starts

    def text(self, side: str, number: int) -> Ids:
        """Return the token ids of the source or target text of a pair, without an EOS token.

        Raises:
            DataError: If a token id is not in the vocabulary.
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
    """Write the token ids of source and target texts to a new directory, atomically.

    Args:
        folder: Output directory. Must not exist.
        tokenizer: Tokenizer of the source texts.
        texts: For each side, the token ids of its texts.
        sources: Files that the texts come from.
    """
    dtype: Literal["uint16", "uint32"] = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    with storage.new_folder(folder) as out:
        tokenizer.save(out / "tokenizer")
        for side in SIDES:
            ids = np.concatenate(texts[side]).astype(np.dtype(dtype).newbyteorder("<"))
            lengths = np.array([len(text) for text in texts[side]], LENGTHS)
            (out / f"{side}.tokens").write_bytes(ids.tobytes())
            (out / f"{side}.lengths").write_bytes(lengths.tobytes())
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
            sha256={name: storage.sha256(out / name) for name in names},
        )
        storage.write_text(out / "manifest.json", msgspec.json.encode(manifest).decode())
    return Pairs.open(folder)


@dataclass(frozen=True)
class Pair:
    """Training sample for an encoder-decoder model: a source text and a target text.

    Shapes:
        source: (T',), the input of the encoder.
        ids: (T,), the input of the decoder.
        labels: (T,), the token after each input token.
    """

    source: Ids
    ids: Ids
    labels: Ids

    def __len__(self) -> int:
        """Return the number of tokens in the inputs of the encoder and the decoder."""
        return len(self.source) + len(self.ids)


@dataclass(frozen=True)
class _Side:
    ids: Ids

    @property
    def types(self) -> Ids:
        return np.zeros_like(self.ids)


class PairSamples(Shuffled[Pair]):
    """Training samples from pairs of texts.

    Each text ends with an EOS token, and the decoder's input begins with `start`. A pair is skipped
    if one of its texts has more than `length` tokens, including the EOS token.
    """

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
        self.skipped = int((longest > length).sum())
        if not len(self.numbers):
            raise DataError(
                f"{pairs.folder}: every pair has a text of more than {length} tokens, including "
                "the EOS token; increase sampling.length"
            )

    def __len__(self) -> int:
        return len(self.numbers)

    def sample(self, epoch: int, index: int) -> Pair:
        """Return a pair. It is the same in every epoch."""
        number = int(self.numbers[index])
        source, target = (self.pairs.text(side, number) for side in SIDES)
        return Pair(
            np.append(source, self.end),
            np.concatenate([[self.start], target]).astype(np.int64),
            np.append(target, self.end),
        )


def split_pairs(pairs: Pairs, fraction: float) -> tuple[Ids, Ids]:
    """Split pairs into training pairs and held-out pairs.

    The given fraction of the pairs is held out. The split does not depend on the seed of the run.

    Returns:
        The indices of the training pairs and of the held-out pairs.
    """
    order = generator(0, 0, 0, Purpose.SPLIT).permutation(pairs.manifest.pairs)
    count = int(fraction * pairs.manifest.pairs)
    return np.sort(order[count:]), np.sort(order[:count])


def pack_pairs(pairs: Sequence[Pair]) -> Batch:
    """Pack pairs into a batch, in order of increasing target length."""
    pairs = sorted(pairs, key=lambda pair: len(pair.ids))
    labels = np.concatenate([pair.labels for pair in pairs])
    return Batch.of(
        [_Side(pair.ids) for pair in pairs],
        targets={"lm": torch.from_numpy(labels)},
        sources=[_Side(pair.source) for pair in pairs],
    )
