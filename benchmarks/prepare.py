"""Corpus preparation: bertkit against `datasets.map`, both with two processes.

Both sides split the same documents into sentences with the same splitter, and tokenize them with
the same BERT tokenizer, without special tokens. The time of bertkit is from `.jsonl` files to a
finished corpus. It includes starting processes, reading and checking the text, and hashing the
output. The time of the baseline is from a loaded data set to its Arrow file. The baseline calls the
tokenizer of `transformers` on batches of 1,000 documents, without attention masks and token types.
Both sides tokenize with one thread per process (TOKENIZERS_PARALLELISM=false), which is fastest if
each process has a core.

Text: novels and reviews in BERTKIT_DATA, else Python's documentation.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness, kept, text
from benchmarks.embed import minilm
from benchmarks.harness import Options
from bertkit.data.corpus import Corpus
from bertkit.data.document_readers import documents
from bertkit.data.sentences import split
from bertkit.recipes.prepare import prepare
from bertkit.text.tokenizer import Tokenizer

PEER = "datasets.map, 2 processes"
PROCESSES = 2
MEGABYTES = 30.0
FILES = 8
DISK = 2.2
"""Maximum number of bytes per token on disk, with boundaries, manifest and tokenizer."""


def main(options: Options) -> None:
    book, megabytes = options.book("prepare"), 3.0 if options.quick else MEGABYTES
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as name:
        if book.needs(f"prepare {megabytes:.0f} MB of text", PEER):
            book.add(*compare(Path(name), megabytes, repeats=1 if options.quick else 3))
    book.close()


def compare(folder: Path, megabytes: float, *, repeats: int) -> list[kept.Row]:
    """Measure speed and size. Raise AssertionError if the ids of the two sides differ."""
    source = write(folder / "text", texts(megabytes))
    size = sum(len(d.text.encode()) for d in documents([source])) / 1e6
    run_bertkit, run_peer = _bertkit(source, folder), _peer(source, folder)
    corpus, table = run_bertkit(), run_peer()
    peer_ids = np.concatenate(table.with_format("numpy")["input_ids"][:])
    shards = (np.fromfile(p, np.uint16) for p in sorted(corpus.folder.glob("*.tokens")))
    assert np.array_equal(np.concatenate(list(shards)), peer_ids), "the two sides' ids differ"
    return [
        harness.compare(
            f"prepare {megabytes:.0f} MB of text",
            run_bertkit,
            run_peer,
            peer_name=PEER,
            unit="MB/s",
            work=size,
            target=1.5,
            repeats=repeats,
            setups=(
                kept.Setup("2 processes, from .jsonl to a corpus"),
                kept.Setup("2 processes, from a loaded data set to Arrow"),
            ),
        ),
        kept.row(
            "prepare: bytes a token on disk",
            corpus.bytes / corpus.tokens,
            DISK,
            peer_name=kept.LIMIT,
            unit="bytes/token",
            target=1.0,
            better="lower",
        ),
    ]


def texts(megabytes: float) -> Iterator[str]:
    """Yield documents up to an amount of text: half novels, half reviews."""
    data = os.environ.get("BERTKIT_DATA")
    if not data:
        yield from text.documents(megabytes)
        return
    for name in ("prose_novels", "prose_reviews"):
        left = megabytes * 1e6 / 2
        for document in documents([Path(data) / name]):
            yield document.text
            left -= len(document.text.encode())
            if left <= 0:
                break


def write(folder: Path, texts: Iterator[str]) -> Path:
    """Write the documents alternately to several files, like the files of a web crawl."""
    folder.mkdir()
    files = [(folder / f"{i}.jsonl").open("w", encoding="utf-8") for i in range(FILES)]
    for i, document in enumerate(texts):
        files[i % FILES].write(json.dumps({"text": document}) + "\n")
    for file in files:
        file.close()
    return folder


def _bertkit(source: Path, folder: Path) -> Callable[[], Corpus]:
    tokenizer = Tokenizer.load(minilm())
    names = (folder / f"corpus{i}" for i in count())
    return lambda: prepare([source], tokenizer=tokenizer, out=next(names), processes=PROCESSES)


def _peer(source: Path, folder: Path) -> Callable[[], Any]:
    import datasets
    from transformers import PreTrainedTokenizerFast

    datasets.disable_progress_bars()
    # As in bertkit, "[MASK]" in a document is text.
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(minilm() / "tokenizer.json"), split_special_tokens=True
    )
    files = [str(p) for p in sorted(source.iterdir())]
    loaded = datasets.load_dataset(
        "json", data_files=files, split="train", cache_dir=str(folder / "cache")
    )

    def tokenize(batch: dict[str, list[str]], indices: list[int]) -> dict[str, list[Any]]:
        found = [(s, i) for i, t in zip(indices, batch["text"], strict=True) for s in split(t)]
        ids = tokenizer(
            [s for s, _ in found],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        return {"input_ids": ids, "document": [i for _, i in found]}

    names = (str(folder / f"peer{i}.arrow") for i in count())
    return lambda: loaded.map(
        tokenize,
        batched=True,
        with_indices=True,
        num_proc=PROCESSES,
        remove_columns=loaded.column_names,
        cache_file_name=next(names),
        load_from_cache_file=False,
    )
