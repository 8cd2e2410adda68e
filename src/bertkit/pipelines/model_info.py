"""Summary of a model directory."""

from __future__ import annotations

from typing import Any

from bertkit.checkpoint.directory import Loaded
from bertkit.config import plain


def info(loaded: Loaded) -> dict[str, Any]:
    """Return a summary of a model: shape, parameters, heads, labels, pooling, and tokenizer."""
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


def _pooling(loaded: Loaded) -> dict[str, Any] | None:
    pooling = loaded.pooling
    if pooling is None:
        return None
    width = pooling.width(loaded.model.config.hidden)
    return {
        "mode": pooling.mode,
        "normalize": pooling.normalize,
        "dimension": width,
        "prompts": pooling.prompts.named,
        "default prompt": pooling.prompts.default,
        "similarity": pooling.similarity,
    }
