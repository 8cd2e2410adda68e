"""How near summaries come to those of people."""

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
    """ROUGE of a model's summaries, and of the first words of each document.

    F1 of words, of pairs of words, and of the longest common row of words.
    """

    rouge1: float
    rouge2: float
    rougeL: float  # its name
    lead_rouge1: float
    lead_rouge2: float
    lead_rougeL: float
    lead_words: int
    """How many are taken of each document."""
    words: float
    """Of a summary, on average."""
    documents: int
    truncated: int
    """Documents that are longer than the model reads."""
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
    """Compute ROUGE of the summaries of a model.

    The baseline is ROUGE of the first words of each document.

    Args:
        model: A folder or hub id of a model that summarizes: T5, BART, or one of `finetune
            summarize`.
        file: Documents with summaries by people, one or several each.
        lead_words: Number of first words of each document to score; by default the
            mean length of a reference.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    examples = read_examples(Seq2seq, file, reading)
    documents = [example.document for example in examples]
    references = [example.references for example in examples]
    writer = pipeline("summarize", model, precision=precision, device=device)
    began = time.perf_counter()
    answers = summaries(writer, documents, decoding)
    seconds = time.perf_counter() - began
    sizes = [len(one.split()) for several in references for one in several]
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
