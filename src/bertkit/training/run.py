"""A run: the folder in which a model learns, and all that lets it stop and go on.

    run = Run(out, resume=resume)      # refuses a folder that is in use
    run.check(record, ...)             # refuses to resume another run
    start = run.begin(state, total)    # from here on the folder is written to
    with run.learning("pretraining"):
        for step in steps(...):
            run.show(step.number, note)
            run.save(step.number, keep=2)

A checkpoint is a folder `checkpoints/step-00000200`, written under another name, synced and
renamed, so that a kill leaves either all of it or nothing. A thread writes it, from a copy of the
state, while training goes on: it writes and hashes without Python's lock, where a core is idle.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bertkit.checkpoint.run_directory import CHECKPOINTS, RUN
from bertkit.checkpoint.weights import FILE
from bertkit.config import flat
from bertkit.console import say
from bertkit.errors import BertkitError, CheckpointError, ConfigError, TrainingError, spoken
from bertkit.progress import progress
from bertkit.storage import (
    VOCABULARY,
    fits,
    link_or_copy,
    new_folder,
    read_json,
    refuse_used,
    sha256,
    sweep,
    told,
    write_json,
    writing,
)
from bertkit.training.distributed import ALONE, Ranks
from bertkit.training.interrupt import Interrupt
from bertkit.training.journal import Journal, skipped_lines
from bertkit.training.state import Snapshot, State, damage

Resume = bool | Literal["auto"]
"""Whether a run goes on; auto: where there is one, else it begins."""

Show = Callable[[Path, Mapping[str, Tensor]], None]
"""Makes a checkpoint's weights those of the run's model folder; it gets them by our names, too."""

SETTINGS = (".json", ".txt")
"""How names of a model folder's files end, beside weights."""


class Run:
    """The folder of a model that learns: its record, its journal and its checkpoints."""

    state: State
    total: int
    """Steps from begin to end."""
    _saved: float

    def __init__(self, out: Path | str, *, resume: Resume, ranks: Ranks = ALONE) -> None:
        """Of several processes the first alone writes to the folder.

        Raises: ConfigError when `out` is in use, or holds no run to resume.
        """
        self.out, self.ranks = Path(out), ranks
        there = bool(ranks.of_first((self.out / RUN).exists()))
        self.resumed = there if resume == "auto" else resume
        self.journal = Journal(self.out)
        self.record: Mapping[str, Any] = {}
        self.checkpoint: Path | None = None
        """The newest that is complete."""
        self.best: str | None = None
        """A sentence on the best model that the folder holds, where one is chosen."""
        self.interrupt = Interrupt(patient=ranks.world > 1)
        self._writer = ThreadPoolExecutor(1, initializer=_give_way)
        self._saving: Future[None] | None = None
        if ranks.first and self.out.is_dir():
            sweep(self.out)
        if not self.resumed:
            if ranks.first:
                refuse_used(self.out, resumable=True)
        elif not there:
            raise ConfigError(f"{self.out}: no run to resume here; leave out --resume")

    # ---- before work starts

    def check(
        self,
        record: Mapping[str, Any],
        *,
        free: Collection[str] = (),
        refusals: Mapping[str, BertkitError] | None = None,
    ) -> None:
        """Take what `run.json` is to say; a resumed run must say the same again.

        Values are named by their dotted paths. Those of `free` may change; `refusals` are the
        errors for some that may not.
        Raises: ConfigError for a damaged record or changed settings, or one of `refusals`.
        """
        self.record = record
        self.ranks.agree(
            {name: v for name, v in record.items() if name not in ("corpus_folder", "start")}
        )
        if not (self.resumed and self.ranks.first):
            return
        place, remedy = self.out / RUN, "start over in another --out"
        before = read_json(place, ConfigError, remedy)
        groups = [name for name, value in record.items() if isinstance(value, Mapping)]
        if not (isinstance(before, dict) and before) or any(
            not isinstance(before.get(name, {}), dict) for name in groups
        ):
            raise ConfigError(f"{place}: damaged (not the record of a run); {remedy}")
        was, now = flat(before), flat(record)
        for path, error in (refusals or {}).items():
            if was.get(path) != now[path]:
                raise error
        changed = [
            f"{path.removeprefix('config.').removeprefix('settings.')} (was {value!r})"
            for path, value in was.items()
            if path not in free and now.get(path, ...) != value
        ]
        changed += [f"{path} (was not there)" for path in record if path not in before]
        if changed:
            raise ConfigError(
                f"{', '.join(changed)}: changed since {self.out} began; resume with the same "
                "settings and version of bertkit, or start another run"
            )

    # ---- the start

    def begin(self, state: State, total: int) -> int:
        """Write the record and return the last step that was taken, whose state it restores.

        From here to the end of `learning` no other process learns in this folder.
        Raises: ConfigError where one does, CheckpointError when there are checkpoints and none is
        complete.
        """
        self.state, self.total, self._saved = state, total, time.monotonic()
        if self.ranks.first:
            self.out.mkdir(parents=True, exist_ok=True)
            self._let_go = weakref.finalize(self, _release, _held(self.out))
            write_json(self.out / RUN, self.record)
        start = 0
        if self.resumed:
            start = self._restore()
            say(f"going on after step {start} of {total}")
        if self.ranks.first and (damaged := self.journal.rewind(start)):
            say(skipped_lines(self.journal.path, damaged))
        return start

    def _restore(self) -> int:
        """Put the newest complete checkpoint back, the same in all processes; its step."""
        step = 0
        if self.ranks.first:
            self.checkpoint, sentences = recover(self.out)
            for sentence in sentences:
                say(sentence)
            step = _step(self.checkpoint) if self.checkpoint else 0
        if step := self.ranks.of_first(step):
            self.checkpoint = _checkpoint(self.out, step)
            self.state.restore(self.checkpoint)
        return step

    # ---- the loop

    @contextmanager
    def learning(self, name: str, *, start: int, discard: bool = False) -> Iterator[None]:
        """Show a bar, let signals ask for a stop, and add to an error what is kept.

        With `discard`, a folder that holds nothing of use goes when the loop fails.
        """
        with progress() as self._bar, self.interrupt:
            self._task = self._bar.add_task(name, total=self.total, completed=start, note="")
            try:
                yield
                self.saved()
            except BaseException as error:
                try:
                    self.saved()
                except BertkitError as failed:  # what is kept is then older
                    if isinstance(error, BertkitError) and error is not failed:
                        error = type(error)(f"{failed}; {error}")
                kept = self.best
                if kept is None and self.checkpoint is not None:
                    kept = f"{self.checkpoint} is the last good checkpoint"
                if kept is None and discard:
                    shutil.rmtree(self.out, ignore_errors=True)
                if kept is None:
                    first = self.ranks.first
                    kept = "nothing was saved yet" if first else "rank 0 says what is kept"
                if isinstance(error, BertkitError):
                    raise type(error)(f"{error}; {kept}") from None
                if _out_of_memory(error):
                    raise TrainingError(
                        "out of memory: lower max_batch_tokens, which a run that is resumed may "
                        f"change; {kept}"
                    ) from None
                raise
            finally:
                if self.ranks.first:
                    self._let_go()

    def show(self, step: int, note: str, *, line: bool = False) -> None:
        """Move the bar to a step; where nobody watches a bar, `line` prints one instead.

        Raises: StorageError where the last save has failed meanwhile.
        """
        if self._saving is not None and self._saving.done():
            self.saved()
        if line and self._bar.disable:
            self._bar.line(f"step {step}/{self.total}  {note}")
        self._bar.update(self._task, completed=step, note=note)

    def due(self, minutes: float) -> bool:
        """Whether the last checkpoint, or the start, is so many minutes ago."""
        return time.monotonic() - self._saved >= 60 * minutes

    @property
    def stopping(self) -> bool:
        """Whether a signal asked for a stop at the end of the step."""
        return self.interrupt.asked

    def stop(self, step: int) -> None:
        """Raises: KeyboardInterrupt that says how to go on."""
        self.saved()
        raise KeyboardInterrupt(
            spoken(f"stopped after step {step}, which is saved; go on with --resume")
        )

    # ---- checkpoints

    def save(self, step: int, *, keep: int, show: Show | None = None) -> None:
        """Copy the state after `step`, and begin to write it; training may go on.

        The first process writes; where the optimizer is sharded, each its part, into one folder.
        Once it is complete `show` gets the checkpoint and its weights, and all but the `keep`
        newest checkpoints go. A save that is not done is waited for first.
        Raises: StorageError of the save before; nothing is lost.
        """
        if not (self.ranks.first or self.state.ranks.world > 1):
            return
        self.saved()
        self._saved = time.monotonic()
        snapshot = self.state.snapshot(step)
        self._saving = self._writer.submit(self._write, snapshot, keep, show)

    def _write(self, snapshot: Snapshot, keep: int, show: Show | None) -> None:
        folder, ranks = _checkpoint(self.out, snapshot.step), snapshot.ranks
        if not ranks.first:
            if place := ranks.tell(b"")[0]:
                with told(folder):
                    snapshot.write(folder.with_name(place.decode()))
            return
        if folder.exists():
            ranks.tell(b"")
        else:
            with new_folder(folder) as partial:
                ranks.tell(partial.name.encode())
                snapshot.write(partial)
        self.checkpoint = folder
        if show is not None:
            show(folder, snapshot.weights)
        for old in _folders(self.out)[:-keep]:
            shutil.rmtree(old)

    def saved(self) -> None:
        """Wait until the state that was last to be saved is. Raises: StorageError where it is
        not."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def publish(self, checkpoint: Path) -> None:
        """Make a checkpoint's weights those of the run's model folder."""
        with writing(self.out / FILE) as partial:
            link_or_copy(checkpoint / FILE, partial)

    def drop_checkpoints(self) -> None:
        """At the end of a run that nobody will go on with."""
        shutil.rmtree(self.out / CHECKPOINTS, ignore_errors=True)

    @contextmanager
    def repairing(self) -> Iterator[None]:
        """Say for which settings file of the model the block wrote other content: it was damaged.

        Weights may only have been older.
        """

        def hashes() -> dict[Path, str]:
            files = (p for p in self.out.iterdir() if p.is_file() and p.suffix in SETTINGS)
            return {path: sha256(path) if fits(path, VOCABULARY) else "" for path in files}

        before = hashes()
        yield
        after = hashes()
        for path in sorted(before):
            if before[path] != after[path]:
                say(f"{path}: damaged, and written anew")


def recover(out: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from, and a sentence for each one that is damaged.

    Damaged ones are renamed `damaged-step-...`, so that rotation never counts them in place of a
    good one; what killed processes left half-written is removed.
    Raises: CheckpointError when there are checkpoints and none is complete.
    """
    sweep(out)
    sweep(out / CHECKPOINTS)
    reasons = {folder: damage(folder) for folder in reversed(_folders(out))}
    good = next((folder for folder, reason in reasons.items() if reason is None), None)
    damaged = {folder: reason for folder, reason in reasons.items() if reason is not None}
    if damaged and good is None:
        folder, reason = next(iter(damaged.items()))
        raise CheckpointError(
            f"{folder}: {reason}, and no older checkpoint is complete; remove {out / CHECKPOINTS} "
            "to begin again from step 0"
        )
    sentences = []
    for folder, reason in damaged.items():
        aside = folder.with_name(f"damaged-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        newer = good is not None and folder.name > good.name
        used = "the one before it is used" if newer else "a newer one is used"
        sentences.append(f"{folder}: {reason}; {used}, this one is now {aside}")
    return good, sentences


def _give_way() -> None:
    """Let this thread run where the threads that learn leave a core idle."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _held(folder: Path) -> int:
    """The open folder, locked. Raises: ConfigError where another process has it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"{folder}: another process learns there; let it finish, or choose another --out"
        ) from None
    except OSError:  # a file system that has no locks
        pass
    _HELD.add(handle)
    return handle


def _release(handle: int) -> None:
    if handle in _HELD:  # else a process was forked since, and this is it
        _HELD.remove(handle)
        with suppress(OSError):  # a file system that has no locks
            fcntl.flock(handle, fcntl.LOCK_UN)  # a forked process may not have closed it yet
        os.close(handle)


_HELD: set[int] = set()
"""Folders that are open; a process that is forked would hold them, and may outlive this one."""


def _close_all() -> None:
    """Close the folders in a forked process, which leaves them locked by its parent."""
    while _HELD:
        os.close(_HELD.pop())


os.register_at_fork(after_in_child=_close_all)


def _checkpoint(out: Path, step: int) -> Path:
    return out / CHECKPOINTS / f"step-{step:08d}"


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _folders(out: Path) -> list[Path]:
    return sorted((out / CHECKPOINTS).glob("step-*"))


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
