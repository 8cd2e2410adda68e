"""Evaluation of translation models with BLEU and chrF."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bertkit.checkpoint.directory import Loaded
from bertkit.data.document_readers import read_lines
from bertkit.errors import BertkitError, DataError
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.length_groups import groups_by_length
from bertkit.extensions.generation.pipeline import Generate
from bertkit.nn.precision import Inference


class TranslationScore(msgspec.Struct, frozen=True):
    """Scores of a model's translations, computed with sacrebleu."""

    bleu: float
    """Case-sensitive BLEU with 13a tokenization (Papineni et al. 2002)."""
    chrf: float
    """chrF (Popović 2015)."""
    bleu_by_length: dict[str, float]
    """BLEU for each range of the number of words in the source, such as `6-10`."""
    signatures: list[str]
    """Metric signatures from sacrebleu. Scores with different signatures cannot be compared."""
    sentences: int
    """Number of translations."""
    cut: int
    """Number of translations that were truncated at the maximum length."""
    tokens_per_second: float
    """Number of generated tokens per second."""

    @property
    def scores(self) -> dict[str, float]:
        """BLEU, chrF, and BLEU for each range of source lengths, such as `bleu_6-10`."""
        by_length = {f"bleu_{name}": score for name, score in self.bleu_by_length.items()}
        return {"bleu": self.bleu, "chrf": self.chrf, **by_length}


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
    """Translate a file and compute BLEU and chrF of the translations.

    BLEU is also computed separately for sources with similar numbers of words.

    Args:
        model: Model directory or hub id of a translation model.
        source: File with the texts to translate, one per line.
        reference: File with the reference translations, one per line.
        decoding: Settings of text generation. Default: the settings of the model.
        precision: Precision of the matrix multiplications.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.

    Returns:
        The scores.

    Raises:
        BertkitError: If sacrebleu is not installed.
        DataError: If the files have different numbers of lines.
    """
    sacrebleu_metrics()
    sources, references = read_lines(source), read_lines(reference)
    if len(sources) != len(references):
        raise DataError(
            f"{source}: has {len(sources):,} lines, but {reference} has {len(references):,}; use "
            "files in which each line of one is the translation of the same line of the other"
        )
    generate = Generate.open(model, precision=precision, device=device)
    return score_translations(generate, sources, references, decoding)


def score_translations(
    generate: Generate,
    sources: Sequence[str],
    references: Sequence[str],
    decoding: Decoding | Mapping[str, Any] | None = None,
) -> TranslationScore:
    """Translate texts and compute the scores of the translations.

    Args:
        generate: The translation model.
        sources: Texts to translate.
        references: The reference translation of each text.
        decoding: Decoding settings. Default: the settings of the model.
    """
    bleu, chrf = sacrebleu_metrics()
    start = time.perf_counter()
    answers = [best for best, *_ in generate(sources, decoding)]
    seconds = time.perf_counter() - start

    def score(metric: Any, indices: Sequence[int]) -> float:
        texts, expected = [answers[n].text for n in indices], [references[n] for n in indices]
        return float(metric.corpus_score(texts, [expected]).score)

    everything = range(len(sources))
    return TranslationScore(
        score(bleu, everything),
        score(chrf, everything),
        {group.name: score(bleu, group.indices) for group in groups_by_length(sources)},
        [f"{metric.get_signature()}" for metric in (bleu, chrf)],
        len(sources),
        sum(answer.ended == "length" for answer in answers),
        sum(answer.tokens for answer in answers) / seconds,
    )


def sacrebleu_metrics() -> tuple[Any, Any]:
    """Return the BLEU and chrF metrics of sacrebleu.

    Raises:
        BertkitError: If sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise BertkitError(
            "BLEU requires sacrebleu; run pip install 'bertkit[generation]'"
        ) from None
    return BLEU(), CHRF()
