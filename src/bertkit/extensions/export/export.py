"""The command `export`, which writes a model that runs without torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

from bertkit.checkpoint.directory import Loaded, load
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.extensions.export import graph_export as exporting
from bertkit.pipelines import Embed, answering
from bertkit.storage import check_unused, new_folder
from bertkit.synonyms import check_keywords
from bertkit.tasks import Task
from bertkit.tasks.trained_columns import with_columns

NEEDS = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}


@check_keywords
def export(
    model: str | Path | Loaded,
    /,
    *,
    out: Path,
    format: Literal["onnx", "openvino"] = "onnx",
    operators: Literal["fused", "standard"] = "fused",
    pooling: Literal["mean", "cls", "max"] | None = None,
    task: str | type[Task[Any, Any]] | None = None,
) -> dict[str, Any]:
    """Export an embedding model or classifier to ONNX or OpenVINO.

    The output directory contains a graph and a tokenizer, which run without torch.

    Args:
        model: Model directory or hub id.
        out: Directory to write, which you can pass to `bertkit embed` and `predict`. It must not
            exist.
        format: Format of the graph: onnx for ONNX Runtime, or openvino for OpenVINO.
        operators: Operators of an ONNX graph: fused uses the operators of ONNX Runtime, which are
            the fastest, and standard uses operators that other runtimes also support. Models whose
            layers differ from BERT's, and graphs for OpenVINO, always use standard operators.
        pooling: How to pool token embeddings. Default: the pooling of the model if it has one, or
            else mean.
        task: Fine-tuned task, such as classify. The graph then also outputs the logits of this
            task.

    Returns:
        The format, the operators, the maximum number of tokens of a text, and the largest
        difference between the outputs of the graph and of the model.

    Raises:
        ConfigError: If `out` exists, or a required package is not installed.
        CheckpointError: If the outputs of the graph differ from the model's.
    """
    check_unused(out)
    missing = [name for name in NEEDS[format] if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"format: {format} requires missing packages ({', '.join(missing)}); "
            "run pip install 'bertkit[export]'"
        )
    # Imported here, because it requires onnx.
    from bertkit.extensions.export.graph import unsupported_reason

    loaded = model if isinstance(model, Loaded) else load(model)
    head, task_record = None, {}
    if task is not None:
        answers = answering(loaded, task)
        loaded, head = answers.loaded, answers.task.head
        settings = with_columns(answers.task.settings(), answers.columns)
        task_record = {"labels": answers.task.labels, "settings": settings}
    embed = Embed(loaded, pooling=pooling)
    if format != "onnx":
        operators = "standard"
    elif operators == "fused":
        part = None if head is None else loaded.model.heads[head]
        if reason := unsupported_reason(loaded.model, part):
            say(f"operators: standard, because {reason}")
            operators = "standard"
    if out.exists():
        # The directory is empty, because `check_unused` has rejected any other.
        out.rmdir()
    with new_folder(out) as partial:
        loaded.tokenizer.save(partial, segments=loaded.model.config.token_types > 1)
        difference = exporting.export(
            loaded.model,
            embed.pooling,
            partial,
            length=loaded.length,
            kind=format,
            head=head,
            operators=operators,
            metadata={
                "fingerprint": embed.fingerprint(),
                "similarity": embed.pooling.similarity,
                **task_record,
            },
        )
    return {
        "format": format,
        "operators": operators,
        "length": loaded.length,
        "largest_difference": difference,
    }
