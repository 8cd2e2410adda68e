"""Tuning results in a model directory, one for each machine. Reading them does not need torch."""

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
from bertkit.checkpoint.hub import PYTORCH_FILES
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
"""Subdirectory that contains the graph, which both runtimes can load."""

EngineName = Literal["packed", "onnxruntime", "openvino"]
"""Name of an engine: packed is bertkit's engine with packed batches, and the others are runtimes of
the graph."""

NAMES: dict[str, str] = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}

COUNTS = (1, 4, 64)
"""Numbers of texts to time together: one, few and many."""

SHORT_TEXT_TOKENS = 48
"""Texts count as short if their mean number of tokens is at most this."""

MAX_TOKENS = 1 << 17
"""Maximum number of tokens in a batch."""

HASHED = (
    "*.safetensors",
    *PYTORCH_FILES,
    "*config*.json",
    "modules.json",
    "tokenizer.json",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.spm",
    "*.model",
)
"""Patterns of files that contain weights, settings or tokenizers."""

INSTRUCTIONS = ("avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "bf16")
"""Processor instructions that affect the speed, by their names in Linux."""

VERSIONS = ("bertkit", "torch", "onnxruntime", "openvino")
"""Packages whose versions can affect the measurements."""


class Tuned(Settings, frozen=True):
    """The fastest settings of a model on one machine.

    Attributes:
        processor: Name of the processor and the instructions that affect its speed.
        cores: Number of cores that threads could use.
        precision: Precision of the computation.
        max_batch_tokens: Maximum number of tokens in a batch.
        threads: Number of threads.
        texts_per_second: Measured speed in texts per second.
        engines: Fastest engine for each kind of input, as named by `cell`. Default: bertkit's
            engine.
        pooling: Pooling of the embeddings.
        versions: Versions of the packages with which the settings were measured.
        weights: Hash of the model files with which the settings were measured.
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
        """Return the fastest runtime for some texts, or None if bertkit's engine is faster.

        Args:
            lengths: Number of tokens of each text.
        """
        engine = self.engines.get(cell(lengths), "packed")
        return None if engine == "packed" else engine

    @property
    def runtimes(self) -> list[Runtime]:
        """Runtimes that are fastest for some texts."""
        return sorted({engine for engine in self.engines.values() if engine != "packed"})

    def graphs(self, folder: Path) -> Callable[[Runtime], Graph]:
        """Return a function that loads the graph in a runtime, only once for each runtime.

        If the precision is bf16, OpenVINO computes in bf16. ONNX Runtime computes in fp32, because
        it does not support bf16.

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
        """Description of the engines, to show in messages."""
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
    """Name the kind of input, such as "4 short": the nearest number in `COUNTS`, and short or long.

    Args:
        lengths: Number of tokens of each text.
    """
    count = len(lengths)
    nearest = min(COUNTS, key=lambda timed: abs(math.log(timed / max(count, 1))))
    long = sum(lengths) > SHORT_TEXT_TOKENS * count
    return f"{nearest} {'long' if long else 'short'}"


def versions() -> dict[str, str]:
    """Return the versions of those packages in `VERSIONS` that are installed."""
    # Imported here, because importing it is slow and only tuned models need it.
    import importlib.metadata

    installed = {}
    for name in VERSIONS:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def weights_of(folder: Path) -> str:
    """Compute a hash of all files in a model directory that affect the embeddings.

    The hash includes the checkpoints of a run, and the base model of an adapter.

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

    The name alone is not enough, because different processors can have the same name in virtual
    machines.
    """
    found = [flag for flag in INSTRUCTIONS if re.search(rf"\b{flag}\b", cpuinfo())]
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    return " ".join([processor(), *found, *([f"at most {limit}"] if limit else [])])


def read_tuned(folder: Path) -> Tuned | None:
    """Return the tuning result of this machine, or None if there is no valid one.

    A result is not valid if the machine, the versions of packages or the weights have changed
    since. A message then states the reason.

    Args:
        folder: The model directory.

    Raises:
        CheckpointError: If the file is damaged.
    """
    here, stored = (processor_and_instructions(), thread_limit()), records(folder)
    record = next((t for t in stored if (t.processor, t.cores) == here), None)
    if record is None:
        reason = "another processor, number of cores or OMP_NUM_THREADS" if stored else ""
    elif record.versions != versions():
        reason = "other versions of " + " and ".join(
            name for name in VERSIONS if record.versions.get(name) != versions().get(name)
        )
    else:
        reason = "" if record.weights == weights_of(folder) else "other weights or settings"
    if reason:
        say(
            f"{folder / FILE}: the stored settings are not used, because they were measured with "
            f"{reason}; run `bertkit export tune` again"
        )
        return None
    return record


def write_tuned(folder: Path, tuned: Tuned) -> None:
    """Store the tuning result of this machine.

    The result replaces an older result of this machine. It also replaces results of other machines
    that use a graph, because the directory has only one graph.

    Args:
        folder: The model directory.
        tuned: The result.
    """
    here = tuned.processor, tuned.cores
    others = [t for t in records(folder) if (t.processor, t.cores) != here and not t.runtimes]
    write_json(folder / FILE, msgspec.to_builtins([*others, tuned]))


def records(folder: Path) -> list[Tuned]:
    """Read the tuning results of all machines.

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
        raise CheckpointError(f"{folder / FILE}: damaged ({error}); delete this file") from None
