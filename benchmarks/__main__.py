"""`python -m benchmarks NAME`: run one benchmark, or draw them all with `report`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

HELPERS = {"__init__", "__main__", "harness", "text"}


def main(arguments: list[str]) -> int:
    names = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - HELPERS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("name", choices=names, metavar=f"{{{','.join(names)}}}")
    parser.add_argument(
        "--quick", action="store_true", help="a fraction of the work, printed and not kept"
    )
    long = parser.add_argument_group("finetune, which goes on where it stopped")
    long.add_argument("--tasks", metavar="A,B", help="these alone")
    long.add_argument("--seeds", metavar="0,1", help="0,1,2 where not given")
    long.add_argument("--fresh", action="store_true", help="forget what was measured of them")
    given = {option: value for option, value in vars(parser.parse_args(arguments)).items() if value}
    name = given.pop("name")
    if name != "finetune" and given.keys() - {"quick"}:
        parser.error(f"{name}: --quick is its only option")
    os.environ["HF_HUB_OFFLINE"] = "1"  # or a peer's figure holds its wait for the network
    module = importlib.import_module(f"benchmarks.{name}")
    module.main(**given)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
