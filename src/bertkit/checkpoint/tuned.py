"""What a model's folder remembers of the machines it was tuned on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from bertkit.config import Count, Settings, with_new_names
from bertkit.errors import CheckpointError
from bertkit.memory import cores
from bertkit.nn.precision import Inference
from bertkit.storage import read_json, write_json

FILE = "tuned.json"

MOST_TOKENS = 1 << 17
"""Of a batch."""


class Tuned(Settings, frozen=True):
    """What was fastest on one machine."""

    RENAMED: ClassVar = {"budget_tokens": "max_batch_tokens"}

    processor: str
    cores: int
    precision: Inference
    max_batch_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
    threads: Count
    texts_per_second: float

    def __post_init__(self) -> None:
        if self.threads > self.cores:
            raise ValueError(f"{self.threads} threads on {self.cores} cores")


def processor() -> str:
    """The name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_tuned(folder: Path) -> Tuned | None:
    """What was fastest on this machine, if it was tried. Raises: CheckpointError when damaged."""
    here = processor(), cores()
    return next((t for t in _all(folder) if (t.processor, t.cores) == here), None)


def write_tuned(folder: Path, tuned: Tuned) -> None:
    """Remember it, in place of what was found on the same machine before."""
    here = tuned.processor, tuned.cores
    others = [t for t in _all(folder) if (t.processor, t.cores) != here]
    write_json(folder / FILE, msgspec.to_builtins([*others, tuned]))


def _all(folder: Path) -> list[Tuned]:
    try:
        kept = read_json(folder / FILE, CheckpointError, "remove it")
        rows = [with_new_names(Tuned, row)[0] for row in kept] if isinstance(kept, list) else kept
        return msgspec.convert(rows, type=list[Tuned])
    except FileNotFoundError:
        return []
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{folder / FILE}: damaged ({error}); remove it") from None
