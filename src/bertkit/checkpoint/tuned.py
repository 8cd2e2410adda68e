"""What a model's folder remembers of the machines it was tuned on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from bertkit.config import Count
from bertkit.errors import CheckpointError
from bertkit.memory import cores
from bertkit.nn.precision import Inference
from bertkit.storage import read_json, write_json

FILE = "tuned.json"

MOST_TOKENS = 1 << 17
"""Of a batch."""


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """What was fastest on one machine."""

    processor: str
    cores: int
    precision: Inference
    budget_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
    """Tokens of a batch."""
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
        return msgspec.convert(
            read_json(folder / FILE, CheckpointError, "remove it"), type=list[Tuned]
        )
    except FileNotFoundError:
        return []
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{folder / FILE}: damaged ({error}); remove it") from None
