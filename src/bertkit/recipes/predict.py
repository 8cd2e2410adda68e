"""Predictions of a fine-tuned model for rows in memory or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.config import document_keywords, with_keywords
from bertkit.data.paths import is_table
from bertkit.data.rows_in_memory import KINDS, is_rows
from bertkit.errors import DataError
from bertkit.nn.precision import Inference
from bertkit.recipes.predict_file import predict_examples
from bertkit.synonyms import check_keywords
from bertkit.tasks import Task
from bertkit.tasks.inference import ITEMS_PER_CHUNK, Answering
from bertkit.tasks.task import Reading
from bertkit.text.long_texts import Long

# Exported models do not require torch, so this is not imported at run time.
if TYPE_CHECKING:
    from bertkit.checkpoint.directory import Loaded


@document_keywords(Reading)
@check_keywords
def predict(
    model: str | Path | Loaded | Answering[Any],
    rows: Any,
    /,
    *,
    task: str | type[Task[Any, Any]] | None = None,
    long: Long | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
    reading: Reading | Mapping[str, Any] | None = None,
    **columns: Any,
) -> list[Any]:
    """Predict with a model for each row, such as the label of its text.

    `bertkit.frame` converts the predictions to a DataFrame.

    Args:
        model: Model directory, hub id, exported model, loaded model, or pipeline.
        rows: A DataFrame, a column of a DataFrame, a Dataset, a list of dicts, texts or
            (text, pair) tuples, or the `Path` of a file. Labels are not required.
        task: Task of the model, if the task is not part of bertkit.
        long: What to do with texts that are too long: raise an error, truncate them, or split them
            into windows. By default, they are truncated if the task supports it. The number of
            truncated texts is logged.
        precision: Precision of the computation.
        device: Device, such as "cpu". "auto" selects a GPU if PyTorch finds one.
        reading: Columns and format of the rows. Default: detected from the rows.
        **columns: Columns as keywords, such as `text_column="review"`.

    Returns:
        One prediction per row.

    Raises:
        DataError: If a row is invalid.
        ConfigError: If a keyword is unknown.
    """
    if isinstance(model, Answering):
        answer = model
    else:
        answer = open_format(model).load_predictor(LoadSettings(precision, device, task))
    (resolved,) = with_keywords("predict", {Reading: reading}, columns)
    if isinstance(rows, str) and is_table(rows):
        raise DataError(f"{rows}: expected a text, got the name of a file; pass a pathlib.Path")
    if isinstance(rows, str | tuple):
        rows = [rows]
    elif not (hasattr(rows, "__iter__") or is_rows(rows)):
        raise DataError(f"rows: {type(rows).__name__} is not supported; pass {KINDS}")
    examples = answer.examples(rows, resolved)
    return list(
        predict_examples(answer, examples, long=long, watched=len(examples) > ITEMS_PER_CHUNK)
    )
