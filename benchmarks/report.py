"""All kept results as one page that stands by itself: `results/report.html`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

import msgspec

from benchmarks.harness import Options
from benchmarks.kept import LIMIT, RESULTS, Result, Row, short, told
from bertkit.storage import write_text

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; border-bottom: 1px solid #ddd; text-align: left }
.number { text-align: right } .no { color: #b00020; font-weight: 600 }
.about { color: #666; font-size: .9rem } svg { max-width: 100%; height: auto }
"""
OURS, SHORT_OF, GOAL = "#1f6f8b", "#b00020", "#222222"


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
    parts = "\n".join(_section(result) for result in results)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>bertkit: benchmarks</title>\n<style>{STYLE}</style>\n"
        "<h1>bertkit beside its peers</h1>\n"
        "<p>Both sides were measured in turn in the same run; a ratio says how many times better "
        "bertkit is, whichever way the unit counts.</p>\n"
        f"{parts or '<p>No benchmark has been run yet.</p>'}\n</html>\n"
    )


def _section(result: Result) -> str:
    machine = result.machine
    dates = sorted({row.date[:10] for row in result.rows})
    about = [" to ".join(dict.fromkeys((dates[0], dates[-1])))]
    about += [machine.cpu, f"{machine.cores} cores", f"{machine.threads} threads"]
    about += [f"{machine.memory_gib:g} GiB"]
    about += [machine.gpu] if machine.gpu else []
    about += [f"{name} {version}" for name, version in result.versions.items()]
    compared = [row for row in result.rows if row.peer_name != LIMIT]
    notes = "".join(f'<p class="about">{escape(note)}</p>\n' for note in result.notes)
    return (
        f"<h2>{escape(result.name)} · {escape(result.processor)}</h2>\n"
        f'<p class="about">{escape(" · ".join(about))}</p>\n'
        f"{picture(compared, salt=result.name) if compared else ''}\n"
        f"{_table(result.rows)}\n{notes}"
    )


def _table(rows: Sequence[Row]) -> str:
    heads = "".join(
        f'<th class="{"number" if number else "text"}">{name}</th>'
        for name, number in (
            ("what", False),
            ("peer", False),
            ("ours", True),
            ("peer's", True),
            ("unit", False),
            ("ratio", True),
            ("target", True),
            ("holds", False),
            ("ours: how", False),
            ("peer: how", False),
        )
    )
    return f"<table>\n<tr>{heads}</tr>\n{''.join(map(_line, rows))}</table>"


def _line(row: Row) -> str:
    holds = "yes" if row.holds else "no"
    return (
        f"<tr><td>{escape(row.what)}</td><td>{escape(row.peer_name)}</td>"
        f'<td class="number">{short(row.ours)}</td><td class="number">{short(row.peer)}</td>'
        f"<td>{escape(row.unit)}</td>"
        f'<td class="number">{short(row.ratio)}×</td><td class="number">≥ {row.target:g}×</td>'
        f'<td class="{holds}">{holds}</td>'
        f"<td>{escape(told(row.ours_how))}</td><td>{escape(told(row.peer_how))}</td></tr>\n"
    )


def picture(rows: Sequence[Row], *, salt: str) -> str:
    """Bars of the ratios as inline SVG: 1 is the peer, a mark is the target."""
    import matplotlib
    from matplotlib.figure import Figure

    places = range(len(rows))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.size": 10}):
        figure = Figure(figsize=(9, 0.7 + 0.6 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        axes.barh(
            places,
            [row.ratio for row in rows],
            color=[OURS if row.holds else SHORT_OF for row in rows],
            height=0.55,
        )
        for place, row in zip(places, rows, strict=True):
            axes.plot([row.target] * 2, [place - 0.38, place + 0.38], color=GOAL, linewidth=2)
            axes.annotate(
                f"{short(row.ours)} beside {short(row.peer)} {row.unit}",
                (max(row.ratio, row.target), place),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
            )
        axes.set_yticks(places, [f"{row.what}\n({row.peer_name})" for row in rows])
        axes.invert_yaxis()
        axes.axvline(1, color="#888888", linewidth=1, linestyle=":")
        axes.set_xlim(0, 1.5 * max(max(row.ratio, row.target) for row in rows))
        axes.set_xlabel("times better than the peer (dotted: the peer; mark: the target)")
        axes.spines[["top", "right"]].set_visible(False)
        svg = io.StringIO()
        unsaid = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", metadata=unsaid)
    return svg.getvalue()[svg.getvalue().index("<svg") :]
