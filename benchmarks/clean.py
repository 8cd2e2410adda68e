"""Near-duplicates removed by MinHash on one core: bertkit beside datatrove, which made FineWeb.

Both read the same `.jsonl` of real text and write what stays: 5-grams of words, 14 buckets of 8
hashes. Ours is `bertkit clean` without masking, in one process; it looks for exact duplicates, too.
The peer is the four steps of datatrove's example with its default settings and word tokenizer
(spaCy's, for English), one after another in this process.

Text: reviews of the folder that BERTKIT_DATA names, else Python's own documentation; every
hundredth document comes a second time with some words changed.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import count
from pathlib import Path

from benchmarks import harness, kept, text
from bertkit.console import quietly
from bertkit.data.readers import documents
from bertkit.recipes.clean import clean

MINHASH = "MinHash de-duplication, one core"
DATATROVE = "datatrove"

MEGABYTES = 30.0


def minhash(folder: Path, *, quick: bool) -> Iterator[kept.Row]:
    """Raises: AssertionError if one side keeps much more than the other."""
    source, megabytes = write(folder / "duplicates", 3.0 if quick else MEGABYTES)
    stay: dict[str, int] = {}
    row = harness.compare(
        MINHASH,
        ours(source, folder, stay),
        theirs(source, folder, stay),
        peer_name=DATATROVE,
        unit="MB/s",
        work=megabytes,
        target=2.0,
        repeats=1 if quick else 2,
        how=(
            kept.How("bertkit clean --no-mask --processes 1, from .jsonl to .jsonl"),
            kept.How(f"{version(DATATROVE)}, LocalPipelineExecutor, from .jsonl to .jsonl.gz"),
        ),
    )
    # ours drops exact copies of texts that are too short for shingles, too: 0.35 % of 30 MB
    assert abs(stay["ours"] - stay["peer"]) <= 0.005 * stay["peer"], stay
    yield row


def write(folder: Path, megabytes: float) -> tuple[Path, float]:
    """A folder of one file, and the megabytes of text in it."""
    folder.mkdir()
    chance, size = random.Random(0), 0
    with (folder / "text.jsonl").open("w", encoding="utf-8") as file:
        for number, document in enumerate(texts(megabytes)):
            again = [changed(document, chance)] if number % 100 == 0 else []
            for one in (document, *again):
                file.write(json.dumps({"text": one}) + "\n")
                size += len(one.encode())
            if size > megabytes * 1e6:
                break
    return folder, size / 1e6


def texts(megabytes: float) -> Iterator[str]:
    data = os.environ.get("BERTKIT_DATA")
    if not data:
        yield from text.documents(megabytes)
        return
    for folder in ("prose_reviews", "prose_novels"):
        for document in documents([Path(data) / folder], blank_lines="documents"):
            yield document.text


def changed(document: str, chance: random.Random) -> str:
    """The same text with one of a hundred words replaced."""
    words = document.split(" ")
    for place in chance.sample(range(len(words)), len(words) // 100):
        words[place] = "otherwise"
    return " ".join(words)


def ours(source: Path, folder: Path, stay: dict[str, int]) -> Callable[[], None]:
    outs = (folder / f"clean-{number}" for number in count())

    def run() -> None:
        with quietly():
            report = clean([source], out=next(outs), mask=False, processes=1)
        stay["ours"] = report.kept.documents

    return run


def theirs(source: Path, folder: Path, stay: dict[str, int]) -> Callable[[], None]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    places = (folder / f"datatrove-{number}" for number in count())

    def run() -> None:
        place = next(places)
        signatures, buckets, remove, out = (str(place / name) for name in ("s", "b", "r", "out"))
        steps = (
            (JsonlReader(str(source)), MinhashDedupSignature(signatures)),
            (MinhashDedupBuckets(signatures, buckets),),
            (MinhashDedupCluster(buckets, remove),),
            (JsonlReader(str(source)), MinhashDedupFilter(remove), JsonlWriter(out)),
        )
        for number, step in enumerate(steps):
            tasks = MinhashConfig().num_buckets if number == 1 else 1
            logs = str(place / f"logs-{number}")
            LocalPipelineExecutor([*step], tasks=tasks, workers=1, logging_dir=logs).run()
        stay["peer"] = sum(1 for _ in documents([Path(out)]))

    return run
