"""What a model folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bertkit.checkpoint.directory import Loaded
from bertkit.checkpoint.elmo import SOFTMAX, load_elmo, load_softmax
from bertkit.config import plain
from bertkit.pipelines.elmo_task import is_elmo_task, read_record
from bertkit.tasks import recorded


def info(loaded: Loaded) -> dict[str, Any]:
    """Shape, parameters and where they are, heads, labels, tokenizer."""
    encoder = loaded.model.encoder
    groups = {
        **dict(encoder.named_children()),
        **{f"head {name}": head for name, head in loaded.model.heads.items()},
    }
    counts = {name: sum(p.numel() for p in m.parameters()) for name, m in groups.items()}
    counts = {name: count for name, count in counts.items() if count or name.startswith("head ")}
    tokenizer = loaded.tokenizer
    return {
        "folder": str(loaded.folder),
        "family": loaded.family.name,
        "shape": plain(loaded.model.config),
        "parameters": {**counts, "all": sum(counts.values())},
        "heads": list(loaded.model.heads),
        "labels": list(loaded.labels),
        "pooling": _pooling(loaded),
        "length": loaded.length,
        "tokenizer": {"pieces": tokenizer.vocab_size, "fingerprint": tokenizer.fingerprint},
        "unused weights": list(loaded.report.unused),
    }


def elmo_info(folder: Path) -> dict[str, Any]:
    """The same of an ELMo's folder, and what a task has learned on it: the weight of each layer."""
    model = load_elmo(folder)
    groups = {"words": model.words, "lstm": model.directions}
    counts = {name: sum(p.numel() for p in m.parameters()) for name, m in groups.items()}
    task = read_record(folder) if is_elmo_task(folder) else None
    told = len(load_softmax(folder, model.config).words) if (folder / SOFTMAX).exists() else None
    return {
        "folder": str(folder),
        "family": "elmo",
        "shape": msgspec.to_builtins(model.config),
        "parameters": {**counts, "all": sum(counts.values())},
        "words told": told,
        "task": None if task is None else recorded(task.settings),
        "labels": [] if task is None else task.labels,
        "mixture": None if task is None else task.mixture,
    }


def _pooling(loaded: Loaded) -> dict[str, Any] | None:
    held = loaded.pooling
    if held is None:
        return None
    width = held.width(loaded.model.config.hidden)
    return {
        "mode": held.mode,
        "normalize": held.normalize,
        "dimension": width,
        "prompts": held.prompts.named,
        "default prompt": held.prompts.default,
        "similarity": held.similarity,
    }
