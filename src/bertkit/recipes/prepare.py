"""Prepare a corpus: text files in, shards of token ids out, in parallel and resumable.

The input is divided into units of about equal size: a piece of a large file, or a run of small
ones. The division follows from the input alone, and each unit becomes shards of its own, so any
number of processes, on one machine or on many, gives the same bytes. A unit counts once its own
small manifest is written; a rerun takes up what counts. All text, or that of a part, is read and
checked before anything is written.
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
from bertkit.data.workers import CorpusSettings, Unit, Worker, WorkerPool, plainly, text_of
from bertkit.errors import ConfigError, DataError, StorageError, refuse_unknown
from bertkit.progress import progress
from bertkit.storage import read_bytes, refuse_used
from bertkit.synonyms import check_keywords
from bertkit.text.tokenizer import Tokenizer
from bertkit.threads import cores

Engine = Literal["processes", "ray"]
R = TypeVar("R", bound=msgspec.Struct)

SHARD_TOKENS = 1 << 25
"""Tokens about which a shard is closed: 64 MiB of 2 bytes."""

SAMPLES, SAMPLE = 16, 1 << 15
"""Places looked at for the estimate of size, and characters read at each."""

GZIP_RATIO = 3
"""Bytes of text in a compressed byte, to divide the work; how good it is affects only balance."""


class Input(msgspec.Struct, frozen=True):
    """A file as it was when it was checked."""

    file: str
    bytes: int
    changed_ns: int


class PreparePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Written when all is checked; a rerun must mean the same to take up the work."""

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
    language: str = "en",
    shard_tokens: int = SHARD_TOKENS,
) -> Corpus | Any:  # no None to be checked for by those who never ask for a part
    """Tokenize text into a corpus for pretraining.

    The same call goes on after a kill. `language` is for the sentence splitter. With several
    processes, a script that calls this needs the usual `if __name__ == "__main__":`.
    Returns: the corpus; nothing where a part of the work was asked for.
    Raises: ConfigError for an `out` in use, DataError for unusable text or too small a disk,
    before anything is written; StorageError if writing fails: finished shards are then kept.

    Args:
        texts: Files or folders of .txt, .jsonl or .parquet, also .gz.
        tokenizer: Folder of the tokenizer.
        out: The corpus's folder. The same command goes on after a kill.
        text_column: The field of .jsonl rows, or column of .parquet, that holds the text.
        blank_lines: Whether a blank line of a .txt file ends a paragraph or a document.
        processes: How many work at once; by default one for each core, or CPU of the Ray cluster.
        engine: Processes of this machine, or tasks of the Ray cluster that RAY_ADDRESS names, whose
            nodes see the same files; without one, of a Ray that is started here and ended again.
        part: The share of the work to do, as 3/8. Machines that see the same disk do one each; the
            same command without it then makes the corpus of all.
    """
    refuse_unknown("engine", engine, get_args(Engine))
    refuse_unknown("blank_lines", blank_lines, get_args(BlankLines))
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    out, sources = Path(out), files(texts)
    work = out / ".work"
    if (out / "manifest.json").exists() or not work.exists():
        refuse_used(out)
    refuse_within(out, texts)
    settings = CorpusSettings(
        tokenizer=tokenizer.fingerprint,
        field=text_column,
        blank_lines=blank_lines,
        language=language,
        shard_tokens=shard_tokens,
    )
    inputs = [Input(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in sources]
    begun = _begun(work)
    if begun is not None:
        _same(begun, PreparePlan(settings, inputs, []), out)
    units = begun.units if begun else divide(sources, 4 * shard_tokens)  # 4 bytes a token
    own = range(len(units)) if part is None else _share(part, len(units))
    todo = {number: units[number] for number in own if not _made(work, number)}
    lock = "workers" if part is None else f"workers-{own.start}"
    worker = Worker(out, settings, lock)
    with _pool(engine, worker, processes, len(todo)) as pool, progress() as bar:
        todo |= _check(pool, {n: unit for n, unit in todo.items() if not unit.characters}, bar)
        for number, unit in todo.items():
            units[number] = unit
        _weigh([units[number] for number in own], todo, tokenizer, settings, work)
        with _locked(work, out, lock, alone=part is None):
            if begun is None:
                tokenizer.save(out / "tokenizer")
                plan = PreparePlan(settings, inputs, units)
                storage.write_text(work / "plan.json", msgspec.json.encode(plan).decode())
            if not (work / "complete").exists():
                _make(pool, [units[number] for number in own], todo, bar)
            if part is not None:
                made = sum(_made(work, number) for number in range(len(units)))
                say(
                    f"{out}: part {part} is done, {made} of {len(units)} pieces; when all are, "
                    "the same command without --part makes the corpus"
                )
                return None
            storage.write_text(work / "complete", "")
            return _finish(out, work, tokenizer, inputs, len(units))


def _pool(
    engine: Engine, worker: Worker, processes: int | None, units: int
) -> WorkerPool | RayPool:
    """What runs so many units."""
    if engine == "ray" and units:  # it takes seconds to start
        return RayPool(worker, processes)
    return WorkerPool(worker, min(processes or cores(), max(units, 1)))


# ---- before anything is written


def refuse_within(out: Path, paths: Sequence[str | Path], option: str = "--out") -> None:
    """Raises: ConfigError for an `out` that feeds on itself."""
    for path in paths_of(paths):
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise ConfigError(f"{out}: lies within {path}, which is read; choose another {option}")


def divide(sources: Sequence[Path], most: int, *, whole: Collection[str] = ()) -> list[Unit]:
    """Units of a 64th of all text, at least a mebibyte, at most `most` bytes; files of the kinds
    `whole` are not cut.
    """
    weights = {f: f.stat().st_size * (GZIP_RATIO if f.suffix == ".gz" else 1) for f in sources}
    size = min(max(sum(weights.values()) // 64, 1 << 20), most)
    units: list[list[Span]] = [[]]
    filled = 0
    for file in sources:
        for span in spans(file, weights[file] if suffix(file) in whole else size):
            weight = weights[file] if file.suffix == ".gz" else span.end - span.start
            if filled and filled + weight > 1.5 * size:
                units.append([])
                filled = 0
            units[-1].append(span)
            filled += weight
    return [Unit([(str(s.file), s.start, s.end) for s in unit]) for unit in units]


def _share(part: str, units: int) -> range:
    """The numbers of the units that are a part's. Raises: ConfigError."""
    number, slash, parts = part.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal() and 0 < int(number) <= int(parts)):
        raise ConfigError(f"part: {part!r} is none; write for instance 3/8, of 1/8 to 8/8")
    return range(int(number) - 1, units, int(parts))


def _check(pool: WorkerPool | RayPool, units: dict[int, Unit], bar: Progress) -> dict[int, Unit]:
    """Read everything once, so that bad input is refused before it costs anything."""
    task = bar.add_task("checking", total=sum(unit.bytes for unit in units.values()), note="")
    checked = dict(units)
    for number, message in pool.run("check", units):
        if isinstance(message, Unit):
            checked[number] = message
            bar.advance(task, message.bytes)
    return checked


def _weigh(
    units: list[Unit],
    left_to_do: dict[int, Unit],
    tokenizer: Tokenizer,
    settings: CorpusSettings,
    work: Path,
) -> None:
    """Estimate the corpus's size from samples. Raises: DataError if the disk is too small."""
    if not left_to_do:
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
    todo = sum(unit.characters for unit in left_to_do.values())
    total = sum(u.characters for u in units)
    place = next(p for p in (work, *work.absolute().parents) if p.exists())
    needed, free = int(todo * rate) + (1 << 20), shutil.disk_usage(place).free
    expected = total * tokens / max(characters, 1)
    say(
        f"{total:,} characters: about {expected:,.0f} tokens, {_size(total * rate)}"
        + (f", of which {_size(todo * rate)} are left to do" if todo < total else "")
    )
    if needed > free:
        raise DataError(
            f"{place}: the corpus needs about {_size(needed)}, {_size(free)} are free; "
            "free some, or choose an --out on another disk"
        )


# ---- making


def _make(
    pool: WorkerPool | RayPool, units: list[Unit], todo: dict[int, Unit], bar: Progress
) -> None:
    total = sum(unit.characters for unit in units)
    done = total - sum(unit.characters for unit in todo.values())
    task = bar.add_task("tokenizing", total=total, completed=done, note="")
    # the largest first, so that no process is left with one at the end
    order = sorted(todo, key=lambda i: -todo[i].characters)
    try:
        for _, message in pool.run("make", {i: todo[i] for i in order}):
            if isinstance(message, int):
                bar.advance(task, message)
    except StorageError as error:
        raise StorageError(f"{error}; finished shards are kept") from None


def _finish(
    out: Path,
    work: Path,
    tokenizer: Tokenizer,
    inputs: list[Input],
    units: int,
) -> Corpus:
    """Give the shards their names, in the order of the units, then write the manifest."""
    made = [_read(work / f"{i:06d}.json", Made) for i in range(units)]
    shards = [(i, j, shard) for i, unit in enumerate(made) for j, shard in enumerate(unit.shards)]
    left_out, cut = sum(u.left_out for u in made), sum(u.cut for u in made)
    if not shards:
        shutil.rmtree(out)
        raise DataError(f"{inputs[0].file}: not one token in this text; nothing was written")
    for number, (i, j, _) in enumerate(shards):
        for part in PARTS:
            source = work / f"{i:06d}-{j:03d}.{part}"
            if source.exists():  # else an earlier run got this far
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
        + (f"; {left_out:,} documents without a token left out" if left_out else "")
        + (f"; long documents cut in {cut:,} places" if cut else "")
    )
    return corpus


def _made(work: Path, number: int) -> bool:
    return (work / f"{number:06d}.json").exists()


# ---- the work area


def _begun(work: Path) -> PreparePlan | None:
    path = work / "plan.json"
    if not path.exists():
        return None
    return _read(path, PreparePlan)


def _read(path: Path, kind: type[R]) -> R:
    """Read a file of the work area."""
    try:
        return msgspec.json.decode(read_bytes(path, DataError), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: damaged ({error}); delete {path.parent.parent} and start again"
        ) from None


def _same(begun: PreparePlan, now: PreparePlan, out: Path) -> None:
    """Raises: DataError if the work in `out` was begun with other settings or text."""
    again = f"run it as it was begun, or delete {out} and start again"
    before, after = msgspec.to_builtins(begun.settings), msgspec.to_builtins(now.settings)
    for name in before:
        if before[name] != after[name]:
            was = "another one" if name == "tokenizer" else repr(before[name])
            raise DataError(f"{out}: holds unfinished work whose {name} was {was}; {again}")
    for old, new in zip(begun.inputs, now.inputs, strict=False):
        if old != new:
            what = "has changed since" if old.file == new.file else f"was {old.file}"
            raise DataError(f"{out}: holds unfinished work, and {new.file} {what}; {again}")
    if len(begun.inputs) != len(now.inputs):
        raise DataError(
            f"{out}: holds unfinished work on {len(begun.inputs)} files, not "
            f"{len(now.inputs)}; {again}"
        )


@contextmanager
def _locked(work: Path, out: Path, workers: str, *, alone: bool) -> Iterator[None]:
    """One prepare at a time, or one of each part; and none before the last worker of a killed one
    is gone.
    """
    with plainly():
        work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        own = stack.enter_context((work / f"lock-of-{workers}").open("w"))
        common = stack.enter_context((work / "lock").open("w"))
        try:
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(common, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(f"{out}: another prepare is at work there; let it finish") from None
        for name in {workers, *(path.name for path in work.glob("workers*") if alone)}:
            with (work / name).open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
