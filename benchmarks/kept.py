"""What was measured: rows, and a file of them for each benchmark and each class of processor."""

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
"""Published results, which are committed: a directory per processor class, a file per benchmark."""

LOCAL = Path(__file__).parent / "local"
"""Results of this machine, in the same layout. Git ignores the directory."""

LIMIT = "limit"
"""The name of a peer that is a number to keep, and no program."""

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


class How(msgspec.Struct, frozen=True):
    """How one side computed."""

    settings: str = ""
    fill: float | None = None
    """Real tokens of those it computed, padding included; None where it reads no batches."""


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
    ours_how: How
    peer_how: How
    date: str

    @property
    def key(self) -> tuple[str, str]:
        """What tells a row from the others of its file."""
        return self.what, self.peer_name


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure depends on besides the code."""

    cpu: str
    cores: int
    threads: int
    memory_gib: float
    gpu: str | None
    system: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One file of `results/`."""

    name: str
    processor: str
    """The class of processor, which is its folder's name."""
    machine: Machine
    versions: dict[str, str]
    rows: list[Row]
    notes: list[str]
    """Rows that are left out, and why."""


def row(
    what: str,
    ours: float,
    peer: float,
    *,
    peer_name: str,
    unit: str,
    target: float,
    better: Literal["higher", "lower"],
    how: tuple[How, How] | None = None,
) -> Row:
    """A row from two figures in the same unit; a limit to keep is a peer with target 1.

    The ratio is ours / peer where higher is better (tokens/s, cosine) and peer / ours where lower
    is better (s, bytes/token): at or above the target is always good. `how` is ours and the peer's.
    """
    ratio = ours / peer if better == "higher" else peer / ours
    ours_how, peer_how = how or (How(), How())
    return Row(
        what=what,
        ours=ours,
        peer=peer,
        peer_name=peer_name,
        unit=unit,
        ratio=ratio,
        target=target,
        holds=ratio >= target,
        ours_how=ours_how,
        peer_how=peer_how,
        date=now(),
    )


class Book:
    """The rows of a benchmark on this class of processor: written as they come, measured once.

    `only` takes the rows whose description holds these letters; `forget` says of a kept row, by
    its key, whether to measure it again; a `quick` book neither reads nor writes. A file of
    another machine, other versions, or another number of threads is renamed and not read.
    """

    def __init__(
        self,
        name: str,
        *,
        quick: bool = False,
        forget: Callable[[str, str], bool] = lambda what, peer: False,
        only: str = "",
        folder: Path | None = None,
    ) -> None:
        self.name, self.quick, self.only = name, quick, only
        self.path = (folder or LOCAL) / processor_class() / f"{name}.json"
        self.rows: dict[tuple[str, str], Row] = {}
        self.notes: list[str] = []
        if quick or not self.path.exists():
            return
        kept = msgspec.json.decode(self.path.read_bytes(), type=Result)
        if not is_comparable(kept.machine, kept.versions):
            old = self.path.with_suffix(".old.json")
            self.path.replace(old)
            progress(
                f"{name}: measuring again, since earlier results are of another machine, of other "
                f"versions, or of another number of threads; they are in {old}"
            )
            return
        self.rows = {r.key: r for r in kept.rows if not forget(*r.key)}
        self.notes = kept.notes if self.rows else []

    def wanted(self, what: str, *peers: str) -> bool:
        """Return whether a requested row is missing, and print which one."""
        missing = [p for p in peers if (what, p) not in self.rows and self._asked(what, p)]
        if missing:
            progress(f"{self.name}: measuring {what}, against {', '.join(missing)}")
        return bool(missing)

    def add(self, *rows: Row) -> None:
        """Print and keep the rows. They replace rows with the same keys."""
        for r in rows:
            progress(f"{self.name}: {r.what}, against {r.peer_name}: {short(r.ratio)}×")
        self.rows |= {r.key: r for r in rows}
        if rows and not self.quick:
            self._write()

    def leave_out(self, note: str) -> None:
        """Say that there is no such row here, and why."""
        if note not in self.notes:
            self.notes.append(note)
            if not self.quick and self.rows:
                self._write()

    def close(self) -> None:
        """Print what there is."""
        show(f"{self.name}, quick" if self.quick else self.name, [*self.rows.values()], self.notes)

    def _asked(self, what: str, peer: str) -> bool:
        return asked(self.only, what, peer)

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


def asked(only: str, what: str, peer: str) -> bool:
    """Whether the description of a row holds these letters."""
    return only.lower() in f"{what}, {peer}".lower()


def is_comparable(there: Machine, packages: dict[str, str]) -> bool:
    """Return whether results were measured on this machine, with these threads and versions."""
    here, installed = machine(), versions()
    same = (there.cpu, there.cores, there.threads) == (here.cpu, here.cores, here.threads)
    # Packages that were installed since then do not matter.
    return same and packages == {name: installed.get(name) for name in packages}


def progress(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def show(title: str, rows: Sequence[Row], notes: Sequence[str] = ()) -> None:
    """Print the rows as a table, and below it what is left out."""
    table = Table(title=f"{title} · {processor_class()}", title_justify="left")
    table.add_column("what")
    table.add_column("peer")
    for heading in ("ours", "peer's", "unit", "ratio", "target"):
        table.add_column(heading, justify="right")
    table.add_column("holds")
    table.add_column("ours: how")
    table.add_column("peer: how")
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
            told(r.ours_how),
            told(r.peer_how),
        )
    console = Console(width=None if sys.stdout.isatty() else 180)
    console.print(table)
    for note in notes:
        console.print(note)


def told(how: How) -> str:
    """Settings and fill in words."""
    fill = [] if how.fill is None else [f"fill {how.fill:.2f}"]
    return "; ".join([how.settings, *fill] if how.settings else fill)


def short(value: float) -> str:
    """A figure with the digits a reader wants: 18,058 but 2.31, 0.9999 and 2.6e-07."""
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.2f}"


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


# ---- this machine


def processor_class(name: str | None = None, flags: str | None = None) -> str:
    """This processor's maker, model and instructions for vectors, as in amd-epyc-avx512-vnni-bf16.

    Where ONEDNN_MAX_CPU_ISA hides some of them, its value stands at the end.
    """
    plain = re.sub(
        r"\((r|tm)\)|@.*|\bcpu\b|\b\d+-core\b|\bprocessor\b", " ", (name or processor()).lower()
    )
    known = set((_flags() if flags is None else flags).split())
    found = [short for short, spellings in INSTRUCTIONS.items() if known & spellings]
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
"""By the kernel's names of them."""


def _flags() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")


def machine() -> Machine:
    """This machine."""
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
