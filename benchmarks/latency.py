"""One query at a time on the CPU: bertkit against sentence-transformers, ONNX Runtime and OpenVINO.

What people type is short: 200 sentences of at most 32 tokens, each embedded by itself by
all-MiniLM-L6-v2, tokenizing included. Ours is the engine that `bertkit export tune` chose on other
sentences, as `--precision auto` takes it: packed batches or ONNX Runtime. Each side has a process
of its own, one after the other, since threads of one runtime that wait for work would take time
from another's; all take three turns, since machines are not equally fast from minute to minute.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import kept, text
from benchmarks.embed import (
    CALIBRATION,
    LOWEST_COSINE,
    MARGIN,
    NO_BF16,
    Numbers,
    Side,
    minilm,
    ours,
    peers,
    precisions,
    prepare,
    side,
)
from benchmarks.harness import Options, apart, bf16_here, milliseconds
from bertkit.extensions.export.tune import tune
from bertkit.extensions.export.tuning_record import read_tuned
from bertkit.text.tokenizer import Tokenizer

TOKENS, COUNT, WARM, TURNS = 32, 200, 40, 3


def main(options: Options) -> None:
    book = options.book("latency")
    if not bf16_here():
        book.leave_out(NO_BF16)
    tokenizer = Tokenizer.load(minilm())
    queries = [s for s in text.sentences(1024) if len(tokenizer.encode(s)) <= TOKENS]
    queries = queries[: 20 if options.quick else COUNT]
    todo = [
        (name, p)
        for name, p in peers()
        if any(book.wanted(f"one query, {p}, p{share}", name) for share in (50, 99))
    ]
    with TemporaryDirectory() as place:
        if todo:
            seen = text.sentences(1024 + CALIBRATION)[1024:]
            # runtimes wait by spinning: what makes their graphs ends before anything is timed
            apart(prepared, place, seen)
        asked = [("bertkit", p) for p in precisions() if p in {q for _, q in todo}] + todo
        turns = [
            {side: apart(times, *side, queries, place) for side in asked} for _ in range(TURNS)
        ]
        found = {side: [ms for turn in turns for ms in turn[side][0]] for side in asked}
        for name, precision in todo:
            own, peer = found["bertkit", precision], found[name, precision]
            ours_how, peer_how = (
                kept.How(turns[-1][side, precision][1], 1.0) for side in ("bertkit", name)
            )
            for share in (50, 99):
                book.add(
                    kept.row(
                        f"one query, {precision}, p{share}",
                        float(np.percentile(own, share)),
                        float(np.percentile(peer, share)),
                        peer_name=name,
                        unit="ms",
                        target=1.0,
                        better="lower",
                        how=(ours_how, peer_how),
                    )
                )
    book.close()


def prepared(place: str, seen: list[str]) -> None:
    prepare(minilm(), Path(place), seen, LOWEST_COSINE["int8"] + MARGIN, alone=True)
    texts = Path(place, "tuned.txt")
    texts.write_text("\n".join(" ".join(one.split()) for one in seen), encoding="utf-8")
    for precision in precisions():
        folder = Path(place, "int8") if precision == "int8" else minilm()
        copy = Path(shutil.copytree(folder, Path(place, f"tuned-{precision}")))
        tune(copy, [texts], precision=precision, lowest=LOWEST_COSINE.get(precision, 0.9999))


def tuned(folder: Path, precision: Numbers) -> Side:
    """Ours, as it was tuned."""
    opened = ours(folder, "auto")
    record = read_tuned(folder)
    assert record is not None
    return Side(opened.embed, f"{precision} by {record.said}", opened.fill)


def times(name: str, precision: Numbers, queries: list[str], place: str) -> tuple[list[float], str]:
    """Milliseconds of each query, after some that do not count, and how it was computed."""
    if name == "bertkit":
        opened = tuned(Path(place, f"tuned-{precision}"), precision)
    else:
        opened = side(name, precision, minilm(), Path(place))
    found = milliseconds(lambda query: opened.embed([query]), queries, warm=WARM)
    return found, f"{opened.settings.split(', at most')[0].split(', 32')[0]}, one text at a time"
