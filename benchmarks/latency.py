"""Latency of single queries on the CPU: bertkit, sentence-transformers, ONNX Runtime and OpenVINO.

Queries are short: 200 sentences of at most 32 tokens, each embedded separately with
all-MiniLM-L6-v2, including tokenization. bertkit uses the engine that `bertkit export tune`
selected on other sentences, as with `--precision auto`: packed batches or ONNX Runtime. Each side
runs in a separate process, one after another, because waiting threads of one runtime would slow
down another. All sides run three times, because the speed of machines varies from minute to minute.
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
    load_bertkit,
    load_side,
    minilm,
    peers,
    precisions,
    prepare,
)
from benchmarks.harness import Options, bf16_here, milliseconds, run_in_process
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
        if any(book.needs(f"one query, {p}, p{percent}", name) for percent in (50, 99))
    ]
    with TemporaryDirectory() as directory:
        if todo:
            calibration = text.sentences(1024 + CALIBRATION)[1024:]
            # Waiting threads of runtimes use the CPU, so graphs are built in a separate process.
            run_in_process(build_sides, directory, calibration)
        sides = [("bertkit", p) for p in precisions() if p in {q for _, q in todo}] + todo
        turns = [
            {side: run_in_process(times, *side, queries, directory) for side in sides}
            for _ in range(TURNS)
        ]
        found = {side: [ms for turn in turns for ms in turn[side][0]] for side in sides}
        for name, precision in todo:
            bertkit, peer = found["bertkit", precision], found[name, precision]
            bertkit_setup, peer_setup = (
                kept.Setup(turns[-1][side, precision][1], 1.0) for side in ("bertkit", name)
            )
            for percentile in (50, 99):
                book.add(
                    kept.row(
                        f"one query, {precision}, p{percentile}",
                        float(np.percentile(bertkit, percentile)),
                        float(np.percentile(peer, percentile)),
                        peer_name=name,
                        unit="ms",
                        target=1.0,
                        better="lower",
                        setups=(bertkit_setup, peer_setup),
                    )
                )
    book.close()


def build_sides(directory: str, calibration: list[str]) -> None:
    """Write the models of all sides to a directory."""
    prepare(minilm(), Path(directory), calibration, LOWEST_COSINE["int8"] + MARGIN, single=True)
    texts = Path(directory, "tuned.txt")
    texts.write_text("\n".join(" ".join(s.split()) for s in calibration), encoding="utf-8")
    for precision in precisions():
        folder = Path(directory, "int8") if precision == "int8" else minilm()
        copy = Path(shutil.copytree(folder, Path(directory, f"tuned-{precision}")))
        tune(copy, [texts], precision=precision, min_cosine=LOWEST_COSINE.get(precision, 0.9999))


def load_tuned(folder: Path, precision: Numbers) -> Side:
    """Load a tuned model with bertkit."""
    model = load_bertkit(folder, "auto")
    record = read_tuned(folder)
    assert record is not None
    return Side(model.embed, f"{precision} by {record.engine_description}", model.fill)


def times(
    name: str, precision: Numbers, queries: list[str], directory: str
) -> tuple[list[float], str]:
    """Return the milliseconds of each query, after a warmup, and the settings of the side."""
    if name == "bertkit":
        model = load_tuned(Path(directory, f"tuned-{precision}"), precision)
    else:
        model = load_side(name, precision, minilm(), Path(directory))
    found = milliseconds(lambda query: model.embed([query]), queries, warm=WARM)
    return found, f"{model.settings.split(', at most')[0].split(', 32')[0]}, one text at a time"
