"""`python -m benchmarks NAME`: run one benchmark, or draw them all with `report`."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

HELPERS = {"__init__", "__main__", "harness", "text"}


def main(arguments: list[str]) -> int:
    names = sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - HELPERS)
    options = [a for a in arguments if a.startswith("-")]
    chosen = [a for a in arguments if not a.startswith("-")]
    if len(chosen) != 1 or chosen[0] not in names or set(options) - {"--quick"}:
        print(f"usage: python -m benchmarks {{{','.join(names)}}} [--quick]", file=sys.stderr)
        print("--quick: a fraction of the work, printed and not kept", file=sys.stderr)
        return 2
    os.environ["HF_HUB_OFFLINE"] = "1"  # or a peer's figure holds its wait for the network
    module = importlib.import_module(f"benchmarks.{chosen[0]}")
    module.main(quick="--quick" in options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
