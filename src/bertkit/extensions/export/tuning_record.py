"""Tuning results that a model directory stores for each machine, read without torch."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bertkit.checkpoint.formats import format_of
from bertkit.checkpoint.run_directory import TUNING_FILE
from bertkit.config import Count, Settings
from bertkit.console import say
from bertkit.errors import CheckpointError
from bertkit.extensions.export.exported import Graph, GraphPrecision, Runtime
from bertkit.nn.precision import Inference, cpuinfo
from bertkit.storage import read_json, sha256, write_json
from bertkit.threads import thread_limit

FILE = TUNING_FILE

GRAPH_DIRECTORY = "tuned"
"""Subdirectory of the graph, which both runtimes load."""

EngineName = Literal["packed", "onnxruntime", "openvino"]
"""bertkit's engine with packed batches, or a runtime of the graph."""

NAMES: dict[str, str] = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}

COUNTS = (1, 4, 64)
"""Numbers of texts that are timed together: one, few and many."""

SHORT_TEXT_TOKENS = 48
"""Maximum mean number of tokens of short texts."""

MAX_TOKENS = 1 << 17
"""Maximum number of tokens of a batch."""

HASHED = (
    "*.safetensors",
    "pytorch_model*.bin",
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
"""Relevant processor instructions, with the names of Linux."""

VERSIONS = ("bertkit", "torch", "onnxruntime", "openvino")
"""Packages whose versions affect the measurements."""


class Tuned(Settings, frozen=True):
    """The fastest settings of a model on one machine.

    Attributes:
        processor: Processor and its instructions.
        cores: Number of cores that threads can use.
        precision: Precision of the computation.
        max_batch_tokens: Maximum number of tokens of a batch.
        threads: Number of threads.
        texts_per_second: Measured speed.
        engines: Fastest engine by `cell`. Default: bertkit's engine.
        pooling: Pooling of the embeddings.
        versions: Versions of the packages at the measurement.
        weights: Hash of the model at the measurement.
    """

    processor: str
    cores: int
    precision: Inference
    max_batch_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    threads: Count
    texts_per_second: float
    engines: dict[str, EngineName] = msgspec.field(default_factory=dict)
    pooling: str = "mean"
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    weights: str = ""

    def __post_init__(self) -> None:
        if self.threads > self.cores:
            raise ValueError(f"threads must not exceed cores ({self.cores}), got {self.threads}")

    def runtime(self, lengths: Sequence[int]) -> Runtime | None:
        """Return the fastest runtime for texts, or None for bertkit's engine.

        Args:
            lengths: Number of tokens of each text.
        """
        engine = self.engines.get(cell(lengths), "packed")
        return None if engine == "packed" else engine

    @property
    def runtimes(self) -> list[Runtime]:
        """Runtimes that are the fastest for some texts."""
        return sorted({engine for engine in self.engines.values() if engine != "packed"})

    def graphs(self, folder: Path) -> Callable[[Runtime], Graph]:
        """Return a function that loads the graph in a runtime, once per runtime.

        OpenVINO computes in bf16 if that is the precision. ONNX Runtime does not support bf16.

        Args:
            folder: The model directory.
        """

        def load(runtime: Runtime) -> Graph:
            bf16 = runtime == "openvino" and self.precision == "bf16"
            precision: GraphPrecision = "bf16" if bf16 else "fp32"
            return Graph(folder / GRAPH_DIRECTORY, precision, runtime=runtime, maker="export tune")

        return cache(load)

    @property
    def engine_description(self) -> str:
        """Description of the engines, for messages."""
        names = []
        for runtime in self.runtimes:
            fp32 = runtime == "onnxruntime" and self.precision == "bf16"
            name = NAMES[runtime] + (" in fp32" if fp32 else "")
            cells = [cell for cell, engine in self.engines.items() if engine == runtime]
            if len(cells) == len(self.engines):
                return name
            names.append(f"{name} for {', '.join(cells)}")
        return ", ".join([*names, "else packed batches" if names else "packed batches"])


def cell(lengths: Sequence[int]) -> str:
    """Return the nearest count of `COUNTS` and whether texts are short or long, such as "4 short".

    Args:
        lengths: Number of tokens of each text.
    """
    count = len(lengths)
    nearest = min(COUNTS, key=lambda timed: abs(math.log(timed / max(count, 1))))
    long = sum(lengths) > SHORT_TEXT_TOKENS * count
    return f"{nearest} {'long' if long else 'short'}"


def versions() -> dict[str, str]:
    """Return the versions of the installed packages of `VERSIONS`."""
    # Imported here, because it is slow and only needed by tuned models.
    import importlib.metadata

    installed = {}
    for name in VERSIONS:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def weights_of(folder: Path) -> str:
    """Return a hash of all files that affect the embeddings of a model directory.

    It includes checkpoints of the run, and the base model of an adapter.

    Args:
        folder: The model directory.
    """
    digest = hashlib.sha256()
    if format_of(folder) == "adapter":
        # Imported here, because it requires torch.
        from bertkit.checkpoint.adapter import base_of

        digest.update(f"{weights_of(base_of(folder))}\n".encode())
    for path in sorted({path for kind in HASHED for path in folder.rglob(kind)}):
        name = path.relative_to(folder)
        if name.parts[0] != GRAPH_DIRECTORY:
            digest.update(f"{name} {sha256(path)}\n".encode())
    return digest.hexdigest()


def processor() -> str:
    """Return the name of the processor."""
    named = (line for line in cpuinfo().splitlines() if line.startswith("model name"))
    name = next(named, "").partition(":")[2].strip()
    return name or platform.processor() or platform.machine()


def processor_and_instructions() -> str:
    """Return the name of the processor, and its instructions that affect the speed.

    In virtual machines, different processors can have the same name.
    """
    found = [flag for flag in INSTRUCTIONS if re.search(rf"\b{flag}\b", cpuinfo())]
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    return " ".join([processor(), *found, *([f"at most {limit}"] if limit else [])])


def read_tuned(folder: Path) -> Tuned | None:
    """Return the tuning result of this machine, if versions and weights have not changed.

    If a result exists but cannot be used, a message is logged.

    Args:
        folder: The model directory.

    Raises:
        CheckpointError: If the file is damaged.
    """
    here, stored = (processor_and_instructions(), thread_limit()), records(folder)
    record = next((t for t in stored if (t.processor, t.cores) == here), None)
    if record is None:
        reason = "the machine, its cores or OMP_NUM_THREADS differ" if stored else ""
    elif record.versions != versions():
        reason = "other versions of " + " and ".join(
            name for name in VERSIONS if record.versions.get(name) != versions().get(name)
        )
    else:
        reason = "" if record.weights == weights_of(folder) else "other weights or settings"
    if reason:
        say(f"{folder / FILE}: the tuning is not used ({reason}); run `bertkit export tune` again")
        return None
    return record


def write_tuned(folder: Path, tuned: Tuned) -> None:
    """Store the tuning result of this machine.

    It replaces an older result of the machine, and results of other machines that use a graph,
    because the directory has only one graph.

    Args:
        folder: The model directory.
        tuned: The result.
    """
    here = tuned.processor, tuned.cores
    others = [t for t in records(folder) if (t.processor, t.cores) != here and not t.runtimes]
    write_json(folder / FILE, msgspec.to_builtins([*others, tuned]))


def records(folder: Path) -> list[Tuned]:
    """Return the tuning results of all machines.

    Args:
        folder: The model directory.

    Raises:
        CheckpointError: If the file is damaged.
    """
    try:
        rows = read_json(folder / FILE, CheckpointError, "remove it")
        return msgspec.convert(rows, type=list[Tuned])
    except FileNotFoundError:
        return []
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{folder / FILE}: damaged ({error}); remove it") from None
