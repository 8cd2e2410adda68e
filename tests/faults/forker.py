"""A process that imports bertkit once and runs commands in forks that tests can kill.

It reads one job per line from stdin, as JSON, and writes the exit codes, which are negative for a
signal. The keys of a job:

- `argv`: Arguments of the command.
- `at_write`: Index of the file operation before which the process kills itself.
- `signal`, `journal`, `lines`, `delay`: Signal that is sent when the journal has that number of
  lines and `delay` seconds have passed.
- `file_bytes`: Maximum file size. A larger file fails like on a full disk.
- `nan_at`: Index of the batch whose loss becomes NaN.
- `world`: Number of processes that run the command like torchrun.
- `more`: Additional arguments by rank.
- `rank`: Rank of the process that fails.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertkit import cli
from bertkit.recipes import finetune, pretrain  # noqa: F401 (imported once, for all forks)

WRITES = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")


def die_at_write(number: int) -> None:
    """Kill this process with SIGKILL before its write with this number."""
    done = 0

    def counted(name: str) -> Any:
        original = getattr(os, name)

        def operation(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return operation

    for name in WRITES:
        setattr(os, name, counted(name))


def poison(number: int) -> None:
    """Make the loss of the training batch of this number a NaN."""
    original, done = pretrain.masked_words, 0

    def objective(model: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal done
        loss = original(model, *arguments, **options)
        done += model.training
        if not (model.training and done == number):
            return loss
        parts = {name: part * math.nan for name, part in loss.parts.items()}
        return replace(loss, total=loss.total * math.nan, parts=parts)

    pretrain.masked_words = objective  # type: ignore[assignment]


def child(job: dict[str, Any], errors: str) -> int:
    handle = os.open(errors, os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    torch.set_num_threads(1)  # tiny models: a second thread only waits
    if job.get("file_bytes"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_bytes"], job["file_bytes"]))
    if job.get("at_write"):
        die_at_write(job["at_write"])
    if job.get("nan_at"):
        poison(job["nan_at"])
    return cli.run(job["argv"])


UNAFFECTED = {"at_write": None, "file_bytes": None, "nan_at": None}
"""Keys of a job for the ranks that do not fail."""


def fork(job: dict[str, Any], errors: str, rank: int, world: int, port: int) -> int:
    """Run the job in a separate process and return its process id."""
    process = os.fork()
    if process:
        return process
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if world > 1:
        named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in named.items()})
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        job["argv"] += job.get("more", {}).get(str(rank), [])
    code = 70
    try:
        code = child(job, errors)
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def free_port() -> int:
    with socket.socket() as open_socket:
        open_socket.bind(("127.0.0.1", 0))
        port: int = open_socket.getsockname()[1]
        return port


def lines(path: str) -> int:
    try:
        return Path(path).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def main() -> None:
    errors = sys.argv[1]
    for line in sys.stdin:
        job = json.loads(line)
        Path(errors).write_text("", encoding="utf-8")
        world, chosen = job.get("world", 1), job.get("rank", 0)
        port = free_port() if world > 1 else 0
        processes = [
            fork({**job, **({} if rank == chosen else UNAFFECTED)}, errors, rank, world, port)
            for rank in range(world)
        ]
        codes: dict[int, int] = {}
        sent = "signal" not in job
        while len(codes) < world:
            if not sent and lines(job["journal"]) >= job["lines"]:
                time.sleep(job.get("delay", 0.0))
                os.kill(processes[chosen], job["signal"])
                sent = True
            ended, status = os.waitpid(-1, 0 if sent else os.WNOHANG)
            if ended:
                codes[ended] = os.waitstatus_to_exitcode(status)
                sent = sent or ended == processes[chosen]
            time.sleep(0 if sent else 0.001)
        print(json.dumps([codes[process] for process in processes]), flush=True)


if __name__ == "__main__":
    main()
