"""Rows of results, stored in a file per benchmark and processor class."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table

from bertkit.extensions.export.tuning_record import processor
from bertkit.storage import write_json
from bertkit.threads import cores

RESULTS = Path(__file__).parent / "results"
"""Published results in the repository: a directory per processor class, a file per benchmark."""

LOCAL = Path(__file__).parent / "local"
"""Results of this machine, with the same layout. Git ignores the directory."""

LIMIT = "limit"
"""Baseline name of rows that are compared with a fixed limit."""

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
"""Packages whose versions are stored with a result, if they are installed."""


class Setup(msgspec.Struct, frozen=True):
    """Settings of one side."""

    settings: str = ""
    fill: float | None = None
    """Fraction of the computed tokens that are not padding; None without batches."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of bertkit and a baseline.

    `ours` and `peer` have the unit `unit`. `ratio` is the factor by which bertkit is better, so the
    target is reached if `ratio >= target`.
    """

    what: str
    ours: float
    peer: float
    peer_name: str
    unit: str
    ratio: float
    target: float
    holds: bool
    ours_how: Setup
    peer_how: Setup
    date: str

    @property
    def key(self) -> tuple[str, str]:
        """Description and baseline, which identify a row in its file."""
        return self.what, self.peer_name


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Hardware and system on which a result was measured."""

    cpu: str
    cores: int
    threads: int
    memory_gib: float
    gpu: str | None
    system: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a file of results."""

    name: str
    processor: str
    """Processor class, which is the name of the directory."""
    machine: Machine
    versions: dict[str, str]
    rows: list[Row]
    notes: list[str]
    """Rows that were skipped, with the reason."""


def row(
    title: str,
    ours: float,
    peer: float,
    *,
    peer_name: str,
    unit: str,
    target: float,
    better: Literal["higher", "lower"],
    setups: tuple[Setup, Setup] | None = None,
) -> Row:
    """Build a row from two values with the same unit.

    The ratio is ours / peer if higher values are better (tokens/s, cosine similarity), and peer /
    ours if lower values are better (s, bytes/token). A limit is a baseline with the target 1.
    `setups` contains the settings of bertkit and of the baseline.
    """
    ratio = ours / peer if better == "higher" else peer / ours
    bertkit_setup, peer_setup = setups or (Setup(), Setup())
    return Row(
        what=title,
        ours=ours,
        peer=peer,
        peer_name=peer_name,
        unit=unit,
        ratio=ratio,
        target=target,
        holds=ratio >= target,
        ours_how=bertkit_setup,
        peer_how=peer_setup,
        date=now(),
    )


class Book:
    """Stored rows of a benchmark on this processor class.

    Each row is written when it is measured, and not measured again. A file from another machine,
    with other versions, or with another number of threads is renamed and not read.

    Args:
        name: Name of the benchmark.
        quick: Whether to neither read nor write the file.
        forget: Function of a stored row's key that returns whether to measure the row again.
        only: Text that the description of a row must contain.
        folder: Directory of the results. Default: `LOCAL`.
    """

    def __init__(
        self,
        name: str,
        *,
        quick: bool = False,
        forget: Callable[[str, str], bool] = lambda title, peer: False,
        only: str = "",
        folder: Path | None = None,
    ) -> None:
        self.name, self.quick, self.only = name, quick, only
        self.path = (folder or LOCAL) / processor_class() / f"{name}.json"
        self.rows: dict[tuple[str, str], Row] = {}
        self.notes: list[str] = []
        if quick or not self.path.exists():
            return
        result = msgspec.json.decode(self.path.read_bytes(), type=Result)
        if not is_comparable(result.machine, result.versions):
            old = self.path.with_suffix(".old.json")
            self.path.replace(old)
            progress(
                f"{name}: measuring again, because machine, versions or number of threads differ; "
                f"the earlier results are in {old}"
            )
            return
        self.rows = {r.key: r for r in result.rows if not forget(*r.key)}
        self.notes = result.notes if self.rows else []

    def needs(self, title: str, *peers: str) -> bool:
        """Return whether a requested row is missing, and print which one."""
        missing = [p for p in peers if (title, p) not in self.rows and matches(self.only, title, p)]
        if missing:
            progress(f"{self.name}: measuring {title}, against {', '.join(missing)}")
        return bool(missing)

    def add(self, *rows: Row) -> None:
        """Print and store the rows. They replace rows with the same keys."""
        for r in rows:
            progress(f"{self.name}: {r.what}, against {r.peer_name}: {short(r.ratio)}×")
        self.rows |= {r.key: r for r in rows}
        if rows and not self.quick:
            self._write()

    def leave_out(self, note: str) -> None:
        """Add a note about a row that is skipped, with the reason."""
        if note not in self.notes:
            self.notes.append(note)
            if not self.quick and self.rows:
                self._write()

    def close(self) -> None:
        """Print the table of all rows."""
        show(f"{self.name}, quick" if self.quick else self.name, [*self.rows.values()], self.notes)

    def _write(self) -> None:
        result = Result(
            name=self.name,
            processor=processor_class(),
            machine=machine(),
            versions=versions(),
            rows=list(self.rows.values()),
            notes=self.notes,
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, msgspec.to_builtins(result))


def matches(only: str, title: str, peer: str) -> bool:
    """Return whether the description of a row contains a text."""
    return only.lower() in f"{title}, {peer}".lower()


def is_comparable(measured: Machine, packages: dict[str, str]) -> bool:
    """Return whether results were measured on this machine, with these threads and versions."""
    here, installed = machine(), versions()
    same = (measured.cpu, measured.cores, measured.threads) == (here.cpu, here.cores, here.threads)
    # Packages that were installed since then do not matter.
    return same and packages == {name: installed.get(name) for name in packages}


def progress(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def show(title: str, rows: Sequence[Row], notes: Sequence[str] = ()) -> None:
    """Print the rows as a table, and the notes about skipped rows."""
    table = Table(title=f"{title} · {processor_class()}", title_justify="left")
    table.add_column("what")
    table.add_column("peer")
    for heading in ("bertkit", "peer's", "unit", "ratio", "target"):
        table.add_column(heading, justify="right")
    table.add_column("reached")
    table.add_column("bertkit: settings")
    table.add_column("peer: settings")
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
            describe(r.ours_how),
            describe(r.peer_how),
        )
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(table)
    for note in notes:
        console.print(note)


def describe(setup: Setup) -> str:
    """Format settings and fill."""
    fill = [] if setup.fill is None else [f"fill {setup.fill:.2f}"]
    return "; ".join([setup.settings, *fill] if setup.settings else fill)


def short(value: float) -> str:
    """Format a value with few digits, such as 18,058, 2.31, 0.9999 and 2.6e-07."""
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


# ---- This machine


def processor_class(name: str | None = None, flags: str | None = None) -> str:
    """Return the processor's vendor, model and vector instructions (amd-epyc-avx512-vnni-bf16).

    If ONEDNN_MAX_CPU_ISA disables some instructions, the name ends with its value.
    """
    plain = re.sub(
        r"\((r|tm)\)|@.*|\bcpu\b|\b\d+-core\b|\bprocessor\b", " ", (name or processor()).lower()
    )
    supported = set((_flags() if flags is None else flags).split())
    found = [short for short, spellings in INSTRUCTIONS.items() if supported & spellings]
    if "avx512" in found:
        found.remove("avx2") if "avx2" in found else None
    most = os.environ.get("ONEDNN_MAX_CPU_ISA")
    words = [*re.findall(r"[a-z0-9]+", plain), *found, *(["at-most", most.lower()] if most else [])]
    return "-".join(words)


INSTRUCTIONS = {
    "avx2": {"avx2"},
    "avx512": {"avx512f"},
    "vnni": {"avx512_vnni", "avx_vnni"},
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "amx": {"amx_tile"},
}
"""Names of instructions, with the flags of the Linux kernel."""


def _flags() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")


def machine() -> Machine:
    """Return the description of this machine."""
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        cpu=processor(),
        cores=os.cpu_count() or 1,
        threads=int(os.environ.get("OMP_NUM_THREADS") or cores()),
        memory_gib=round(gibibytes, 1),
        gpu=_gpu(),
        system=f"{platform.system()} {platform.machine()}",
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpu() -> str | None:
    torch = sys.modules.get("torch")  # Benchmarks without torch must not import it.
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())
