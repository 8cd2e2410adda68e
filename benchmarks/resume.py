"""The middle of an epoch of 10⁹ samples: how long until the first batch is there, in which memory.

The corpus is one shard of 34 million tokens under 3,800 names; each side begins in a fresh process,
and its time counts from behind the imports. accelerate's `skip_first_batches` goes through the
numbers of all batches that it skips, and its `DataLoader` draws those of all samples first; it is
asked for a tenth of the samples, since 10⁹ numbers of Python take some 40 GB.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import kept
from benchmarks.harness import apart
from bertkit.data.corpus import (
    FORMAT,
    PARTS,
    Corpus,
    Manifest,
    ShardWriter,
    shard_name,
    write_manifest,
)

SAMPLES, FEWER, BATCH = 10**9, 10**8, 256
TOKENS, SHARDS = 1 << 25, 3_815

WHAT = "resume in the middle of 10⁹ samples, until the first batch"
MEMORY = f"{WHAT}, memory"
SKIPPED = "accelerate, skip_first_batches, 10⁸ samples"


def rows(folder: Path, corpus: Corpus, *, quick: bool) -> Iterator[kept.Row]:
    """How long both take, and our memory, as medians of fresh processes."""
    large = make(folder / "large", corpus)
    rounds = 1 if quick else 3
    found = [(apart(ours, large), apart(skipped)) for _ in range(rounds)]
    (seconds, theirs), (memory, _) = (
        [sorted(side[at] for side in sides)[rounds // 2] for sides in zip(*found, strict=True)]
        for at in (0, 1)
    )
    how = kept.How("samples of 128 tokens with next sentence, 256 of them")
    for peer, figure, target in ((kept.LIMIT, 5.0, 1.0), (SKIPPED, theirs, 1.0)):
        yield kept.row(
            WHAT, seconds, figure, peer_name=peer, unit="s", target=target, better="lower",
            how=(how, kept.How("numbers alone, no samples" if peer == SKIPPED else "")),
        )  # fmt: skip
    yield kept.row(
        MEMORY, memory, 300.0, peer_name=kept.LIMIT, unit="MB", target=1.0, better="lower",
        how=(how, kept.How()),
    )  # fmt: skip


def make(folder: Path, corpus: Corpus) -> Path:
    """A corpus of 10⁹ samples, most of whose files are one and the same."""
    folder.mkdir()
    dtype = np.dtype(corpus.manifest.dtype)
    times = TOKENS // corpus.tokens + 1
    writer = ShardWriter(folder / "shard-00000", dtype)
    each = [corpus.part([number]) for number in corpus.numbers]
    tokens = np.concatenate([shard.slice(0, shard.sentences) for shard in each])
    writer.add("tokens", np.tile(tokens, times))
    for part, starts in (("sentences", corpus.starts), ("documents", corpus.document_starts)):
        writer.add(part, np.tile(np.diff(starts), times))
    shard = writer.close()
    for number in range(1, SHARDS):
        for part in PARTS:
            os.link(folder / shard_name(0, part), folder / shard_name(number, part))
    tokenizer = corpus.tokenizer()
    tokenizer.save(folder / "tokenizer")
    manifest = Manifest(
        format=FORMAT,
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        dtype=corpus.manifest.dtype,
        shards=[shard] * SHARDS,
        sources=corpus.manifest.sources,
        left_out=0,
        cut=0,
    )
    write_manifest(folder, manifest)
    return folder


def ours(folder: Path) -> tuple[float, float]:
    """Seconds, and the most memory in MB beside that of the imports."""
    from bertkit.data.masking import Masking
    from bertkit.data.segments import Samples, Sampling, split_documents
    from bertkit.data.volumes import in_volumes

    def opened(volume: Corpus) -> Samples:
        learned, _ = split_documents(volume, 0.001)
        return Samples(volume, tokenizer, Sampling(), Masking(), documents=learned)

    with memory() as most:
        began = time.perf_counter()
        corpus = Corpus.open(folder)
        tokenizer = corpus.tokenizer()
        samples = in_volumes(corpus, opened, size=lambda v: -(-v.tokens // 128), seed=0)
        assert len(samples) >= SAMPLES
        assert len(samples.batch(SAMPLES // 2, BATCH)) == BATCH
        seconds = time.perf_counter() - began
    return seconds, most()


def skipped() -> tuple[float, float]:
    """The same of a `DataLoader` in random order, for a tenth of the samples."""
    from accelerate import skip_first_batches
    from torch.utils.data import DataLoader

    with memory() as most:
        began = time.perf_counter()
        numbers: Any = range(FEWER)
        loader = DataLoader(numbers, batch_size=BATCH, shuffle=True)
        assert len(next(iter(skip_first_batches(loader, FEWER // BATCH // 2)))) == BATCH
        seconds = time.perf_counter() - began
    return seconds, most()


@contextmanager
def memory() -> Iterator[Callable[[], float]]:
    """The most memory that the block takes, in MB: pages of its own, without those of files."""
    found, done = [_own()], threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            found.append(_own())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield lambda: max(found) - found[0]
    finally:
        done.set()
        looking.join()


def _own() -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1000
