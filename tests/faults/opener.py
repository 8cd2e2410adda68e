"""A process that loads valid directories, and then other directories in forks with limits.

The arguments are the valid directories, which import all modules that the other directories need.
It reads lines of a format and a path from stdin, separated by a tab. It writes lines of JSON:
`end`, which is `answered`, `refused` (a BertkitError), `raised` (another error) or `killed`, and
the message.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
from tests.faults.formats import FORMATS, SLOW

from bertkit.checkpoint.directory import load
from bertkit.errors import BertkitError
from bertkit.extensions.export.exported import GRAPHS, RECORD, Exported
from bertkit.extensions.export.int8_record import FILE as INT8
from bertkit.pipelines import PIPELINES, answering, open_engine, pipeline
from bertkit.pipelines.model_info import info
from bertkit.tasks import task_name_of

MEMORY = 2 << 30
"""Memory in bytes that loading a tiny directory may allocate."""

SECONDS = 10
"""Limit of CPU time per directory."""

THREADS = (*GRAPHS, *SLOW, "rows-classify")
"""Formats whose libraries start threads, which do not survive a fork."""

TEXT, PAIR = "a we bc", "the a. [MASK] <mask>"


def use_model(folder: Path) -> None:
    """Load a model directory and run everything that it supports."""
    if (folder / RECORD).exists():
        Exported(folder)([TEXT, PAIR])
        return
    loaded = load(folder)
    json.dumps(info(loaded), ensure_ascii=False).encode()
    embed = pipeline("embed", loaded)
    embed([TEXT, PAIR], long="truncate")
    open_engine(loaded, "auto")
    if (folder / INT8).exists():
        pipeline("embed", loaded, precision="int8")([TEXT], long="truncate")
    if "mlm" in loaded.model.heads:
        pipeline("fill-mask", loaded)([f"a {loaded.tokenizer.pieces([loaded.tokenizer.mask])[0]}"])
    if "nsp" in loaded.model.heads:
        PIPELINES["next-sentence"](loaded)([TEXT], [PAIR])
    if task_name_of(loaded.settings, loaded.model.heads) is not None:
        answer = answering(loaded)
        item = {"answer": (TEXT, PAIR), "choose": (TEXT, [PAIR, TEXT])}
        answer(
            item.get(answer.task.name, TEXT),
            long="truncate" if "truncate" in answer.task.long else None,
        )


def use(name: str, folder: Path) -> None:
    """Open a directory of a format, or of a model."""
    if name in FORMATS:
        FORMATS[name].use(folder)
    else:
        use_model(folder)


def child(name: str, folder: Path) -> tuple[str, str]:
    size = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = size * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(4 * SECONDS)  # stops a process that only waits
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    try:
        use(name, folder)
    except BertkitError as error:
        return "refused", str(error)
    except BaseException:
        return "raised", traceback.format_exc()
    return "answered", ""


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        for folder in map(Path, sys.argv[1:]):
            if folder.name not in THREADS:
                shutil.copytree(folder, Path(directory, folder.name))  # a run changes its directory
                use(folder.name, Path(directory, folder.name))
    # They start threads when they are used, and so are only imported before the fork.
    for name in ("onnxruntime", "openvino", "pyarrow.parquet"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        if line.startswith("store\t"):
            importlib.import_module("bertkit.extensions.search.lance")
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(read)
            name, _, path = line.removesuffix("\n").partition("\t")
            result = child(name, Path(path))
            os.write(write, json.dumps(result).encode()[:60_000])
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(process, 0)
        end = ["killed", f"exit {os.waitstatus_to_exitcode(status)}"]
        if answer:
            try:
                end = json.loads(answer)
            except ValueError:
                end = ["raised", answer[:2000].decode()]
        os.write(answers, json.dumps({"end": end[0], "said": end[1]}).encode() + b"\n")


if __name__ == "__main__":
    main()
