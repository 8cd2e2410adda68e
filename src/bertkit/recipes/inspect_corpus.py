"""Printed samples of a corpus, which show their masks, and statistics of a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from bertkit.config import Seed, Settings, decode
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.samples import Sample, Samples, Sampling
from bertkit.recipes.pretrain_config import read_config
from bertkit.recipes.run_file import read_run_file


class SampleSettings(Settings, frozen=True):
    """Settings for the samples of a corpus that are printed."""

    count: int = 3
    """Number of samples to print."""
    run_file: str | None = None
    """Run file from which to take the sampling and masking, instead of length and pairs."""
    seed: Seed = 0
    """Random seed of the samples."""
    length: int = 128
    """Number of tokens of a sample."""
    pairs: Literal["nsp", "sop", "none"] = "nsp"
    """Objective of the sentence pairs: next sentence prediction, sentence order prediction, or
    none."""


def print_samples(corpus: Path, settings: SampleSettings) -> None:
    """Print samples of a corpus with their masks, and statistics of the corpus.

    Args:
        corpus: Directory of the corpus.
        settings: Settings for the samples.
    """
    loaded = Corpus.open(corpus)
    tokenizer = loaded.tokenizer()
    sampling = decode(Sampling, {"pairs": settings.pairs, "length": settings.length}, "sampling")
    masking = Masking()
    if settings.run_file is not None:
        config = read_config(read_run_file(settings.run_file), tokenizer)
        sampling, masking = config.sampling, config.masking
    count = max(settings.count, STATISTICS_SAMPLES)
    samples = Samples(loaded, tokenizer, sampling, masking, seed=settings.seed)
    first = samples.batch(0, count)
    for sample in first[: settings.count]:
        print("\n".join(readable(samples, sample)), end="\n\n")
    for name, value in statistics(loaded).items():
        print(f"{name:32} {value:,}")
    print(f"{'samples per epoch':32} {len(samples):,}")
    for name, rate in rates(samples, first).items():
        print(f"{name:32} {rate:.3f}")


STATISTICS_SAMPLES = 1000
"""Minimum number of samples from which the fractions of masks and pairs are computed."""


def statistics(corpus: Corpus) -> dict[str, float | int]:
    """Return the numbers of tokens, sentences and documents of a corpus, and typical lengths."""
    lengths = np.diff(corpus.starts)
    documents = np.diff(corpus.document_starts)
    return {
        "tokens": corpus.tokens,
        "sentences": corpus.sentences,
        "documents": corpus.documents,
        "tokens per sentence, median": int(np.median(lengths)),
        "tokens per sentence, 95th percentile": int(np.percentile(lengths, 95)),
        "tokens per sentence, maximum": int(lengths.max()),
        "sentences per document, median": int(np.median(documents)),
    }


def rates(samples: Samples, items: list[Sample]) -> dict[str, float]:
    """Return the fractions of selected tokens, of each type of mask, and of true sentence pairs."""
    mask = samples.tokenizer.mask
    inputs = np.concatenate([s.ids[s.masked_positions] for s in items])
    labels = np.concatenate([s.labels for s in items])
    tokens = sum(len(s) for s in items)
    pairs = [s.pair for s in items if s.pair is not None]
    return {
        "tokens per sample": tokens / len(items),
        "selected, of all tokens": len(labels) / tokens,
        "[MASK], of selected": float((inputs == mask).mean()),
        "random token, of selected": float(((inputs != mask) & (inputs != labels)).mean()),
        "unchanged, of selected": float((inputs == labels).mean()),
        **({"true pairs": float(np.mean([p == 0 for p in pairs]))} if pairs else {}),
    }


def readable(samples: Samples, sample: Sample) -> Iterator[str]:
    """Yield lines that show a sample: the label of the sentence pair, then each segment's tokens.

    `[MASK]←word` means that the token `word` is masked, and `other←word` that it is replaced with
    `other`. `word←=` means that the model predicts the token although it is unchanged.
    """
    titles = {"nsp": ("IsNext", "NotNext"), "sop": ("InOrder", "Swapped"), "none": ("", "")}
    if sample.pair is not None:
        yield f"{titles[samples.sampling.pairs][sample.pair]}, {len(sample)} tokens"
    else:
        yield f"{len(sample)} tokens"
    tokens = samples.tokenizer.pieces(sample.ids)
    originals = samples.tokenizer.pieces(sample.labels)
    for index, original in zip(sample.masked_positions, originals, strict=True):
        is_same = tokens[index] == original
        tokens[index] = f"{original}←=" if is_same else f"{tokens[index]}←{original}"
    for segment in np.unique(sample.types):
        text = " ".join(p for p, t in zip(tokens, sample.types, strict=True) if t == segment)
        yield f"  {'AB'[segment]}: {text}"
