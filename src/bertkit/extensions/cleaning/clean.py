"""The command `clean`, which filters and deduplicates text for pretraining and writes a report.

Memory use does not depend on the size of the text, except for 40 bytes per document
(`near_duplicates.Clusters`). This is 1 GB for 25 million documents (100 GB of text). The required
disk space is the size of the output and 130 bytes per document. If the input is a single file,
almost twice the size of the output is needed temporarily. Documents are numbered in input order.
The result depends on this order, but not on the number of processes. `out` does not exist until the
run is complete.
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
from bertkit.data.workers import Unit, WorkerPool, convert_errors
from bertkit.errors import ConfigError, DataError, check_choice
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
from bertkit.extensions.cleaning.languages import parse_language
from bertkit.extensions.cleaning.near_duplicates import Clusters
from bertkit.extensions.cleaning.quality import FILTERS, Filter
from bertkit.progress import progress
from bertkit.recipes.prepare import check_outside, divide
from bertkit.synonyms import check_keywords
from bertkit.threads import cores

MAX_FILE_BYTES = 256 << 20
"""Maximum number of bytes of input whose text is written to one output file."""


class CleaningReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a cleaning run.

    The bytes of `read` are the sum of the bytes of `kept`, `removed`, and `cut`.
    """

    read: Count
    kept: Count
    removed: dict[str, Count]
    """Documents that were removed, by the rule that removed them."""
    cut: dict[str, Count]
    """Text that was removed from documents that were kept, by reason."""
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

    The first document of each cluster of duplicates is kept. To use several processes in a script,
    see `prepare`. If the run fails, it leaves no files.

    Args:
        texts: .txt, .jsonl or .parquet files, which may be compressed (.gz), or directories of such
            files.
        out: Directory to write .jsonl files to, which you can pass to `tokenizer train` and
            `prepare`. It must not exist.
        filters: Sets of published quality rules for web pages to apply: gopher-quality,
            gopher-repetition or c4.
        language: Language of the documents to keep, such as en. To also set the minimum probability
            of the language, write en:0.65.
        duplicates: Duplicates to remove: near removes near and exact duplicates, exact removes only
            exact duplicates, and keep removes none.
        html: Whether to convert HTML to plain text. Tags become line breaks or are removed.
        mask: Whether to replace email addresses and public IP addresses with example addresses.
        removed: Directory to write removed documents to, each with the reason of its removal. It
            must not exist. Default: they are not written.
        text_column: Field of .jsonl rows, or column of .parquet, that contains the text.
        blank_lines: What a blank line in a .txt file separates: paragraphs or documents.
        processes: Number of processes. Default: one per core.

    Returns:
        The report. It contains the numbers of documents and bytes that were read, kept, removed by
        each rule, and cut. The file report.json in `out` has the same content.

    Raises:
        ConfigError: If a setting is invalid, or an output directory exists.
        DataError: If the text is invalid, or no document remains.
        StorageError: If the output cannot be written.
    """
    out, removed = Path(out), None if removed is None else Path(removed)
    check_choice("blank_lines", blank_lines, get_args(BlankLines))
    rules = _rules(filters, language, duplicates, html=html, mask=mask)
    _check_outputs(texts, out, removed)
    sources = files(texts)
    with convert_errors():
        # Read the start of each file, so that a missing field raises an error before the work
        # starts.
        for source in sources:
            span = Span(source, 0, source.stat().st_size)
            next(read(span, field=text_column, blank_lines=blank_lines), None)
    units = dict(enumerate(divide(sources, MAX_FILE_BYTES, whole=(".txt",))))
    with ExitStack() as stack:
        folders = _create_folders(stack, out, removed)
        cleaner = Cleaner(folders, rules, field=text_column, blank_lines=blank_lines)
        tally = _run(cleaner, folders, units, min(processes or cores(), len(units)))
        report = _report(tally, rules)
        if not report.kept.documents:
            worst = max(report.removed, key=lambda rule: report.removed[rule].documents)
            raise DataError(
                f"{sources[0]}: all {report.read.documents:,} documents were removed, most of "
                f"them by the rule {worst!r}; nothing was written"
            )
        shutil.rmtree(folders.work)
        storage.write_text(folders.out / "report.json", _to_json(report))
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
        check_choice("filters", name, FILTERS)
    check_choice("duplicates", duplicates, KEYS)
    return CleaningRules(
        filters=tuple(name for name in FILTERS if name in filters),
        language=None if language is None else parse_language(language),
        html=html,
        mask=mask,
        duplicates=duplicates,
    )


def _check_outputs(texts: Sequence[Path | str], out: Path, removed: Path | None) -> None:
    """Check that the output directories do not exist, and that neither contains the other.

    Raises:
        ConfigError: If an output directory exists, or is inside the input or the other output
            directory.
    """
    for folder, option in ((out, "--out"), (removed, "--removed")):
        if folder is not None:
            storage.check_unused(folder, option=option)
            check_outside(folder, texts, option)
    if removed is not None and (
        removed.resolve().is_relative_to(out.resolve())
        or out.resolve().is_relative_to(removed.resolve())
    ):
        raise ConfigError(f"{removed}: must not contain --out or be inside it; use another path")


def _create_folders(stack: ExitStack, out: Path, removed: Path | None) -> CleaningDirectories:
    """Create temporary directories, which are renamed if the stack closes without an error.

    `out` is renamed last.
    """
    for folder in (out, removed):
        if folder is not None and folder.parent.is_dir():
            # Remove temporary directories that earlier runs left because they were killed.
            storage.sweep(folder.parent)
    partial = stack.enter_context(storage.new_folder(out))
    work = partial / ".work"
    work.mkdir()
    if removed is None:
        return CleaningDirectories(work, partial, None)
    return CleaningDirectories(work, partial, stack.enter_context(storage.new_folder(removed)))


def _run(
    cleaner: Cleaner, folders: CleaningDirectories, units: dict[int, Unit], processes: int
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
        # Add the tallies in input order, so that the report does not depend on the number of
        # processes.
        for number in units:
            total.add(tallies[number])
        with convert_errors():
            _find_duplicates(folders, [tallies[number].read.documents for number in units])
        task = bar.add_task("writing", total=size, note="")
        for number, message in pool.run("write", units):
            if isinstance(message, Tally):
                total.add(message)
                folders.unit_path(number, "lines").unlink()
                bar.advance(task, units[number].bytes)
    return total


def _find_duplicates(folders: CleaningDirectories, documents: list[int]) -> None:
    """Find duplicates, and write `STARTS`, `FIRST` and `IS_EXACT` for the step `write`."""
    keys = [np.load(folders.unit_path(n, "npy"), mmap_mode="r") for n in range(len(documents))]
    clusters = Clusters(sum(documents))
    exact = np.zeros(len(clusters.first), bool)
    # Load only one kind of key at a time, to save memory.
    for kind in range(len(keys[0])):
        clusters.join(np.concatenate([unit_keys[kind] for unit_keys in keys]))
        if kind == 0:
            exact = clusters.first != np.arange(len(clusters.first))
    np.save(folders.work / STARTS, np.cumsum([0, *documents]))
    np.save(folders.work / FIRST, clusters.first)
    np.save(folders.work / IS_EXACT, exact)


def _report(tally: Tally, rules: CleaningRules) -> CleaningReport:
    removed = [*tally.removed.values()]
    kept = Count(
        tally.read.documents - sum(count.documents for count in removed),
        tally.read.bytes - sum(count.bytes for count in [*removed, *tally.cut.values()]),
    )
    return CleaningReport(
        read=tally.read,
        kept=kept,
        removed=dict(sorted(tally.removed.items(), key=lambda item: (-item[1].documents, item[0]))),
        cut=tally.cut,
        masked={"mail addresses": tally.mails, "IP addresses": tally.ips},
        settings=rules,
    )


def _to_json(report: CleaningReport) -> str:
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"


def _table(report: CleaningReport) -> Table:
    table = Table("", "documents", "of all", "MB")

    def add_row(name: str, count: Count) -> None:
        fraction, size = count.documents / report.read.documents, round(count.bytes / 1e6, 2)
        # Add 0.0, which turns -0.0 into 0.0.
        table.add_row(name, f"{count.documents:,}", f"{fraction:.1%}", f"{size + 0.0:,.2f}")

    add_row("read", report.read)
    for rule, count in report.removed.items():
        add_row(f"- {rule}", count)
    for reason, count in report.cut.items():
        add_row(f"cut: {reason}", count)
    add_row("kept", report.kept)
    for column in table.columns[1:]:
        column.justify = "right"
    return table
