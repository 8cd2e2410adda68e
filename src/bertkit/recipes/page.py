"""Reports: one self-contained HTML file, readable in light and dark, and bars as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bertkit.storage import write_text, writing

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c1e21; background: #fff; }
h1, h2 { line-height: 1.2; } svg { max-width: 100%; height: auto; margin: 1rem 0; }
table { border-collapse: collapse; } td, th { padding: .3rem .8rem; text-align: left;
  border-bottom: 1px solid #8884; vertical-align: top; }
td { max-width: 40rem; overflow-wrap: break-word; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) { body { color: #e4e6eb; background: #18191a; }
  svg { background: #fff; border-radius: 6px; } h3 { color: #aaa; } }
"""


def write_page(path: Path, title: str, body: Iterable[str], *, style: str = "") -> None:
    """Write a page of ready HTML; `style` is CSS that it needs beside the common one."""
    write_text(
        path,
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style>\n"
        + "\n".join(body)
        + "\n</html>\n",
    )


def table(rows: Iterable[Sequence[str | float]], head: Sequence[str] = ()) -> str:
    """A table of texts and numbers; numbers stand to the right with three decimals."""
    top = "".join(f"<th>{escape(name)}" for name in head)
    lines = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}" for row in rows)
    return f"<table>{f'<tr>{top}' if top else ''}{lines}</table>"


def _cell(cell: str | float) -> str:
    return f"<td>{escape(cell)}" if isinstance(cell, str) else f'<td class="n">{cell:.3f}'


def bars(path: Path, scores: Mapping[str, Mapping[str, Any]], metric: str) -> None:
    """Draw a horizontal bar for each name, the first on top: the mean, with its standard deviation
    and a dot for each seed, where `metrics.spread` or the caller knows them."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names, found = list(scores), list(scores.values())
    figure = Figure(figsize=(8, 0.9 + 0.45 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.barh(names, [row["mean"] for row in found], color="#8fb3e8", height=0.65)
    for place, row in enumerate(found):
        ends = [row["mean"], 0.0]
        if row["sd"]:
            each = row.get("each", ())
            axes.errorbar(row["mean"], place, xerr=row["sd"], color="#1c1e21", capsize=4)
            axes.plot(each, [place] * len(each), "o", color="#c2410c", markersize=4)
            ends += [row["mean"] + row["sd"], *each]
        axes.annotate(
            plus_minus(row),
            (max(ends), place),
            (6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.invert_yaxis()
    axes.margins(x=0.25 if found[0]["sd"] else 0.12)
    axes.set_xlabel(metric)
    axes.spines[["top", "right"]].set_visible(False)
    # with a salt, the same picture is the same bytes
    with writing(path) as partial, rc_context({"svg.hashsalt": "bertkit"}):
        figure.savefig(partial, format="svg", metadata={"Date": None, "Creator": None})


def plus_minus(found: Mapping[str, Any]) -> str:
    """What `metrics.spread` gives, as people write it."""
    return f"{found['mean']:.3f}" + (f" ± {found['sd']:.3f}" if found["sd"] else "")
