"""What a model's folder remembers of the machines it was tuned on: nothing here imports torch."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from bertkit.config import Count, Settings, with_new_names
from bertkit.console import say
from bertkit.errors import CheckpointError
from bertkit.nn.precision import Inference
from bertkit.storage import read_json, sha256, write_json
from bertkit.threads import cores

FILE = "tuned.json"

GRAPH = "tuned"
"""The folder of the graph beside it, for ONNX Runtime."""

EngineName = Literal["packed", "graph"]
"""bertkit's own on packed batches, or ONNX Runtime."""

COUNTS = (1, 4, 64)
"""Texts that are timed together: one, few and many."""

SHORT = 48
"""Tokens of a text up to which it is short, on average."""

MOST_TOKENS = 1 << 17
"""Of a batch."""


class Tuned(Settings, frozen=True):
    """What was fastest on one machine, with the versions and the weights that it was timed with.

    `engines` are by cells: how many texts, and whether they are short. Where none is named, it is
    bertkit's own.
    """

    RENAMED: ClassVar = {"budget_tokens": "max_batch_tokens"}

    processor: str
    cores: int
    precision: Inference
    max_batch_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
    threads: Count
    texts_per_second: float
    engines: dict[str, EngineName] = msgspec.field(default_factory=dict)
    pooling: str = "mean"
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    weights: str = ""

    def __post_init__(self) -> None:
        if self.threads > self.cores:
            raise ValueError(f"{self.threads} threads on {self.cores} cores")

    def engine(self, lengths: Sequence[int]) -> EngineName:
        """The fastest for texts of so many tokens."""
        return self.engines.get(cell(lengths), "packed")

    @property
    def said(self) -> str:
        """Which engine runs, in words."""
        graph = [name for name, engine in self.engines.items() if engine == "graph"]
        if not graph:
            return "packed batches"
        if len(graph) == len(self.engines):
            return "ONNX Runtime"
        return f"ONNX Runtime for {', '.join(graph)}, else packed batches"


def cell(lengths: Sequence[int]) -> str:
    """How many texts these are and how long, in words; of the counts the nearest."""
    count = len(lengths)
    many = min(COUNTS, key=lambda timed: abs(math.log(timed / max(count, 1))))
    long = sum(lengths) > SHORT * count
    return f"{many} {'long' if long else 'short'}"


def versions() -> dict[str, str]:
    """Of what computes, where it is installed."""
    import importlib.metadata  # slow to import, and asked for by tuned models alone

    installed = {}
    for name in ("torch", "onnxruntime"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def weights_of(folder: Path) -> str:
    """A hash of the files of weights of a folder, checkpoints of its run included."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        digest.update(f"{path.relative_to(folder)} {sha256(path)}\n".encode())
    return digest.hexdigest()


def processor() -> str:
    """The name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_tuned(folder: Path) -> Tuned | None:
    """What was fastest on this machine, if it was tried with these versions and weights; what is
    not taken is said. Raises: CheckpointError when damaged."""
    here, known = (processor(), cores()), _all(folder)
    record = next((t for t in known if (t.processor, t.cores) == here), None)
    if record is None:
        why = "on another machine" if known else ""
    elif record.versions != versions():
        why = "with other versions of " + " and ".join(
            name
            for name in ("torch", "onnxruntime")
            if record.versions.get(name) != versions().get(name)
        )
    else:
        why = "" if record.weights == weights_of(folder) else "with other weights"
    if why:
        say(f"{folder / FILE}: was found {why} and is not used; `bertkit tune` finds it again")
        return None
    return record


def write_tuned(folder: Path, tuned: Tuned) -> None:
    """Remember it, in place of what was found on the same machine before."""
    here = tuned.processor, tuned.cores
    others = [  # the folder has one graph, which is this machine's from now on
        msgspec.structs.replace(t, engines={})
        for t in _all(folder)
        if (t.processor, t.cores) != here
    ]
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
