"""A process that opens good folders, and then others in forks of itself, under limits.

The good ones are its arguments: with them everything is imported that the others need.
Reads the path of a folder a line from stdin. Answers with a line of JSON: `end`, one of
`answered`, `refused` (a BertkitError), `raised` (another error) and `killed`, and what was said.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import traceback
import warnings
from pathlib import Path

import torch

from bertkit.checkpoint.folder import load
from bertkit.checkpoint.int8 import FILE as INT8
from bertkit.engine.exported import RECORD, Exported
from bertkit.errors import BertkitError
from bertkit.pipelines import OTHERS, answering, open_engine, pipeline
from bertkit.recipes.info import info
from bertkit.tasks import name_in

MEMORY = 2 << 30
"""Bytes that opening a tiny folder may ask for."""

SECONDS = 10
"""Of the processor."""

TEXT, PAIR = "a we bc", "the a. [MASK] <mask>"


def use(folder: Path) -> None:
    """Open a folder and ask it for all that it can answer."""
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
        OTHERS["next-sentence"](loaded)([TEXT], [PAIR])
    if name_in(loaded.settings, loaded.model.heads) is not None:
        answer = answering(loaded)
        item = {"answer": (TEXT, PAIR), "choose": (TEXT, [PAIR, TEXT])}
        answer(
            item.get(answer.task.name, TEXT),
            long="truncate" if "truncate" in answer.task.long else None,
        )


def child(folder: Path) -> tuple[str, str]:
    size = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = size * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(12 * SECONDS)  # for what only waits
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    try:
        use(folder)
    except BertkitError as error:
        return "refused", str(error)
    except BaseException:
        return "raised", traceback.format_exc()
    return "answered", ""


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    for folder in sys.argv[1:]:
        use(Path(folder))
    for name in ("onnxruntime", "openvino"):  # imported here, used in forks: both begin threads
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(read)
            found = child(Path(line.removesuffix("\n")))
            os.write(write, json.dumps(found).encode()[:60_000])
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(process, 0)
        end = ["killed", f"exit {os.waitstatus_to_exitcode(status)}"]
        if said:
            try:
                end = json.loads(said)
            except ValueError:
                end = ["raised", said[:2000].decode()]
        os.write(answers, json.dumps({"end": end[0], "said": end[1]}).encode() + b"\n")


if __name__ == "__main__":
    main()
