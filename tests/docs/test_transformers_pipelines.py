"""The examples of the guide for users of transformers run, with tiny models."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from tests.docs.outputs import missing
from tests.docs.test_tutorial import DOCS, blocks
from tests.extensions.transformers_pipelines.models import write_models

from bertkit.pipelines import PIPELINES

PAGE = (DOCS / "guide" / "transformers-pipelines.md").read_text(encoding="utf-8")


def test_examples_run_and_match_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_models(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(PAGE):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block.code, names)
        assert block.shown
        assert not missing(block.shown, printed.getvalue()), printed.getvalue()


def test_examples_show_each_pipeline_before_and_after() -> None:
    shown = "".join(block.code for block in blocks(PAGE))
    paths = PIPELINES.paths.items()
    names = [name for name, path in paths if path.split(".")[2] == "transformers_pipelines"]
    names.append("zero-shot-classification")
    aliases = {"sentiment-analysis": "text-classification", "token-classification": "ner"}
    for name in (aliases.get(name, name) for name in names):
        for package in ("transformers", "bertkit"):
            assert f'{package}.pipeline("{name}' in shown
