"""`python -m benchmarks NAME`: run one benchmark, or draw them all with `report`.

Each row is written to `local/PROCESSOR/NAME.json` when it is measured, and not measured again, so
that an interrupted run resumes. Git ignores `local/`. `results/` has the published rows, which
`report` draws; to publish rows, copy their file there.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

HELPERS = {
    *(
        "__init__",
        "__main__",
        "accelerated",
        "clean",
        "downstream",
        "graphs",
        "harness",
        "joey",
        "kept",
        "marian",
        "prepare_parts",
        "resume",
        "text",
        "trainer",
    )
}
TAKES = {
    "finetune": {"tasks", "seeds", "speed"},
    "distill": {"tasks", "seeds", "rows"},
    "few": {"seeds"},
    "experiments": {"seeds"},
    "defaults": {"tasks", "seeds"},
    "speedrun": {"seeds"},
}
"""Options of these benchmarks alone."""


def main(arguments: list[str]) -> int:
    names = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - HELPERS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("name", choices=names, metavar=f"{{{','.join(names)}}}")
    parser.add_argument(
        "--quick", action="store_true", help="a fraction of the work, printed and not kept"
    )
    parser.add_argument("--only", metavar="TEXT", help="the rows whose description holds TEXT")
    parser.add_argument("--minutes", type=float, help="begin nothing more after so many")
    parser.add_argument("--fresh", action="store_true", help="measure again what is in local/")
    some = parser.add_argument_group("of some benchmarks alone")
    some.add_argument("--tasks", metavar="A,B", help="these alone")
    some.add_argument("--seeds", metavar="0,1", help="by default several")
    some.add_argument("--rows", type=int, help="distill: so many rows to learn from")
    some.add_argument(
        "--speed", action="store_true", help="finetune: times of some rows, and no scores (minutes)"
    )
    given = {option: value for option, value in vars(parser.parse_args(arguments)).items() if value}
    name = given.pop("name")
    strange = given.keys() & {"tasks", "seeds", "rows", "speed"} - TAKES.get(name, set())
    if strange:
        parser.error(f"{name}: takes no --{min(strange)}")
    os.environ["HF_HUB_OFFLINE"] = "1"  # or a peer's figure holds its wait for the network
    from benchmarks.harness import Options

    try:
        importlib.import_module(f"benchmarks.{name}").main(Options(**given))
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith(("benchmarks", "bertkit")):
            raise  # no peer, but a fault of our own
        parser.error(f"{name}: needs {missing.name}, which make bench-{name} installs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
