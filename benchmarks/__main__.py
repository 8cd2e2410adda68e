"""`python -m benchmarks NAME`: run one benchmark.

Each row is written to `local/PROCESSOR/NAME.json` when it is measured, so an interrupted run
resumes without measuring it again. Git ignores `local/`. `results/` contains the published rows,
which no benchmark reads; to publish rows, copy their file there.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

NAMES = (
    "pretrain",
    "finetune",
    "embed",
    "latency",
    "serve",
    "search",
    "prepare",
    "generate",
    "zero_shot",
    "startup",
    "gpu",
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("name", choices=NAMES, metavar=f"{{{','.join(NAMES)}}}")
    parser.add_argument(
        "--quick", action="store_true", help="run a fraction of the work, without saving results"
    )
    parser.add_argument("--only", metavar="TEXT", help="rows whose description contains TEXT")
    parser.add_argument("--minutes", type=float, help="time limit for starting measurements")
    parser.add_argument("--fresh", action="store_true", help="repeat the measurements in local/")
    finetune = parser.add_argument_group("finetune only")
    finetune.add_argument("--tasks", metavar="A,B", help="tasks to measure; all by default")
    finetune.add_argument("--seeds", metavar="0,1", help="seeds to measure; 0,1,2 by default")
    finetune.add_argument(
        "--speed", action="store_true", help="measure only times, on some examples (minutes)"
    )
    given = {option: value for option, value in vars(parser.parse_args(arguments)).items() if value}
    name = given.pop("name")
    unsupported = given.keys() & {"tasks", "seeds", "speed"}
    if name != "finetune" and unsupported:
        parser.error(f"{name}: --{min(unsupported)} is not supported")
    # Network access would add to the times of the baselines.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from benchmarks.harness import Options

    try:
        importlib.import_module(f"benchmarks.{name}").main(Options(**given))
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith(("benchmarks", "bertkit")):
            raise
        parser.error(f"{name}: requires {missing.name}; run make bench NAME={name} to install it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
