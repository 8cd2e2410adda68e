"""Answers of a fine-tuned model to the rows of a program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.config import with_keywords
from bertkit.data.paths import is_table
from bertkit.data.rows_in_memory import KINDS, is_rows
from bertkit.errors import DataError
from bertkit.nn.precision import Inference
from bertkit.recipes.predict_file import answered
from bertkit.synonyms import check_keywords
from bertkit.tasks import Task
from bertkit.tasks.inference import STREAM_ITEMS, Answering
from bertkit.tasks.task import Reading
from bertkit.text.long_texts import Long

if TYPE_CHECKING:  # an exported model needs no torch
    from bertkit.checkpoint.directory import Loaded


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
    """An answer to each row: of a DataFrame, one of its columns, a Dataset, dicts, texts, (text,
    pair) tuples, or a file as a `Path`. `bertkit.frame` makes a DataFrame of them.

    Columns are told as those of files are, or named by keywords: `text_column="review"`. Labels
    are not needed. Texts longer than the model are cut, and counted, where the task can cut them;
    `long` says otherwise. `device` auto is a GPU if PyTorch finds one.
    Raises: DataError for a row that cannot be answered, ConfigError for a keyword that is none.
    """
    if isinstance(model, Answering):
        answer = model
    else:
        answer = open_format(model).load_predictor(LoadSettings(precision, device, task))
    (named,) = with_keywords("predict", {Reading: reading}, columns)
    if isinstance(rows, str) and is_table(rows):
        raise DataError(f"{rows}: a file, and not a text; give its Path for its rows")
    if isinstance(rows, str | tuple):
        rows = [rows]
    elif not (hasattr(rows, "__iter__") or is_rows(rows)):
        raise DataError(f"rows: {type(rows).__name__} holds none; give {KINDS}")
    examples = answer.examples(rows, named)
    return list(answered(answer, examples, long=long, watched=len(examples) > STREAM_ITEMS))
