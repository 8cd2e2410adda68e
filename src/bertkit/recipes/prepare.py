"""Parallel and resumable tokenization of text files into the shards of a corpus.

The input is divided into units of about equal size: a part of a large file, or several small files.
The division depends only on the input, and each unit is written to separate shards. The output is
therefore the same, byte for byte, for any number of processes on one or several machines. A unit is
finished when its small manifest is written; a rerun skips finished units. All text (or the text of
a part) is read and checked before anything is written.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec
from rich.progress import Progress

from bertkit import storage
from bertkit.config import PythonOnly
from bertkit.console import say
from bertkit.data.corpus import (
    FORMAT,
    PARTS,
    Corpus,
    CorpusSource,
    Made,
    Manifest,
    shard_name,
    write_manifest,
)
from bertkit.data.document_readers import BlankLines, Span, spans
from bertkit.data.paths import files, paths_of, suffix
from bertkit.data.ray_workers import RayPool
from bertkit.data.sentences import CachedTokenizer, split, token_dtype
from bertkit.data.workers import CorpusSettings, Unit, Worker, WorkerPool, convert_errors, text_of
from bertkit.errors import ConfigError, DataError, StorageError, check_choice
from bertkit.progress import progress
from bertkit.storage import check_unused, read_bytes
from bertkit.synonyms import check_keywords
from bertkit.text.tokenizer import Tokenizer
from bertkit.threads import cores

Engine = Literal["processes", "ray"]
R = TypeVar("R", bound=msgspec.Struct)

SHARD_TOKENS = 1 << 25
"""Approximate number of tokens per shard: 64 MiB with 2 bytes per token."""

SAMPLES, SAMPLE = 16, 1 << 15
"""Number of text samples from which the corpus size is estimated, and characters per sample."""

GZIP_RATIO = 3
"""Assumed compression ratio of gzip. A wrong value affects only how evenly work is divided."""


class Input(msgspec.Struct, frozen=True):
    """Size and modification time of an input file when it was checked."""

    file: str
    bytes: int
    changed_ns: int


class PreparePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Plan of the work. It is written after all text is checked, and a rerun must match it."""

    settings: CorpusSettings
    inputs: list[Input]
    units: list[Unit]


@check_keywords
def prepare(
    texts: Sequence[Path | str],
    /,
    *,
    tokenizer: Path | str | Tokenizer,
    out: Path | str,
    text_column: str = "text",
    blank_lines: BlankLines = "paragraphs",
    processes: int | None = None,
    engine: Engine = "processes",
    part: str | None = None,
    language: PythonOnly[str] = "en",
    shard_tokens: PythonOnly[int] = SHARD_TOKENS,
) -> Corpus | Any:  # Without `part` the result is never None, so callers need no check.
    """Tokenize text into a corpus for pretraining.

    If the work is interrupted, the same call resumes it. With several processes, a script that
    calls this function needs `if __name__ == "__main__":`.

    Args:
        texts: Text files (.txt, .jsonl or .parquet, also with .gz), or directories of them.
        tokenizer: Directory of the tokenizer.
        out: Output directory of the corpus. To resume interrupted work, run the same command.
        text_column: Field of .jsonl rows, or column of .parquet files, that contains the text.
        blank_lines: Whether a blank line of a .txt file ends a paragraph or a document.
        processes: Number of parallel processes. Default: one per core, or one per CPU of the Ray
            cluster.
        engine: How to work in parallel: with processes on this machine, or with tasks on the Ray
            cluster at RAY_ADDRESS, whose nodes must share the files. If RAY_ADDRESS is not set, a
            local Ray cluster runs during the work.
        part: Part of the work to do, such as 3/8. Several machines that share a disk can do one
            part each. Then run the same command without --part to write the corpus.
        language: Code of the language whose rules split the text into sentences.
        shard_tokens: Approximate number of tokens per shard.

    Returns:
        The corpus, or None if `part` is set.

    Raises:
        ConfigError: If `out` is in use. Nothing is written.
        DataError: If a text is invalid or the disk has too little free space. Nothing is written.
        StorageError: If writing fails. Finished shards are kept.
    """
    check_choice("engine", engine, get_args(Engine))
    check_choice("blank_lines", blank_lines, get_args(BlankLines))
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    out, sources = Path(out), files(texts)
    work = out / ".work"
    if (out / "manifest.json").exists() or not work.exists():
        check_unused(out)
    check_outside(out, texts)
    settings = CorpusSettings(
        tokenizer=tokenizer.fingerprint,
        field=text_column,
        blank_lines=blank_lines,
        language=language,
        shard_tokens=shard_tokens,
    )
    inputs = [Input(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in sources]
    old_plan = _read_plan(work)
    if old_plan is not None:
        _check_plan(old_plan, PreparePlan(settings, inputs, []), out)
    units = old_plan.units if old_plan else divide(sources, 4 * shard_tokens)  # ~4 bytes per token
    selected = range(len(units)) if part is None else _units_of_part(part, len(units))
    todo = {number: units[number] for number in selected if not _is_finished(work, number)}
    lock = "workers" if part is None else f"workers-{selected.start}"
    worker = Worker(out, settings, lock)
    with _pool(engine, worker, processes, len(todo)) as pool, progress() as bar:
        todo |= _check(pool, {n: unit for n, unit in todo.items() if not unit.characters}, bar)
        for number, unit in todo.items():
            units[number] = unit
        _check_space([units[number] for number in selected], todo, tokenizer, settings, work)
        with _locked(work, out, lock, whole=part is None):
            if old_plan is None:
                tokenizer.save(out / "tokenizer")
                plan = PreparePlan(settings, inputs, units)
                storage.write_text(work / "plan.json", msgspec.json.encode(plan).decode())
            if not (work / "complete").exists():
                _tokenize(pool, [units[number] for number in selected], todo, bar)
            if part is not None:
                finished = sum(_is_finished(work, number) for number in range(len(units)))
                say(
                    f"{out}: part {part} is finished ({finished} of {len(units)} units in total); "
                    "when all parts are finished, run the same command without --part"
                )
                return None
            storage.write_text(work / "complete", "")
            return _finish(out, work, tokenizer, inputs, len(units))


def _pool(
    engine: Engine, worker: Worker, processes: int | None, units: int
) -> WorkerPool | RayPool:
    """Return the pool of workers that processes the units."""
    if engine == "ray" and units:  # Ray takes seconds to start.
        return RayPool(worker, processes)
    return WorkerPool(worker, min(processes or cores(), max(units, 1)))


# ---- Checks before anything is written


def check_outside(out: Path, paths: Sequence[str | Path], option: str = "--out") -> None:
    """Check that an output directory is not within an input directory.

    Args:
        out: Output directory.
        paths: Input files and directories.
        option: Name of the output option, for the message.

    Raises:
        ConfigError: If the output directory is within an input directory.
    """
    for path in paths_of(paths):
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise ConfigError(f"{out} is within the input {path}; choose another {option}")


def divide(sources: Sequence[Path], most: int, *, whole: Collection[str] = ()) -> list[Unit]:
    """Divide files into units of about equal size.

    Args:
        sources: The files.
        most: Upper limit of the target size of a unit in bytes. Below this limit, the target size
            is 1/64 of all text, but at least 1 MiB.
        whole: Suffixes of files that must not be split.

    Returns:
        The units, in the order of the files.
    """
    weights = {f: f.stat().st_size * (GZIP_RATIO if f.suffix == ".gz" else 1) for f in sources}
    size = min(max(sum(weights.values()) // 64, 1 << 20), most)
    units: list[list[Span]] = [[]]
    used = 0
    for file in sources:
        for span in spans(file, weights[file] if suffix(file) in whole else size):
            weight = weights[file] if file.suffix == ".gz" else span.end - span.start
            if used and used + weight > 1.5 * size:
                units.append([])
                used = 0
            units[-1].append(span)
            used += weight
    return [Unit([(str(s.file), s.start, s.end) for s in unit]) for unit in units]


def _units_of_part(part: str, units: int) -> range:
    """Return the numbers of the units of a part, or raise ConfigError if `part` is invalid."""
    number, slash, parts = part.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal() and 0 < int(number) <= int(parts)):
        raise ConfigError(f"part must be a fraction such as 3/8 (1/8 to 8/8), got {part!r}")
    return range(int(number) - 1, units, int(parts))


def _check(pool: WorkerPool | RayPool, units: dict[int, Unit], bar: Progress) -> dict[int, Unit]:
    """Read all text once, so that invalid input raises an error before anything is written."""
    task = bar.add_task("checking", total=sum(unit.bytes for unit in units.values()), note="")
    checked = dict(units)
    for number, message in pool.run("check", units):
        if isinstance(message, Unit):
            checked[number] = message
            bar.advance(task, message.bytes)
    return checked


def _check_space(
    units: list[Unit],
    remaining: dict[int, Unit],
    tokenizer: Tokenizer,
    settings: CorpusSettings,
    work: Path,
) -> None:
    """Estimate the size of the corpus from text samples, and check that the disk has space for it.

    Raises:
        DataError: If the disk has too little free space.
    """
    if not remaining:
        return
    encode = CachedTokenizer(tokenizer)
    characters = tokens = size = 0
    for unit in units[:: -(-len(units) // SAMPLES)]:
        left = SAMPLE
        for document in text_of(unit, settings):
            text = document.text[:left]
            ids, counts = encode(split(text, settings.language))
            characters += len(text)
            tokens += len(ids)
            size += ids.nbytes + len(counts) + 4
            left -= len(text)
            if left <= 0:
                break
    rate = size / max(characters, 1) * 1.02
    todo = sum(unit.characters for unit in remaining.values())
    total = sum(u.characters for u in units)
    folder = next(p for p in (work, *work.absolute().parents) if p.exists())
    needed, free = int(todo * rate) + (1 << 20), shutil.disk_usage(folder).free
    expected = total * tokens / max(characters, 1)
    say(
        f"{total:,} characters: about {expected:,.0f} tokens, {_size(total * rate)}"
        + (f" ({_size(todo * rate)} remaining)" if todo < total else "")
    )
    if needed > free:
        raise DataError(
            f"{folder}: the corpus needs about {_size(needed)}, but only {_size(free)} are free; "
            "free some space, or choose an --out on another disk"
        )


# ---- Tokenization


def _tokenize(
    pool: WorkerPool | RayPool, units: list[Unit], todo: dict[int, Unit], bar: Progress
) -> None:
    total = sum(unit.characters for unit in units)
    done = total - sum(unit.characters for unit in todo.values())
    task = bar.add_task("tokenizing", total=total, completed=done, note="")
    # The largest units come first. Otherwise, one process might work on a large unit at the end,
    # while the others have nothing to do.
    order = sorted(todo, key=lambda i: -todo[i].characters)
    try:
        for _, message in pool.run("make", {i: todo[i] for i in order}):
            if isinstance(message, int):
                bar.advance(task, message)
    except StorageError as error:
        raise StorageError(f"{error}; finished shards are kept") from None


def _finish(out: Path, work: Path, tokenizer: Tokenizer, inputs: list[Input], units: int) -> Corpus:
    """Rename the shards in the order of the units, then write the manifest."""
    parts = [_read(work / f"{i:06d}.json", Made) for i in range(units)]
    shards = [(i, j, shard) for i, unit in enumerate(parts) for j, shard in enumerate(unit.shards)]
    left_out, cut = sum(u.left_out for u in parts), sum(u.cut for u in parts)
    if not shards:
        shutil.rmtree(out)
        raise DataError(f"{inputs[0].file}: the text has no tokens; nothing was written")
    for number, (i, j, _) in enumerate(shards):
        for part in PARTS:
            source = work / f"{i:06d}-{j:03d}.{part}"
            if source.exists():  # An earlier run may have renamed the shard already.
                source.replace(out / shard_name(number, part))
    manifest = Manifest(
        format=FORMAT,
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        dtype="uint16" if token_dtype(tokenizer.vocab_size).itemsize == 2 else "uint32",
        shards=[shard for *_, shard in shards],
        sources=[CorpusSource(i.file, i.bytes) for i in inputs],
        left_out=left_out,
        cut=cut,
    )
    write_manifest(out, manifest)
    shutil.rmtree(work, ignore_errors=True)
    corpus = Corpus.open(out)
    say(
        f"{out}: {corpus.tokens:,} tokens, {corpus.sentences:,} sentences, "
        f"{corpus.documents:,} documents, {_size(corpus.bytes)}"
        + (f"; {left_out:,} documents without tokens skipped" if left_out else "")
        + (f"; long documents split at {cut:,} positions" if cut else "")
    )
    return corpus


def _is_finished(work: Path, number: int) -> bool:
    return (work / f"{number:06d}.json").exists()


# ---- Work directory


def _read_plan(work: Path) -> PreparePlan | None:
    """Return the plan of interrupted work, if any."""
    path = work / "plan.json"
    if not path.exists():
        return None
    return _read(path, PreparePlan)


def _read(path: Path, kind: type[R]) -> R:
    """Read a file of the work directory."""
    try:
        return msgspec.json.decode(read_bytes(path, DataError), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: damaged ({error}); delete {path.parent.parent} and start over"
        ) from None


def _check_plan(plan: PreparePlan, new_plan: PreparePlan, out: Path) -> None:
    """Check that the unfinished work was started with the same settings and the same text."""
    remedy = f"use the original settings and files, or delete {out} and start over"
    before, after = msgspec.to_builtins(plan.settings), msgspec.to_builtins(new_plan.settings)
    for name in before:
        if before[name] != after[name]:
            value = "different" if name == "tokenizer" else repr(before[name])
            raise DataError(f"{out} contains unfinished work whose {name} was {value}; {remedy}")
    for old, new in zip(plan.inputs, new_plan.inputs, strict=False):
        if old != new:
            change = "has changed since" if old.file == new.file else f"was {old.file}"
            raise DataError(f"{out} contains unfinished work, and {new.file} {change}; {remedy}")
    if len(plan.inputs) != len(new_plan.inputs):
        raise DataError(
            f"{out} contains unfinished work on {len(plan.inputs)} files, not "
            f"{len(new_plan.inputs)}; {remedy}"
        )


@contextmanager
def _locked(work: Path, out: Path, workers: str, *, whole: bool) -> Iterator[None]:
    """Lock the work directory or a part of it, and wait until workers of a killed run have stopped.

    Args:
        work: Work directory.
        out: Output directory.
        workers: Name of the lock file of the workers.
        whole: Whether to lock the whole directory instead of only one part.

    Raises:
        DataError: If another process has the lock.
    """
    with convert_errors():
        work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        part_lock = stack.enter_context((work / f"lock-of-{workers}").open("w"))
        common = stack.enter_context((work / "lock").open("w"))
        try:
            fcntl.flock(part_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(common, (fcntl.LOCK_EX if whole else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{out}: in use by another process; wait until it finishes") from None
        for name in {workers, *(path.name for path in work.glob("workers*") if whole)}:
            with (work / name).open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
