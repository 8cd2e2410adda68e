"""Store the results of transformers 4.57 in golden/.

Write the models with `models.py`, and run this file where transformers 4.57.6 is installed:

    python -m tests.extensions.transformers_pipelines.make_golden FOLDER_OF_MODELS FOLDER_OF_MINILM
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.extensions.transformers_pipelines.cases import CASES, Case
from transformers import __version__, pipeline


def plain(value: Any) -> Any:
    """Return a result as JSON, with rounded numbers."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value if isinstance(value, str | int) else round(float(value), 6)


def result(case: Case, models: dict[str, Path]) -> Any:
    """Return the result of a call in transformers."""
    run = pipeline(case.pipeline, str(models[case.model]), device="cpu", **case.opened)
    found = plain(run(*case.inputs, **case.arguments))
    # All numbers of a published model would be a large file.
    return [[row[:6] for row in found[0]]] if case.model == "minilm" else found


def main(folder: str, minilm: str) -> None:
    """Write all files."""
    assert __version__.startswith("4.57."), __version__
    models = {path.name: path for path in Path(folder).iterdir()} | {"minilm": Path(minilm)}
    for name, cases in CASES.items():
        results = [result(case, models) for case in cases]
        path = Path(__file__).parent / "golden" / f"{name}.json"
        path.write_text("[\n" + ",\n".join(map(json.dumps, results)) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
