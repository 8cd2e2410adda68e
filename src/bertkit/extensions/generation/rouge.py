"""Evaluation of summaries with ROUGE."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bertkit import metrics
from bertkit.checkpoint.directory import Loaded
from bertkit.config import Count
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.summarize import summaries
from bertkit.extensions.generation.tasks.seq2seq import Seq2seq
from bertkit.nn.precision import Inference
from bertkit.pipelines import pipeline
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import Reading


class SummaryScore(msgspec.Struct, frozen=True):
    """ROUGE F1 of a model's summaries and of a baseline.

    The baseline, `lead`, takes the first words of each document as its summary.
    """

    rouge1: float
    """F1 of single words."""
    rouge2: float
    """F1 of pairs of adjacent words."""
    rougeL: float
    """F1 of the longest common subsequence of words."""
    lead_rouge1: float
    lead_rouge2: float
    lead_rougeL: float
    lead_words: int
    """Number of words that the baseline takes from each document."""
    words: float
    """Mean number of words per summary."""
    documents: int
    truncated: int
    """Number of documents that were truncated because they are longer than the model supports."""
    documents_per_second: float


def evaluate_summaries(
    model: str | Path | Loaded,
    file: Path,
    /,
    *,
    decoding: Decoding | Mapping[str, Any] | None = None,
    lead_words: Count | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
    reading: Reading | None = None,
) -> SummaryScore:
    """Summarize documents, and compute ROUGE of the summaries.

    The scores are compared with a baseline, which takes the first words of each document as its
    summary.

    Args:
        model: Model directory or hub id of a summarization model: T5, BART, or a model from
            `finetune summarize`.
        file: Documents with one or more reference summaries each.
        decoding: Settings of text generation. Default: the settings of the model.
        lead_words: Number of words that the baseline takes from each document. Default: the mean
            number of words in the references.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
        reading: Columns and format of the documents.

    Returns:
        The scores.

    Raises:
        ConfigError: If decoding settings are passed for a model that selects sentences.
        DataError: If the file is invalid.
    """
    examples = read_examples(Seq2seq, file, reading)
    documents = [example.document for example in examples]
    references = [example.references for example in examples]
    writer = pipeline("summarize", model, precision=precision, device=device)
    start = time.perf_counter()
    answers = summaries(writer, documents, decoding)
    seconds = time.perf_counter() - start
    sizes = [len(text.split()) for texts in references for text in texts]
    count = lead_words or max(round(float(np.mean(sizes))), 1)
    lead = metrics.rouge([" ".join(d.split()[:count]) for d in documents], references)
    return SummaryScore(
        **metrics.rouge([answer.text for answer in answers], references),
        **{f"lead_{name}": value for name, value in lead.items()},
        lead_words=count,
        words=float(np.mean([len(answer.text.split()) for answer in answers])),
        documents=len(documents),
        truncated=sum(answer.truncated for answer in answers),
        documents_per_second=len(documents) / seconds,
    )
