"""How near translations come to those of people."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bertkit.checkpoint.directory import Loaded
from bertkit.data.readers import read_lines
from bertkit.errors import BertkitError, DataError
from bertkit.extensions.generation.decoding import Decoding
from bertkit.nn.precision import Inference
from bertkit.pipelines import pipeline


class TranslationScore(msgspec.Struct, frozen=True):
    """Scores as sacrebleu computes them, which its signatures make comparable."""

    bleu: float
    """Papineni et al. 2002; 13a tokens, case kept."""
    chrf: float
    """Popović 2015."""
    signatures: list[str]
    sentences: int
    cut: int
    """Translations that have no end, as no room was left."""
    tokens_per_second: float
    """Written, with all that belongs to it."""


def evaluate_translation(
    model: str | Path | Loaded,
    source: Path,
    reference: Path,
    /,
    *,
    decoding: Decoding | Mapping[str, Any] | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
) -> TranslationScore:
    """Compute BLEU and chrF of the translations of a model.

    The scores are computed with sacrebleu.

    Raises: DataError for files of different length.

    Args:
        model: A translation model's folder or hub id (Marian).
        source: Text to translate, a sentence a line.
        reference: Translations by people, line by line.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    metrics = _metrics()
    texts, right = read_lines(source), read_lines(reference)
    if len(texts) != len(right):
        raise DataError(
            f"{source}, {reference}: {len(texts):,} and {len(right):,} lines; lines that belong "
            "together stand in the same place"
        )
    writer = pipeline("generate", model, precision=precision, device=device)
    began = time.perf_counter()
    answers = [best for best, *_ in writer(texts, decoding)]
    seconds = time.perf_counter() - began
    bleu, chrf = (
        metric.corpus_score([answer.text for answer in answers], [right]).score
        for metric in metrics
    )
    return TranslationScore(
        bleu,
        chrf,
        [f"{metric.get_signature()}" for metric in metrics],
        len(texts),
        sum(answer.ended == "length" for answer in answers),
        sum(answer.tokens for answer in answers) / seconds,
    )


def bleu(texts: Sequence[str], right: Sequence[str]) -> float:
    """BLEU of translations, 0 to 100. Raises: BertkitError where sacrebleu is not installed."""
    return float(_metrics()[0].corpus_score(texts, [right]).score)


def _metrics() -> tuple[Any, Any]:
    """BLEU and chrF. Raises: BertkitError where sacrebleu is not installed."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise BertkitError(
            "BLEU is computed by sacrebleu: pip install 'bertkit[generation]'"
        ) from None
    return BLEU(), CHRF()
