"""A process that imports bertkit once and runs commands in forks of itself, to be killed.

Reads a job a line from stdin, as JSON: `argv`; and to end it early either `at_write`, the number
of the file operation before which it kills itself, or `signal` with `journal` and `lines`, sent
when the journal has that many lines and `delay` seconds have passed; `file_bytes` limits the size
of a file, which then fails as on a full disk. Answers with the exit code
(negative for a signal) and where stderr went.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bertkit import cli
from bertkit.recipes import finetune, pretrain  # noqa: F401

WRITES = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")


def die_at_write(number: int) -> None:
    """Kill this process, as no handler can prevent, before its write of this number."""
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


def child(job: dict[str, Any], errors: str) -> int:
    handle = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    torch.set_num_threads(1)  # tiny models: a second thread only waits
    if job.get("file_bytes"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_bytes"], job["file_bytes"]))
    if job.get("at_write"):
        die_at_write(job["at_write"])
    return cli.run(job["argv"])


def lines(path: str) -> int:
    try:
        return Path(path).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def main() -> None:
    errors = sys.argv[1]
    for line in sys.stdin:
        job = json.loads(line)
        process = os.fork()
        if process == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = 70
            try:
                code = child(job, errors)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        ended, status = 0, 0
        sent = "signal" not in job
        while not ended:
            if not sent and lines(job["journal"]) >= job["lines"]:
                time.sleep(job.get("delay", 0.0))
                os.kill(process, job["signal"])
                sent = True
            ended, status = os.waitpid(process, 0 if sent else os.WNOHANG)
            time.sleep(0 if sent else 0.001)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    main()
