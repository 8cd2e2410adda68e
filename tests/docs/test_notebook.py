"""The tutorial notebook runs from top to bottom and prints its stored outputs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.docs.outputs import missing

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial" / "18-notebook.ipynb"
RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=240).execute()
nbformat.write(notebook, sys.argv[2])
"""
"""Code that runs the notebook in a separate process, because imports of Jupyter warn."""


def outputs(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(outputs: list[dict[str, Any]]) -> str:
    """Return the text of a cell without tables."""
    parts = []
    for output in outputs:
        data = output.get("data", {})
        if "<table" in "".join(data.get("text/html", "")):
            continue
        parts.append("".join(output.get("text", "")) or "".join(data.get("text/plain", "")))
    return "\n".join(parts)


@pytest.mark.slow
def test_notebook_runs_and_matches_stored_outputs(
    tmp_path: Path, minilm: Path, data_folder: Path
) -> None:
    for module in ("nbclient", "ipykernel", "pandas"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install 'bertkit[dev]'")
    shown = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    ran = tmp_path / "ran.ipynb"
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(NOTEBOOK), str(ran)],
        cwd=tmp_path,
        env={
            **os.environ,
            "MODEL": str(minilm.resolve()),
            "DATA": str(data_folder.resolve()),
            "OMP_NUM_THREADS": "1",
            "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI",  # no bf16, like the outputs of the notebook
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    now = json.loads(ran.read_text(encoding="utf-8"))
    for then, after in zip(outputs(shown), outputs(now), strict=True):
        assert not missing(printed(then), printed(after)), printed(after)
    page = "".join(outputs(now)[-2][-1]["data"]["text/html"])
    assert page.startswith("<iframe srcdoc=")
    assert "A warm and funny film." in page


def test_notebook_contains_no_local_path_or_page() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 60_000
    assert "iframe" not in text
    assert not re.search(r"(?<![\w.])/(home|work|root|tmp)/", text)
