"""What happened in a run: one JSON object a line, and the same as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.storage import append_text, write_text, writing

RUN, FILE, PICTURE = "run.json", "journal.jsonl", "loss.svg"
"""Of a run's folder: what it was asked to do, what happened, and that as a picture."""


class Journal:
    """Appends records to `journal.jsonl`; each has a `step`.

    After a kill the last line may be half-written and lines may be ahead of the checkpoint:
    `rewind` drops both.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / FILE

    def write(self, record: Mapping[str, Any]) -> None:
        append_text(self.path, json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # the line a kill cut
                continue
        return found

    def rewind(self, step: int) -> None:
        """Forget what came after `step`."""
        kept = [json.dumps(record) + "\n" for record in self.records() if record["step"] <= step]
        write_text(self.path, "".join(kept))


def draw(run: Path) -> Path:
    """Write the loss curve, training and held-out, as `loss.svg`."""
    from matplotlib.figure import Figure

    records = Journal(run).records()
    trained = [(r["step"], r["loss"]) for r in records if "loss" in r]
    held_out = [(r["step"], sum(r["held_out"].values())) for r in records if "held_out" in r]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    if trained:
        axes.plot(*zip(*trained, strict=True), label="training", linewidth=1.2)
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", label="held out", markersize=4)
    axes.set(xlabel="step", ylabel="loss", title=run.name)
    axes.grid(alpha=0.3)
    if trained or held_out:
        axes.legend()
    with writing(run / PICTURE) as partial:
        figure.savefig(partial, format="svg", metadata={"Date": None, "Creator": None})
    return run / PICTURE
