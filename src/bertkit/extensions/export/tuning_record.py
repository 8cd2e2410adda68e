"""What a model's folder remembers of the machines it was tuned on: nothing here imports torch."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from bertkit.checkpoint.formats import format_of
from bertkit.checkpoint.run_directory import TUNING_FILE
from bertkit.config import Count, Settings
from bertkit.console import say
from bertkit.errors import CheckpointError
from bertkit.extensions.export.exported import Graph, Numbers, Runtime
from bertkit.nn.precision import Inference, cpuinfo
from bertkit.storage import read_json, sha256, write_json
from bertkit.threads import thread_limit

if TYPE_CHECKING:  # importing it takes torch
    pass

FILE = TUNING_FILE

GRAPH_DIRECTORY = "tuned"
"""The folder of the graph beside it, which both runtimes read."""

EngineName = Literal["packed", "onnxruntime", "openvino"]
"""bertkit's own on packed batches, or a runtime of the graph."""

NAMES: dict[str, str] = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}

COUNTS = (1, 4, 64)
"""Texts that are timed together: one, few and many."""

SHORT_TEXT_TOKENS = 48
"""Tokens of a text up to which it is short, on average."""

MOST_TOKENS = 1 << 17
"""Of a batch."""

HASHED = (
    "*.safetensors",
    "*config*.json",
    "modules.json",
    "tokenizer.json",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.spm",
)
"""Files of weights, settings and tokenizers."""

INSTRUCTIONS = ("avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "bf16")
"""As Linux names them."""

VERSIONS = ("bertkit", "torch", "onnxruntime", "openvino")
"""The packages whose versions belong to what is fastest."""


class Tuned(Settings, frozen=True):
    """What was fastest on one machine, with the versions and the weights that it was timed with.

    `cores` are those that threads may compute on. `engines` are by cells: how many texts, and
    whether they are short. Where none is named, it is bertkit's own.
    """

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

    def runtime(self, lengths: Sequence[int]) -> Runtime | None:
        """The fastest for texts of so many tokens, None for bertkit's own engine."""
        engine = self.engines.get(cell(lengths), "packed")
        return None if engine == "packed" else engine

    @property
    def runtimes(self) -> list[Runtime]:
        """Those that are the fastest for any texts."""
        return sorted({engine for engine in self.engines.values() if engine != "packed"})

    def graphs(self, folder: Path) -> Callable[[Runtime], Graph]:
        """The graph beside a folder's model by each runtime, opened once.

        OpenVINO computes it in bf16 where that is the precision; ONNX Runtime has none.
        """

        def opened(runtime: Runtime) -> Graph:
            bf16 = runtime == "openvino" and self.precision == "bf16"
            precision: Numbers = "bf16" if bf16 else "fp32"
            return Graph(folder / GRAPH_DIRECTORY, precision, runtime=runtime, maker="export tune")

        return cache(opened)

    @property
    def said(self) -> str:
        """Which engine runs, in words."""
        told = []
        for runtime in self.runtimes:
            fp32 = runtime == "onnxruntime" and self.precision == "bf16"
            name = NAMES[runtime] + (" in fp32" if fp32 else "")
            cells = [cell for cell, engine in self.engines.items() if engine == runtime]
            if len(cells) == len(self.engines):
                return name
            told.append(f"{name} for {', '.join(cells)}")
        return ", ".join([*told, "else packed batches" if told else "packed batches"])


def cell(lengths: Sequence[int]) -> str:
    """How many texts these are and how long, in words; of the counts the nearest."""
    count = len(lengths)
    many = min(COUNTS, key=lambda timed: abs(math.log(timed / max(count, 1))))
    long = sum(lengths) > SHORT_TEXT_TOKENS * count
    return f"{many} {'long' if long else 'short'}"


def versions() -> dict[str, str]:
    """Of what computes, where it is installed."""
    import importlib.metadata  # slow to import, and asked for by tuned models alone

    installed = {}
    for name in VERSIONS:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def weights_of(folder: Path) -> str:
    """A hash of what a folder's vectors depend on: weights, those of its run's checkpoints and of
    the model that its adapters change included, and how they are read.
    """
    digest = hashlib.sha256()
    if format_of(folder) == "adapter":
        from bertkit.checkpoint.adapter import base_of  # here: it takes torch

        digest.update(f"{weights_of(base_of(folder))}\n".encode())
    for path in sorted({path for kind in HASHED for path in folder.rglob(kind)}):
        name = path.relative_to(folder)
        if name.parts[0] != GRAPH_DIRECTORY:
            digest.update(f"{name} {sha256(path)}\n".encode())
    return digest.hexdigest()


def processor() -> str:
    """The name of this machine's processor."""
    named = (line for line in cpuinfo().splitlines() if line.startswith("model name"))
    name = next(named, "").partition(":")[2].strip()
    return name or platform.processor() or platform.machine()


def processor_and_instructions() -> str:
    """Its name, and those of its instructions that make precisions fast: virtual machines call many
    processors by one name.
    """
    known = [flag for flag in INSTRUCTIONS if re.search(rf"\b{flag}\b", cpuinfo())]
    most = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    return " ".join([processor(), *known, *([f"at most {most}"] if most else [])])


def read_tuned(folder: Path) -> Tuned | None:
    """What was fastest on this machine, if it was tried with these versions and weights; what is
    not taken is said. Raises: CheckpointError when damaged.
    """
    here, known = (processor_and_instructions(), thread_limit()), records(folder)
    record = next((t for t in known if (t.processor, t.cores) == here), None)
    if record is None:
        why = "on another machine, or with other cores or OMP_NUM_THREADS," if known else ""
    elif record.versions != versions():
        why = "with other versions of " + " and ".join(
            name for name in VERSIONS if record.versions.get(name) != versions().get(name)
        )
    else:
        why = "" if record.weights == weights_of(folder) else "with other weights or settings"
    if why:
        say(f"{folder / FILE}: was found {why} and is not used; run `bertkit export tune` again")
        return None
    return record


def write_tuned(folder: Path, tuned: Tuned) -> None:
    """Remember it, in place of what was found on the same machine before, and of what was found
    with a graph: the folder has one, which is this one's from now on.
    """
    here = tuned.processor, tuned.cores
    others = [t for t in records(folder) if (t.processor, t.cores) != here and not t.runtimes]
    write_json(folder / FILE, msgspec.to_builtins([*others, tuned]))


def records(folder: Path) -> list[Tuned]:
    """Of all machines. Raises: CheckpointError."""
    try:
        rows = read_json(folder / FILE, CheckpointError, "remove it")
        return msgspec.convert(rows, type=list[Tuned])
    except FileNotFoundError:
        return []
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{folder / FILE}: damaged ({error}); remove it") from None
