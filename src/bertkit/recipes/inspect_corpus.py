"""Print samples of a corpus with their masks, and statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertkit.config import Seed, Settings, decode
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.samples import Sample, Samples, Sampling
from bertkit.recipes.pretrain_config import read_config
from bertkit.recipes.run_file import read_run_file
from bertkit.text.tokenizer import Tokenizer


class SampleSettings(Settings, frozen=True):
    """Settings of the samples of a corpus that are printed."""

    count: int = 3
    """Number of samples to print."""
    run_file: str | None = None
    """Run file whose sampling and masking to use, instead of length and pairs."""
    seed: Seed = 0
    """Random seed of the samples."""
    length: int = 128
    """Number of tokens of a sample."""
    pairs: Literal["nsp", "sop", "none"] = "nsp"
    """Objective of the sentence pairs: next sentence prediction, sentence order prediction, or
    none."""


def print_samples(corpus: Path, settings: SampleSettings) -> None:
    """Print samples of a corpus with their masks, and statistics."""
    opened = Corpus.open(corpus)
    tokenizer = opened.tokenizer()
    sampling = decode(Sampling, {"pairs": settings.pairs, "length": settings.length}, "sampling")
    masking = Masking()
    if settings.run_file is not None:
        config = read_config(read_run_file(settings.run_file), tokenizer)
        sampling, masking = config.sampling, config.masking
    count = max(settings.count, STATISTICS_SAMPLES)
    samples, drawn = draw(opened, tokenizer, sampling, masking, seed=settings.seed, count=count)
    for sample in drawn[: settings.count]:
        print("\n".join(readable(samples, sample)), end="\n\n")
    for name, value in statistics(opened).items():
        print(f"{name:32} {value:,}")
    print(f"{'samples per epoch':32} {len(samples):,}")
    for name, share in rates(samples, drawn).items():
        print(f"{name:32} {share:.3f}")


STATISTICS_SAMPLES = 1000
"""Minimum number of samples from which the rates of masks and pairs are computed."""


def statistics(corpus: Corpus) -> dict[str, float | int]:
    """Count tokens, sentences and documents of a corpus, and their typical lengths."""
    lengths = np.diff(corpus.starts)
    documents = np.diff(corpus.document_starts)
    return {
        "tokens": corpus.tokens,
        "sentences": corpus.sentences,
        "documents": corpus.documents,
        "tokens a sentence, median": int(np.median(lengths)),
        "tokens a sentence, 95 % below": int(np.percentile(lengths, 95)),
        "tokens a sentence, longest": int(lengths.max()),
        "sentences a document, median": int(np.median(documents)),
    }


def rates(samples: Samples, drawn: list[Sample]) -> dict[str, float]:
    """Return the fractions of masked tokens by type of mask, and of true pairs."""
    mask = samples.tokenizer.mask
    seen = np.concatenate([s.ids[s.masked_positions] for s in drawn])
    labels = np.concatenate([s.labels for s in drawn])
    tokens = sum(len(s) for s in drawn)
    pairs = [s.pair for s in drawn if s.pair is not None]
    return {
        "tokens a sample": tokens / len(drawn),
        "chosen, of all tokens": len(labels) / tokens,
        "of these [MASK]": float((seen == mask).mean()),
        "of these replaced": float(((seen != mask) & (seen != labels)).mean()),
        "of these kept": float((seen == labels).mean()),
        **({"true pairs": float(np.mean([p == 0 for p in pairs]))} if pairs else {}),
    }


def draw(
    corpus: Corpus,
    tokenizer: Tokenizer,
    sampling: Sampling,
    masking: Masking,
    *,
    seed: int,
    count: int,
) -> tuple[Samples, list[Sample]]:
    """Return the first samples of a run with these settings, without held-out documents."""
    samples = Samples(corpus, tokenizer, sampling, masking, seed=seed)
    return samples, samples.batch(0, count)


def readable(samples: Samples, sample: Sample) -> Iterator[str]:
    """Yield the lines that show a sample: the label of the pair, then the tokens of each segment.

    `[MASK]←word` is a masked token, `other←word` a replaced token, and `word←=` a target that was
    kept.
    """
    says = {"nsp": ("IsNext", "NotNext"), "sop": ("InOrder", "Swapped"), "none": ("", "")}
    if sample.pair is not None:
        yield f"{says[samples.sampling.pairs][sample.pair]}, {len(sample)} tokens"
    else:
        yield f"{len(sample)} tokens"
    pieces = samples.tokenizer.pieces(sample.ids)
    originals = samples.tokenizer.pieces(sample.labels)
    for place, original in zip(sample.masked_positions, originals, strict=True):
        kept = pieces[place] == original
        pieces[place] = f"{original}←=" if kept else f"{pieces[place]}←{original}"
    for segment in np.unique(sample.types):
        text = " ".join(p for p, t in zip(pieces, sample.types, strict=True) if t == segment)
        yield f"  {'AB'[segment]}: {text}"


def samples_of_run(record: Mapping[str, Any], count: int) -> list[str]:
    """Return the first samples of a run, from its `run.json`; no samples if its corpus is gone."""
    corpus = Path(record.get("corpus_folder", ""))
    if not record.get("corpus_folder") or "config" not in record or not corpus.is_dir():
        return []
    opened = Corpus.open(corpus).first_volume
    tokenizer = opened.tokenizer()
    config = read_config(record["config"], tokenizer)
    samples, drawn = draw(
        opened, tokenizer, config.sampling, config.masking, seed=config.train.seed, count=count
    )
    return ["\n".join(readable(samples, sample)) for sample in drawn]
