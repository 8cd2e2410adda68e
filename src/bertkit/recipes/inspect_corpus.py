"""A prepared corpus as a person reads it: samples with their masks, and statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertkit.config import Seed, decode
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.samples import Sample, Samples, Sampling
from bertkit.recipes.pretrain_config import read_config
from bertkit.recipes.run_file import read_run_file
from bertkit.text.tokenizer import Tokenizer


def inspect(
    corpus: Path,
    /,
    *,
    count: int = 3,
    config: Path | None = None,
    seed: Seed = 0,
    length: int = 128,
    pairs: Literal["nsp", "sop", "none"] = "nsp",
) -> None:
    """Print samples of a corpus as a person reads them, and statistics.

    Args:
        corpus: A prepared corpus.
        count: Samples to print.
        config: A run file whose sampling and masking to use, instead of length and pairs.
        seed: Random seed of the samples.
        length: Tokens of a sample.
        pairs: Next sentence, sentence order, or none.
    """
    opened = Corpus.open(corpus)
    tokenizer = opened.tokenizer()
    sampling = decode(Sampling, {"pairs": pairs, "length": length}, "sampling")
    masking = Masking()
    if config is not None:
        settings = read_config(read_run_file(config), tokenizer)
        sampling, masking = settings.sampling, settings.masking
    samples, drawn = draw(opened, tokenizer, sampling, masking, seed=seed, count=max(count, 1000))
    for sample in drawn[:count]:
        print("\n".join(readable(samples, sample)), end="\n\n")
    for name, value in statistics(opened).items():
        print(f"{name:32} {value:,}")
    print(f"{'samples an epoch':32} {len(samples):,}")
    for name, share in rates(samples, drawn).items():
        print(f"{name:32} {share:.3f}")


def statistics(corpus: Corpus) -> dict[str, float | int]:
    """Counts and typical lengths of a corpus, in tokens and sentences."""
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
    """What the draws came to: how much is masked and how, and how many pairs are true."""
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
    """The first samples a run with these settings would see (if it held nothing out)."""
    samples = Samples(corpus, tokenizer, sampling, masking, seed=seed)
    return samples, samples.batch(0, count)


def readable(samples: Samples, sample: Sample) -> Iterator[str]:
    """A sample in lines: what the pair is, then its tokens by segment.

    `[MASK]←word` was masked, `other←word` replaced, `word←=` chosen but kept.
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
    """The first samples of a pretraining run, from its `run.json`; none if its corpus is gone."""
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
