"""Clean text: files in, and out what is worth learning from, once each, with a report.

Memory does not grow with the text but for 40 bytes a document (`near_duplicates.Clusters`): a
gigabyte for the 25 million documents of 100 GB. Disk: what is kept, for a while nearly twice where
there is one file of input alone, and 130 bytes a document. Documents are numbered in the order of
the input, and every result follows from that alone, whatever the number of processes. Nothing is at
`out` before all is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
from rich.table import Table

from bertkit import storage
from bertkit.console import console
from bertkit.data.document_readers import BlankLines, Span, read
from bertkit.data.paths import files
from bertkit.data.workers import Unit, WorkerPool, plainly
from bertkit.errors import ConfigError, DataError, refuse_unknown
from bertkit.extensions.cleaning.cleaner import (
    FIRST,
    IS_EXACT,
    KEYS,
    STARTS,
    Cleaner,
    CleaningDirectories,
    CleaningRules,
    Count,
    Duplicates,
    Tally,
)
from bertkit.extensions.cleaning.languages import wanted
from bertkit.extensions.cleaning.near_duplicates import Clusters
from bertkit.extensions.cleaning.quality import FILTERS, Filter
from bertkit.progress import progress
from bertkit.recipes.prepare import divide, refuse_within
from bertkit.synonyms import check_keywords
from bertkit.threads import cores

MAX_FILE_BYTES = 256 << 20
"""Bytes of text that become a file at most."""


class CleaningReport(msgspec.Struct, frozen=True, kw_only=True):
    """What cleaning did: `read` is `kept`, what each rule `removed`, and what was `cut` from
    documents that stay.
    """

    read: Count
    kept: Count
    removed: dict[str, Count]
    cut: dict[str, Count]
    masked: dict[str, int]
    settings: CleaningRules


@check_keywords
def clean(
    texts: Sequence[Path | str],
    /,
    *,
    out: Path | str,
    filters: Sequence[Filter] = (),
    language: str | None = None,
    duplicates: Duplicates = "near",
    html: bool = True,
    mask: bool = True,
    removed: Path | str | None = None,
    text_column: str = "text",
    blank_lines: BlankLines = "paragraphs",
    processes: int | None = None,
) -> CleaningReport:
    """Clean text: filter, deduplicate, and remove HTML and personal data.

    Of each cluster of duplicates the first document stays. Several processes: see `prepare`.
    Returns: what was read, kept, removed by each rule, and cut; report.json has the same.
    Raises: ConfigError for settings and for an `out` in use, DataError for text that cannot be used
    or of which nothing is left, StorageError; nothing is then left behind.

    Args:
        texts: Files or folders of .txt, .jsonl or .parquet, also .gz.
        out: Output directory of .jsonl files, the input of `tokenizer train` and `prepare`.
        filters: Published rules for pages of the web: gopher-quality, gopher-repetition, c4.
        language: Keep this one alone, as en, or as en:0.65 with the least probability.
        duplicates: Which are removed: near ones too, exact ones, or none (keep).
        html: Whether to convert HTML to plain text: tags become line breaks or are removed.
        mask: Whether mail addresses and public IP addresses are replaced by examples.
        removed: A folder for what is removed, with the reason.
        text_column: The field of .jsonl rows, or column of .parquet, that holds the text.
        blank_lines: Whether a blank line of a .txt file ends a paragraph or a document.
        processes: How many work at once; by default one for each core.
    """
    out, removed = Path(out), None if removed is None else Path(removed)
    refuse_unknown("blank_lines", blank_lines, get_args(BlankLines))
    rules = _rules(filters, language, duplicates, html=html, mask=mask)
    _refuse(texts, out, removed)
    sources = files(texts)
    with plainly():
        for source in sources:  # a field of another name is seen before work begins
            whole = Span(source, 0, source.stat().st_size)
            next(read(whole, field=text_column, blank_lines=blank_lines), None)
    units = dict(enumerate(divide(sources, MAX_FILE_BYTES, whole=(".txt",))))
    with ExitStack() as stack:
        places = _places(stack, out, removed)
        cleaner = Cleaner(places, rules, field=text_column, blank_lines=blank_lines)
        tally = _run(cleaner, places, units, min(processes or cores(), len(units)))
        report = _report(tally, rules)
        if not report.kept.documents:
            worst = max(report.removed, key=lambda rule: report.removed[rule].documents)
            raise DataError(
                f"{sources[0]}: not one of {report.read.documents:,} documents was kept, most fell "
                f"to {worst!r}; nothing was written"
            )
        shutil.rmtree(places.work)
        storage.write_text(places.out / "report.json", _pretty(report))
    console().print(_table(report))
    return report


def _rules(
    filters: Sequence[Filter],
    language: str | None,
    duplicates: Duplicates,
    *,
    html: bool,
    mask: bool,
) -> CleaningRules:
    for name in filters:
        refuse_unknown("filters", name, FILTERS)
    refuse_unknown("duplicates", duplicates, KEYS)
    return CleaningRules(
        filters=tuple(name for name in FILTERS if name in filters),
        language=None if language is None else wanted(language),
        html=html,
        mask=mask,
        duplicates=duplicates,
    )


def _refuse(texts: Sequence[Path | str], out: Path, removed: Path | None) -> None:
    """Raises: ConfigError for folders in use, or within what is read or each other."""
    for folder, option in ((out, "--out"), (removed, "--removed")):
        if folder is not None:
            storage.refuse_used(folder, option=option)
            refuse_within(folder, texts, option)
    if removed is not None and (
        removed.resolve().is_relative_to(out.resolve())
        or out.resolve().is_relative_to(removed.resolve())
    ):
        raise ConfigError(f"{removed}: lies within --out, or --out in it; choose another --removed")


def _places(stack: ExitStack, out: Path, removed: Path | None) -> CleaningDirectories:
    """Folders that take their names when the stack closes well; `out` is the last."""
    for folder in (out, removed):
        if folder is not None and folder.parent.is_dir():
            storage.sweep(folder.parent)  # of runs that were killed
    partial = stack.enter_context(storage.new_folder(out))
    work = partial / ".work"
    work.mkdir()
    if removed is None:
        return CleaningDirectories(work, partial, None)
    return CleaningDirectories(work, partial, stack.enter_context(storage.new_folder(removed)))


def _run(
    cleaner: Cleaner, places: CleaningDirectories, units: dict[int, Unit], processes: int
) -> Tally:
    tallies: dict[int, Tally] = {}
    total = Tally()
    with WorkerPool(cleaner, processes) as pool, progress() as bar:
        size = sum(unit.bytes for unit in units.values())
        task = bar.add_task("filtering", total=size, note="")
        for number, message in pool.run("filter", units):
            if isinstance(message, Tally):
                tallies[number] = message
                bar.advance(task, units[number].bytes)
        for number in units:  # in their order, which is that of the report
            total.add(tallies[number])
        with plainly():
            _find_duplicates(places, [tallies[number].read.documents for number in units])
        task = bar.add_task("writing", total=size, note="")
        for number, message in pool.run("write", units):
            if isinstance(message, Tally):
                total.add(message)
                places.of_unit(number, "lines").unlink()
                bar.advance(task, units[number].bytes)
    return total


def _find_duplicates(places: CleaningDirectories, documents: list[int]) -> None:
    """Leave the files by which documents are written: see `cleaning.STARTS`."""
    keys = [np.load(places.of_unit(n, "npy"), mmap_mode="r") for n in range(len(documents))]
    clusters = Clusters(sum(documents))
    exact = np.zeros(len(clusters.first), bool)
    for kind in range(len(keys[0])):  # one at a time is in memory
        clusters.join(np.concatenate([of_unit[kind] for of_unit in keys]))
        if kind == 0:
            exact = clusters.first != np.arange(len(clusters.first))
    np.save(places.work / STARTS, np.cumsum([0, *documents]))
    np.save(places.work / FIRST, clusters.first)
    np.save(places.work / IS_EXACT, exact)


def _report(tally: Tally, rules: CleaningRules) -> CleaningReport:
    gone = [*tally.removed.values()]
    kept = Count(
        tally.read.documents - sum(count.documents for count in gone),
        tally.read.bytes - sum(count.bytes for count in [*gone, *tally.cut.values()]),
    )
    return CleaningReport(
        read=tally.read,
        kept=kept,
        removed=dict(sorted(tally.removed.items(), key=lambda item: (-item[1].documents, item[0]))),
        cut=tally.cut,
        masked={"mail addresses": tally.mails, "IP addresses": tally.ips},
        settings=rules,
    )


def _pretty(report: CleaningReport) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def _table(report: CleaningReport) -> Table:
    table = Table("", "documents", "of all", "MB")

    def row(name: str, count: Count) -> None:
        share, size = count.documents / report.read.documents, round(count.bytes / 1e6, 2)
        table.add_row(name, f"{count.documents:,}", f"{share:.1%}", f"{size + 0.0:,.2f}")  # no -0

    row("read", report.read)
    for rule, count in report.removed.items():
        row(f"- {rule}", count)
    for what, count in report.cut.items():
        row(f"cut: {what}", count)
    row("kept", report.kept)
    for column in table.columns[1:]:
        column.justify = "right"
    return table
