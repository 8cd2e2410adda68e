"""All kept results as one page that stands by itself: `results/report.html`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from markupsafe import Markup

from benchmarks.harness import Options
from benchmarks.kept import LIMIT, RESULTS, Result, Row, short, told
from bertkit.storage import write_text
from bertkit.view.chart import Row as Bar
from bertkit.view.chart import bars
from bertkit.view.page import render

TEMPLATE = Path(__file__).with_suffix(".html")


def main(options: Options) -> None:
    results = read(RESULTS)
    path = RESULTS / "report.html"
    write_text(path, page(results))
    print(f"{path}: {len(results)} benchmarks, {sum(len(r.rows) for r in results)} rows")


def read(folder: Path) -> list[Result]:
    """The results kept in a folder, by name, those of several processors side by side."""
    found = [
        msgspec.json.decode(path.read_bytes(), type=Result)
        for path in sorted(folder.glob("*/*.json"))
    ]
    return sorted(found, key=lambda result: (result.name, result.processor))


def page(results: Sequence[Result]) -> str:
    """One page: a picture and a table for each benchmark."""
    return render(
        TEMPLATE,
        results=results,
        about=about,
        picture=picture,
        short=short,
        told=told,
        limit=LIMIT,
    )


def about(result: Result) -> list[str]:
    """When and on which machine the rows were measured, and with what."""
    machine = result.machine
    dates = sorted({row.date[:10] for row in result.rows})
    return [
        " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        machine.cpu,
        f"{machine.cores} cores",
        f"{machine.threads} threads",
        f"{machine.memory_gib:g} GiB",
        *([machine.gpu] if machine.gpu else []),
        *(f"{name} {version}" for name, version in result.versions.items()),
    ]


def picture(rows: Sequence[Row]) -> Markup:
    """Bars of the ratios: 1 is the peer, a mark is the target."""
    drawn = [
        Bar(
            row.what,
            row.ratio,
            f"{short(row.ours)} beside {short(row.peer)} {row.unit}",
            below=f"({row.peer_name})",
            mark=row.target,
            kind="" if row.holds else "short",
        )
        for row in rows
    ]
    return bars(drawn, x="times better than the peer (dotted: the peer; mark: the target)", peer=1)
