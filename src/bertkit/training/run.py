"""Run directory of a training run: the record of its settings, its journal and checkpoints.

    run = Run(out, resume=resume)      # rejects a directory that is in use
    run.check(record, ...)             # rejects changed settings when resuming
    start = run.begin(state, total)    # writes the record, restores the last checkpoint
    with run.learning("pretraining", start=start):
        for step in steps(...):
            run.show(step.number, note)
            run.save(step.number, keep=2)

A checkpoint is a directory such as `checkpoints/step-00000200`. It is written under a temporary
name, synced and renamed, so that a killed process never leaves an incomplete checkpoint. A thread
writes it from a copy of the state while training continues. Writing and hashing release the GIL.
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
from bertkit.errors import BertkitError, CheckpointError, ConfigError, TrainingError, format_message
from bertkit.progress import progress
from bertkit.storage import (
    VOCABULARY,
    check_unused,
    fits,
    link_or_copy,
    name_file_in_errors,
    new_folder,
    read_json,
    sha256,
    sweep,
    write_json,
    writing,
)
from bertkit.training.checkpoints import Snapshot, State, find_damage
from bertkit.training.distributed import SINGLE_PROCESS, Ranks
from bertkit.training.interrupt import Interrupt
from bertkit.training.journal import Journal, skipped_lines

Resume = bool | Literal["auto"]
"""Whether to resume a run. "auto" resumes the run if it exists, and otherwise starts it."""

Show = Callable[[Path, Mapping[str, Tensor]], None]
"""Function that copies the weights of a checkpoint to the model in the run directory. Its arguments
are the checkpoint directory and the weights by name."""

SETTINGS = (".json", ".txt")
"""Suffixes of the files of a model that do not contain weights."""


class Run:
    """Run directory of a training run: its record, journal and checkpoints.

    In a distributed run, only the first process writes to the directory. If the optimizer state is
    sharded, the other processes write their shards to checkpoints.

    Args:
        out: Run directory.
        resume: Whether to resume the run.
        ranks: Processes of a distributed run.

    Raises:
        ConfigError: If `out` is in use, or does not contain a run to resume.
    """

    state: State
    total: int
    """Total number of steps."""
    _saved: float

    def __init__(self, out: Path | str, *, resume: Resume, ranks: Ranks = SINGLE_PROCESS) -> None:
        self.out, self.ranks = Path(out), ranks
        exists = bool(ranks.value_of_first((self.out / RUN).exists()))
        self.resumed = exists if resume == "auto" else resume
        self.journal = Journal(self.out)
        self.record: Mapping[str, Any] = {}
        self.checkpoint: Path | None = None
        """Newest complete checkpoint."""
        self.best: str | None = None
        """Message about the best model in the directory, if the run selects one."""
        self.interrupt = Interrupt(patient=ranks.world > 1)
        self._writer = ThreadPoolExecutor(1, initializer=_lower_priority)
        self._saving: Future[None] | None = None
        if ranks.first and self.out.is_dir():
            sweep(self.out)
        if not self.resumed:
            if ranks.first:
                check_unused(self.out, resumable=True)
        elif not exists:
            raise ConfigError(f"{self.out} contains no run to resume; remove --resume")

    # ---- Before training

    def check(
        self,
        record: Mapping[str, Any],
        *,
        free: Collection[str] = (),
        errors: Mapping[str, BertkitError] | None = None,
    ) -> None:
        """Set the content of `run.json`. If the run is resumed, compare it with the existing file.

        Args:
            record: Settings and fingerprints of the run.
            free: Dotted paths of the values that may change.
            errors: Errors to raise if certain values have changed, by the dotted path of the value.

        Raises:
            ConfigError: If `run.json` is damaged, or other values have changed.
            BertkitError: The error in `errors`, if its value has changed.
        """
        self.record = record
        self.ranks.check_same(
            {name: v for name, v in record.items() if name not in ("corpus_folder", "start")}
        )
        if not (self.resumed and self.ranks.first):
            return
        file, remedy = self.out / RUN, "start over in another --out"
        before = read_json(file, ConfigError, remedy)
        groups = [name for name, value in record.items() if isinstance(value, Mapping)]
        if not (isinstance(before, dict) and before) or any(
            not isinstance(before.get(name, {}), dict) for name in groups
        ):
            raise ConfigError(f"{file}: damaged (not the record of a run); {remedy}")
        old, new = flat(before), flat(record)
        for path, error in (errors or {}).items():
            if old.get(path) != new[path]:
                raise error
        changed = [
            f"{path.removeprefix('config.').removeprefix('settings.')} (was {value!r})"
            for path, value in old.items()
            if path not in free and new.get(path, ...) != value
        ]
        changed += [f"{path} (was not set)" for path in record if path not in before]
        if changed:
            raise ConfigError(
                f"{', '.join(changed)}: changed since {self.out} began; resume with the same "
                "settings and version of bertkit, or start another run"
            )

    # ---- Start

    def begin(self, state: State, total: int) -> int:
        """Lock the directory and write the record. If the run is resumed, restore its state.

        The state is restored from the newest complete checkpoint. The lock is released at the end
        of `learning`.

        Args:
            state: Weights and optimizer state of the run.
            total: Total number of steps.

        Returns:
            The number of finished steps.

        Raises:
            ConfigError: If another process trains in the directory.
            CheckpointError: If checkpoints exist, but none is complete.
        """
        self.state, self.total, self._saved = state, total, time.monotonic()
        if self.ranks.first:
            self.out.mkdir(parents=True, exist_ok=True)
            self._release_lock = weakref.finalize(self, _release, _lock(self.out))
            write_json(self.out / RUN, self.record)
        start = 0
        if self.resumed:
            start = self._restore()
            say(f"resuming after step {start} of {total}")
        if self.ranks.first and (damaged := self.journal.rewind(start)):
            say(skipped_lines(self.journal.path, damaged))
        return start

    def _restore(self) -> int:
        """Restore the newest complete checkpoint in all processes, and return its step."""
        step = 0
        if self.ranks.first:
            self.checkpoint, messages = recover(self.out)
            for message in messages:
                say(message)
            step = _step(self.checkpoint) if self.checkpoint else 0
        if step := self.ranks.value_of_first(step):
            self.checkpoint = _checkpoint(self.out, step)
            self.state.restore(self.checkpoint)
        return step

    # ---- Training loop

    @contextmanager
    def learning(self, name: str, *, start: int, discard: bool = False) -> Iterator[None]:
        """Show a progress bar and handle signals in a context, and release the lock at its end.

        If an error occurs, its message is extended by the checkpoint or model that can be used.

        Args:
            name: Name of the progress bar.
            start: Number of finished steps.
            discard: Whether to delete the directory after an error if no model has been saved.
        """
        with progress() as self._bar, self.interrupt:
            self._task = self._bar.add_task(name, total=self.total, completed=start, note="")
            try:
                yield
                self.wait_for_save()
            except BaseException as error:
                try:
                    self.wait_for_save()
                except BertkitError as failed:  # The last checkpoint was not saved.
                    if isinstance(error, BertkitError) and error is not failed:
                        error = type(error)(f"{failed}; {error}")
                saved = self.best
                if saved is None and self.checkpoint is not None:
                    saved = f"{self.checkpoint} is the last good checkpoint"
                if saved is None and discard and self.ranks.first:
                    shutil.rmtree(self.out, ignore_errors=True)
                if saved is None:
                    first = self.ranks.first
                    saved = "nothing was saved yet" if first else "rank 0 reports what was saved"
                if isinstance(error, BertkitError):
                    raise type(error)(f"{error}; {saved}") from None
                if _out_of_memory(error):
                    raise TrainingError(
                        "out of memory: lower max_batch_tokens, which may be changed when the run "
                        f"is resumed; {saved}"
                    ) from None
                raise
            finally:
                if self.ranks.first:
                    self._release_lock()

    def show(self, step: int, note: str, *, line: bool = False) -> None:
        """Update the progress bar.

        Args:
            step: Number of finished steps.
            note: Text next to the bar, such as the loss.
            line: Whether to print a line if the bar is disabled, because the output is not a
                terminal.

        Raises:
            StorageError: If the last checkpoint could not be saved.
        """
        if self._saving is not None and self._saving.done():
            self.wait_for_save()
        if line and self._bar.disable:
            self._bar.line(f"step {step}/{self.total}  {note}")
        self._bar.update(self._task, completed=step, note=note)

    def due(self, minutes: float) -> bool:
        """Return whether `minutes` have passed since the last checkpoint, or since the start."""
        return time.monotonic() - self._saved >= 60 * minutes

    @property
    def stopping(self) -> bool:
        """Whether the run must stop at the end of the step, because this process got a signal."""
        return self.interrupt.requested

    def stop(self, step: int) -> None:
        """Wait until the checkpoint is saved, then stop the run.

        Raises:
            KeyboardInterrupt: Always. Its message explains how to resume the run.
        """
        self.wait_for_save()
        raise KeyboardInterrupt(
            format_message(f"stopped after step {step}, which is saved; continue with --resume")
        )

    # ---- Checkpoints

    def save(self, step: int, *, keep: int, show: Show | None = None) -> None:
        """Copy the state after `step`, and write it as a checkpoint while training continues.

        A thread writes the checkpoint in the first process. If the optimizer is sharded, each
        process writes its shard to the same directory. First, the method waits until the previous
        checkpoint is saved.

        Args:
            step: Number of finished steps.
            keep: Number of checkpoints to keep, the newest ones.
            show: Function that is called with the complete checkpoint and its weights.

        Raises:
            StorageError: If the previous checkpoint could not be saved. Older checkpoints remain.
        """
        if not (self.ranks.first or self.state.ranks.world > 1):
            return
        self.wait_for_save()
        self._saved = time.monotonic()
        snapshot = self.state.snapshot(step)
        self._saving = self._writer.submit(self._write, snapshot, keep, show)

    def _write(self, snapshot: Snapshot, keep: int, show: Show | None) -> None:
        folder, ranks = _checkpoint(self.out, snapshot.step), snapshot.ranks
        if not ranks.first:
            if name := ranks.gather(b"")[0]:
                with name_file_in_errors(folder):
                    snapshot.write(folder.with_name(name.decode()))
            return
        if folder.exists():
            ranks.gather(b"")
        else:
            with new_folder(folder) as partial:
                ranks.gather(partial.name.encode())
                snapshot.write(partial)
        self.checkpoint = folder
        if show is not None:
            show(folder, snapshot.weights)
        for old in _checkpoints(self.out)[:-keep]:
            shutil.rmtree(old)

    def wait_for_save(self) -> None:
        """Wait until the last checkpoint is saved.

        Raises:
            StorageError: If the checkpoint could not be saved.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def publish(self, checkpoint: Path) -> None:
        """Copy or link the weights of a checkpoint to the model in the run directory."""
        with writing(self.out / FILE) as partial:
            link_or_copy(checkpoint / FILE, partial)

    def drop_checkpoints(self) -> None:
        """Delete all checkpoints of a finished run. The run cannot be resumed afterwards."""
        shutil.rmtree(self.out / CHECKPOINTS, ignore_errors=True)

    @contextmanager
    def repairing(self) -> Iterator[None]:
        """Within a context, log which files of the model are changed, because they were damaged.

        Weight files are not compared: a file that is older than the checkpoint is changed although
        it is not damaged.
        """

        def hashes() -> dict[Path, str]:
            files = (p for p in self.out.iterdir() if p.is_file() and p.suffix in SETTINGS)
            return {path: sha256(path) if fits(path, VOCABULARY) else "" for path in files}

        before = hashes()
        yield
        after = hashes()
        for path in sorted(before):
            if before[path] != after[path]:
                say(f"{path}: repaired a damaged file")


def recover(out: Path) -> tuple[Path | None, list[str]]:
    """Find the newest complete checkpoint, and put damaged checkpoints aside.

    Damaged checkpoints are renamed to `damaged-step-...`, so that they do not count as checkpoints
    to keep. Incomplete files of killed processes are deleted.

    Args:
        out: Run directory.

    Returns:
        The checkpoint, or None if there are no checkpoints, and a message for each damaged
        checkpoint.

    Raises:
        CheckpointError: If checkpoints exist, but none is complete.
    """
    sweep(out)
    sweep(out / CHECKPOINTS)
    reasons = {folder: find_damage(folder) for folder in reversed(_checkpoints(out))}
    good = next((folder for folder, reason in reasons.items() if reason is None), None)
    damaged = {folder: reason for folder, reason in reasons.items() if reason is not None}
    if damaged and good is None:
        folder, reason = next(iter(damaged.items()))
        raise CheckpointError(
            f"{folder}: {reason}, and no older checkpoint is complete; remove {out / CHECKPOINTS} "
            "to start over from step 0"
        )
    messages = []
    for folder, reason in damaged.items():
        renamed = folder.with_name(f"damaged-{folder.name}")
        shutil.rmtree(renamed, ignore_errors=True)
        folder.rename(renamed)
        messages.append(f"{folder}: {reason}; renamed to {renamed}, using {good} instead")
    return good, messages


def _lower_priority() -> None:
    """Give this thread a lower priority than the training threads."""
    if sys.platform == "linux":  # Other systems have no priority per thread.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _lock(folder: Path) -> int:
    """Open and lock a directory, or raise ConfigError if another process has locked it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"{folder}: another process is training in this directory; wait until it finishes, or "
            "choose another --out"
        ) from None
    except OSError:  # The file system does not support locks.
        pass
    _LOCKED.add(handle)
    return handle


def _release(handle: int) -> None:
    # In a forked process, the file descriptor is already closed.
    if handle in _LOCKED:
        _LOCKED.remove(handle)
        with suppress(OSError):  # The file system does not support locks.
            # Closing the directory does not release the lock if a forked process has not closed its
            # copy yet.
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


_LOCKED: set[int] = set()
"""File descriptors of locked directories. A forked process closes them immediately."""


def _close_all() -> None:
    """Close the locked directories in a forked process. The parent process keeps its locks."""
    while _LOCKED:
        os.close(_LOCKED.pop())


os.register_at_fork(after_in_child=_close_all)


def _checkpoint(out: Path, step: int) -> Path:
    return out / CHECKPOINTS / f"step-{step:08d}"


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _checkpoints(out: Path) -> list[Path]:
    return sorted((out / CHECKPOINTS).glob("step-*"))


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
