"""An experiment killed at any moment continues to the same table, weights, and test scores."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from bertkit.storage import sha256

TEXT = """
[settings]
task = "classify"
model = "{model}"
train = "train.csv"
dev = "dev.csv"
test = "dev.csv"
epochs = 1
batch_size = 8
precision = "fp32"
save_minutes = 0

[variants.small]
learning_rate = 1e-3

[variants.large]
learning_rate = 1e-2

[grid]
warmup = [0.0, 0.5]
"""

MEASURED = ("journal.jsonl", "experiment.html")
"""Files with times, which depend on the machine."""


@pytest.fixture(scope="module")
def command(world: Any, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Command of an experiment of two variants, two combinations, and two seeds."""
    folder = tmp_path_factory.mktemp("experiment")
    rows = [f"the {('loop', 'class')[i % 2]} number {i},{('no', 'yes')[i % 2]}" for i in range(24)]
    for name, part in (("train", rows), ("dev", rows[:8])):
        (folder / f"{name}.csv").write_text("text,label\n" + "\n".join(part), encoding="utf-8")
    file = folder / "experiment.toml"
    file.write_text(TEXT.format(model=world.model), encoding="utf-8")
    return ["experiment", file, "--data", folder, "--seeds", 2, "--out"]


@pytest.fixture(scope="module")
def whole(command: list[object], forker: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    assert forker(*command, out) == 0, forker.output
    return out


def hashes(out: Path) -> dict[str, str]:
    """Return the hash of each file of an experiment, except files with times."""
    paths = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {str(p.relative_to(out)): sha256(p) for p in paths if p.name not in MEASURED}


FEW, MORE = (
    (1, 29, 211, 401, 557),
    (2, 7, 61, 89, 113, 149, 181, 263, 307, 353, 461, 503, 601, 643, 677),
)
"""Index of the write before which the process is killed."""


@pytest.mark.parametrize("write", [*FEW, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_experiment_killed_before_write_continues(
    write: int, command: list[object], forker: Any, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert forker(*command, out, at_write=write) == -signal.SIGKILL, forker.output
    journals = [scores.with_name("journal.jsonl") for scores in out.rglob("scores.json")]
    before = {journal: journal.read_bytes() for journal in journals}
    resume = ["--resume"] if out.exists() else []
    assert forker(*command, out, *resume) == 0, forker.output
    assert hashes(out) == hashes(whole)
    # Finished runs are not repeated: their journals contain the same times.
    assert {journal: journal.read_bytes() for journal in journals} == before
