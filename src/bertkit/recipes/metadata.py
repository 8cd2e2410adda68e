"""Metadata of model cards for the Hugging Face hub: task, base model and scores."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from bertkit.checkpoint.hub import ID
from bertkit.checkpoint.pooling_files import read_object
from bertkit.families import BERT, family_of
from bertkit.models.config import TransformerConfig

PIPELINES = {
    "classify": "text-classification",
    "tag": "token-classification",
    "answer": "question-answering",
    "choose": "multiple-choice",
    "respond": "text-ranking",
    "similarity": "sentence-similarity",
    "summarize": "summarization",
    "chat": "text-generation",
    "dpo": "text-generation",
    "seq2seq": "text2text-generation",
}
"""Pipeline tag of the hub for each task."""


INSTALLED = ("site-packages", "dist-packages")
"""Directories into which pip installs packages."""


def front_matter(folder: Path, run: Mapping[str, Any]) -> list[str]:
    """Return the YAML front matter of a model card, as lines.

    Args:
        folder: Model directory.
        run: Content of its scores.json.
    """
    from huggingface_hub import EvalResult, ModelCardData

    name = run["task"]["name"]
    scores = {n: v for n, v in run["dev"].items() if n != "epoch" and isinstance(v, int | float)}
    has_embeddings = name == "similarity" or run["task"].get("options", {}).get("contrastive")
    library = "sentence-transformers" if has_embeddings else "transformers"
    library = "bertkit" if is_own_format(read_settings(folder)) else library
    pipeline = PIPELINES.get(name)
    results = None
    if pipeline is not None:
        dev = data_name(run["data"]["dev"])
        results = [
            EvalResult(
                task_type=pipeline,
                dataset_type="custom",
                dataset_name=dev,
                metric_type=metric,
                metric_value=round(value, 6),
            )
            for metric, value in scores.items()
        ]
    data = ModelCardData(
        model_name=folder.name,
        library_name=library,
        pipeline_tag=pipeline,
        base_model=hub_id(run["model"]),
        tags=["bertkit"],
        eval_results=results,
    )
    return ["---", *data.to_yaml().strip().splitlines(), "---", ""]


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the content of config.json, or an empty dict if the file does not exist."""
    path = folder / "config.json"
    return read_object(path) if path.exists() else {}


def is_own_format(settings: Mapping[str, Any]) -> bool:
    """Return whether only bertkit can load a model whose config.json has these settings."""
    family = family_of(settings.get("model_type", BERT.name))
    return family is None or family.config_type is not TransformerConfig


def model_name(model: str) -> str:
    """Return the public name of a model: its hub id, or the name of its directory.

    If the directory is part of an installed package, the result is the name of the package.

    Args:
        model: Hub id, or path of a model directory.
    """
    if hub_id(model):
        return model
    parts = Path(model).absolute().parts  # The relative path "." has no name.
    installed = [child for parent, child in pairwise(parts) if parent in INSTALLED]
    return installed[-1] if installed else parts[-1]


def data_name(about: Mapping[str, Any]) -> str:
    """Return the public name of a data set: for a file, its name without the directories.

    Args:
        about: Entry of the data set in the record of a run.
    """
    if about["file"]:
        return Path(about["file"]).name
    return str(about.get("name") or "examples given in Python")


def hub_id(model: str) -> str | None:
    """Return the hub id of a model, or None for a directory."""
    return model if ID.fullmatch(model) is not None and not Path(model).exists() else None
