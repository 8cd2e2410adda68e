"""The worst answers, to be read: `errors.jsonl` for tools, `errors.html` for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bertkit.storage import write_text
from bertkit.tasks.task import A, E, Task
from bertkit.view.figures import Table
from bertkit.view.page import write_report

JSONL, HTML = "errors.jsonl", "errors.html"
MOST = 100
"""Errors listed on the page; the file of rows has all."""


def write_mistakes(
    folder: Path, task: Task[E, A], answers: Sequence[A], examples: Sequence[E]
) -> None:
    """List the answers that are wrong in any way, the worst first, with their place in the file."""
    wrong = []
    for answer, example in zip(answers, examples, strict=True):
        record = task.error_record(answer, example)
        if record.severity > 0:
            wrong.append({"where": example.where, **asdict(record)})
    wrong.sort(key=lambda row: -row["severity"])
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in wrong]
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JSONL, "".join(lines))
    errors = [
        (Path(row["where"]).name, row["shown"], row["expected"], row["answered"], row["severity"])
        for row in wrong[:MOST]
    ]
    names = ("where", "text", "expected", "answered", "how wrong")
    write_report(
        folder / HTML,
        "errors.html",
        name=folder.name,
        wrong=len(wrong),
        of=len(examples),
        errors=Table("Errors", errors, names, wraps=True),
    )
