"""Measure two ways of doing the same work in turn; keep the result with the machine it is from."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Literal, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from bertkit.checkpoint.tuned import processor
from bertkit.storage import write_json

Found = TypeVar("Found")

RESULTS = Path(__file__).parent / "results"

PACKAGES = (
    "bertkit",
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "transformers",
    "sentence-transformers",
    "datasets",
    "onnxruntime",
    "openvino",
    "lancedb",
    "faiss-cpu",
    "accelerate",
)
"""Packages whose versions belong to a result, where they are installed."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. `ratio` says how many times better ours is, so `ratio >= target` is good.

    Units: ours and peer in `unit`; ratio and target have none.
    """

    what: str
    ours: float
    peer: float
    peer_name: str
    unit: str
    ratio: float
    target: float
    holds: bool


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure depends on besides the code."""

    cpu: str
    cores: int
    memory_gib: float
    gpu: str | None
    system: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One file in `results/`."""

    name: str
    date: str
    machine: Machine
    versions: dict[str, str]
    rows: list[Row]


def row(
    what: str,
    ours: float,
    peer: float,
    *,
    peer_name: str,
    unit: str,
    target: float,
    better: Literal["higher", "lower"],
) -> Row:
    """A row from two figures in the same unit; a limit to keep is a peer with target 1.

    The ratio is ours / peer where higher is better (tokens/s, cosine) and peer / ours where lower
    is better (s, bytes/token): at or above the target is always good.
    """
    ratio = ours / peer if better == "higher" else peer / ours
    return Row(
        what=what,
        ours=ours,
        peer=peer,
        peer_name=peer_name,
        unit=unit,
        ratio=ratio,
        target=target,
        holds=ratio >= target,
    )


def compare(
    what: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    peer_name: str,
    unit: str,
    work: float | tuple[float, float] | None,
    target: float,
    repeats: int = 3,
) -> Row:
    """Time ours and peer in turn (A B A B …) after one unmeasured call of each; medians count.

    `work` is what one call gets done, in the unit before "/s": one number for both sides, or
    (ours, peer) where a call does more on one side. The row then holds rates, and its ratio is
    our rate over the peer's. With `work=None` the row holds seconds a call (unit "s"), where
    lower is better, and its ratio is the peer's seconds over ours.
    """
    ours()
    peer()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for call, kept in zip((ours, peer), times, strict=True):
            start = time.perf_counter()
            call()
            kept.append(time.perf_counter() - start)
    a, b = (median(kept) for kept in times)
    if work is None:
        return row(what, a, b, peer_name=peer_name, unit=unit, target=target, better="lower")
    done = work if isinstance(work, tuple) else (work, work)
    return row(
        what,
        done[0] / a,
        done[1] / b,
        peer_name=peer_name,
        unit=unit,
        target=target,
        better="higher",
    )


def apart(call: Callable[..., Found], *given: object) -> Found:
    """What a function of a module returns, called in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(call, *given).result()


def milliseconds(
    call: Callable[[str], object], queries: Sequence[str], *, warm: int
) -> list[float]:
    """How long each query takes, after the first `warm` of them, which do not count."""
    found = []
    for query in [*queries[:warm], *queries]:
        start = time.perf_counter()
        call(query)
        found.append((time.perf_counter() - start) * 1000)
    return found[-len(queries) :]


def write(name: str, rows: Sequence[Row], *, folder: Path = RESULTS) -> Path:
    """Keep the rows as `results/<name>.json` with machine, versions and date, and print them."""
    result = Result(
        name=name,
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        machine=machine(),
        versions=versions(),
        rows=list(rows),
    )
    path = folder / f"{name}.json"
    write_json(path, msgspec.to_builtins(result))
    show(name, rows)
    return path


def show(name: str, rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    table = Table(title=name, title_justify="left")
    table.add_column("what")
    table.add_column("peer")
    for heading in ("ours", "peer's", "unit", "ratio", "target"):
        table.add_column(heading, justify="right")
    table.add_column("holds")
    for r in rows:
        table.add_row(
            r.what,
            r.peer_name,
            short(r.ours),
            short(r.peer),
            r.unit,
            f"{short(r.ratio)}×",
            f"≥ {r.target:g}×",
            "[green]yes[/]" if r.holds else "[red]no[/]",
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def short(value: float) -> str:
    """A figure with the digits a reader wants: 18,058 but 2.31, 0.9999 and 2.6e-07."""
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


def machine() -> Machine:
    """This machine."""
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        cpu=processor(),
        cores=os.cpu_count() or 1,
        memory_gib=round(gibibytes, 1),
        gpu=_gpu(),
        system=f"{platform.system()} {platform.machine()}",
    )


def versions() -> dict[str, str]:
    """Python's version and those of the packages that are installed here."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpu() -> str | None:
    torch = sys.modules.get("torch")  # a benchmark without torch must not load it to be described
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())
