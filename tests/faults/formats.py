"""Every file format that bertkit reads: how to make a good example, and how to open it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults import model_formats as models
from tests.faults import run_formats as runs
from tests.faults import user_formats as users


class Format(NamedTuple):
    """A file format.

    Attributes:
        make: Function that writes a good example into a new directory.
        use: Function that opens it. It raises only a BertkitError, whatever the files contain.
    """

    make: Callable[[Path], Any]
    use: Callable[[Path], Any]


FORMATS: dict[str, Format] = {
    "adapter": Format(models.make_adapter, models.use_classifier),
    "gguf": Format(models.make_gguf, partial(models.use_generator, name="model.gguf")),
    "elmo": Format(models.make_elmo, models.use_elmo),
    "frozen-features": Format(models.make_frozen_features, models.use_classifier),
    "word-features": Format(models.make_word_features, models.use_classifier),
    "vectors": Format(models.make_vectors, models.use_vectors),
    "corpus": Format(runs.make_corpus, runs.use_corpus),
    "pairs": Format(runs.make_pairs, runs.use_pairs),
    "store": Format(runs.make_store, runs.use_store),
    "documents": Format(users.make_documents, users.use_documents),
    "pretraining": Format(runs.make_pretraining, runs.use_pretraining),
    "finetuning": Format(partial(runs.make_finetuning, finished=False), runs.use_finetuning),
    "finished": Format(partial(runs.make_finetuning, finished=True), runs.use_finetuning),
}
"""File formats by name, in addition to the model directories of `hostile.KINDS`."""

for family in ("gpt2", "llama"):
    make = partial(models.make_generator, family=family)
    FORMATS[family] = Format(make, models.use_generator)
for family in ("bart", "lstm", "marian", "t5"):
    make = partial(models.make_encoder_decoder, family=family)
    FORMATS[family] = Format(make, models.use_generator)
for kind in ("vocab.txt", "merges.txt", "bpe", "unigram"):
    make = partial(models.make_tokenizer, kind=kind)
    FORMATS[f"tokenizer-{kind}"] = Format(make, models.use_tokenizer)
for task in users.ROWS:
    make = partial(users.make_rows, task=task)
    FORMATS[f"rows-{task}"] = Format(make, partial(users.use_rows, task=task))

SLOW = ("pretraining", "finetuning", "finished", "store", "documents")
"""Formats that only the slow test opens, because they import much."""
