"""Examples and plans of small experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SETTINGS = {"task": "classify", "epochs": 1, "batch_size": 8, "precision": "fp32", "warmup": 0.0}


def rows(count: int, first: int = 0) -> list[dict[str, str]]:
    """Return texts about a class or a loop, with their labels."""
    words = [("class", "thing"), ("loop", "doing")]
    pairs = [(i, *words[i % 2]) for i in range(first, first + count)]
    return [{"text": f"the {word} number {i}", "label": label} for i, word, label in pairs]


def plan(base: Path, **changes: Any) -> dict[str, Any]:
    """Return an experiment that fine-tunes a model on `rows`, with changes."""
    settings = {"train": rows(64), "dev": rows(16, 100), "model": str(base), **SETTINGS}
    return {"settings": {**settings, **changes.pop("settings", {})}, **changes}
