"""Embedding of texts, as JSON lines, an array or a file. Exported models do not require torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.formats import ACCELERATORS, LoadSettings, open_format
from bertkit.checkpoint.hub import resolve
from bertkit.checkpoint.run_directory import TUNING_FILE
from bertkit.console import lines, say
from bertkit.data.paths import is_table
from bertkit.errors import DataError
from bertkit.memory import limit_onednn_cache
from bertkit.storage import check_unused, writing
from bertkit.synonyms import check_keywords
from bertkit.text.long_texts import Long

# Exported models do not require torch, so these are not imported at run time.
if TYPE_CHECKING:
    from bertkit.checkpoint.directory import Loaded
    from bertkit.pipelines.base import Embedder

Part = tuple[NDArray[np.float32], list[bool]]
"""Embeddings of some texts, and whether each text was truncated."""


def embed_texts(
    model: str,
    texts: Sequence[str] | None = None,
    /,
    *,
    prompt: str | None = None,
    pooling: Literal["mean", "cls", "max"] | None = None,
    long: Long = "error",
    precision: Literal["auto", "fp32", "bf16", "int8"] = "fp32",
    batch_invariant: bool = False,
    device: str = "auto",
    out: Path | None = None,
) -> Iterator[list[float]]:
    """Compute embeddings of texts, as JSON or as a .npy file.

    Args:
        model: Model directory, hub id, or directory of an exported model.
        texts: Input texts. Default: the lines of stdin.
        prompt: Prompt to prepend to each text: the name of one of the model's prompts, or a literal
            such as "query: ". Default: the model's default prompt, if any. The prompt in use is
            logged.
        pooling: Pooling of the token states: their mean, their maximum, or the state of [CLS].
            Default: the pooling of the model, or mean.
        long: What to do with texts that are too long: raise an error, truncate them, or split them
            into windows whose embeddings are averaged.
        precision: Precision of the computation.
        batch_invariant: Whether to embed each text separately. This is slower, but no bit of an
            embedding then depends on the other texts.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one, unless the
            precision is int8.
        out: Path of the .npy file to write: float32, one row per text. Must not exist.

    Yields:
        The embedding of each text, unless `out` is set.
    """
    limit_onednn_cache()
    settings = LoadSettings(precision, device, pooling=pooling, batch_invariant=batch_invariant)
    pipeline = load_embedder(model, settings, prompt)
    count = truncated = 0
    if out is not None:
        count, truncated = embed_file(pipeline, texts or lines(), out, long=long)
        say(f"{out}: {count:,} × {pipeline.dimension}")
    else:
        for vectors, flags in pipeline.stream(texts or lines(), long=long):
            count, truncated = count + len(flags), truncated + sum(flags)
            yield from vectors.tolist()
    if truncated:
        say(f"{truncated:,} of {count:,} texts were truncated to {pipeline.length} tokens")


@check_keywords
def embed(
    model: str | Path | Loaded,
    texts: Any,
    /,
    *,
    text_column: str | None = None,
    prompt: str | None = None,
    pooling: Literal["mean", "cls", "max"] | None = None,
    long: Long = "error",
    precision: Literal["auto", "fp32", "bf16", "int8"] = "fp32",
    device: str = "auto",
) -> NDArray[np.float32]:
    """Compute the embeddings of texts.

    Args:
        model: Model directory, hub id, exported model, or loaded model.
        texts: A text, a list of texts, a DataFrame, a column of a DataFrame, a Dataset, a list of
            dicts, or the `Path` of a file.
        text_column: Name of the column that contains the texts. Default: detected from the content.
        prompt: Name of one of the model's prompts, or a literal such as "query: ". Default: the
            model's default prompt, if any.
        pooling: Pooling of the token states. Default: the pooling of the model, or mean.
        long: What to do with texts that are too long: raise an error, truncate them, or split them
            into windows whose embeddings are averaged.
        precision: Precision of the computation.
        device: Device, such as "cpu". "auto" selects a GPU if PyTorch finds one, unless the
            precision is int8.

    Returns:
        One embedding per text.

    Raises:
        DataError: If a table has an empty cell, or a text is too long and `long` is "error".
        ConfigError: If the model does not support a setting.

    Shapes:
        returns: (S, D).
    """
    limit_onednn_cache()
    if isinstance(texts, str) and is_table(texts):
        raise DataError(f"{texts}: expected a text, got the name of a file; pass a pathlib.Path")
    pipeline = load_embedder(model, LoadSettings(precision, device, pooling=pooling), prompt)
    rows = [texts] if isinstance(texts, str) else texts
    if not (isinstance(rows, list) and all(isinstance(text, str) for text in rows)):
        # This import takes long, because the module supports many types of tables.
        from bertkit.data.rows_in_memory import texts_of

        rows = texts_of(rows, text_column, "texts")
    vectors = np.empty((len(rows), pipeline.dimension), np.float32)
    parts, count = pipeline.stream(rows, long=long), 0
    for part, _ in parts if len(rows) <= MIN_TEXTS_FOR_PROGRESS else _show_bar(parts, len(rows)):
        vectors[count : count + len(part)] = part
        count += len(part)
    return vectors


MIN_TEXTS_FOR_PROGRESS = 1000
"""Number of texts above which a progress bar is shown."""


def embed_file(
    embed: Embedder, texts: Iterable[str], out: Path, *, long: Long = "error"
) -> tuple[int, int]:
    """Write the embeddings of texts to a .npy file: a float32 array of shape (S, D).

    Embeddings are written in blocks of a few thousand, so memory does not grow with the number of
    texts. The file is created atomically at the end.

    Args:
        embed: The model.
        texts: The texts.
        out: Output path. Must not exist.
        long: What to do with texts that are too long: raise an error, truncate them, or split them
            into windows whose embeddings are averaged.

    Returns:
        The number of texts, and the number of truncated texts.

    Raises:
        ConfigError: If `out` exists.
        DataError: If a text is too long and `long` is "error".
    """
    check_unused(out)
    width = embed.dimension
    count = truncated = 0
    with writing(out) as partial, partial.open("wb") as file:
        start = _header(file, 0, width)
        for vectors, flags in _show_bar(embed.stream(texts, long=long), None):
            file.write(np.ascontiguousarray(vectors, dtype="<f4").data)
            count, truncated = count + len(vectors), truncated + sum(flags)
        file.seek(0)
        # NumPy pads the header, so that it has the same size for every count.
        assert _header(file, count, width) == start
    return count, truncated


def _show_bar(parts: Iterator[Part], total: int | None) -> Iterator[Part]:
    """Yield the parts, and show a progress bar with the number of texts."""
    from bertkit.progress import progress  # Importing rich takes long.

    with progress() as bar:
        task = bar.add_task("embedding", total=total, note="")
        for vectors, flags in parts:
            yield vectors, flags
            bar.advance(task, len(vectors))


def load_embedder(
    model: str | Path | Loaded, settings: LoadSettings, prompt: str | None = None
) -> Embedder:
    """Load an embedding model of any supported format.

    Args:
        model: Model directory, hub id, or loaded model.
        settings: Precision, device and pooling.
        prompt: Name of one of the model's prompts, or a literal. Default: the model's default
            prompt, if any.

    Raises:
        ConfigError: If the model does not support a setting, or the prompt is unknown.
    """
    embedder: Embedder | None = None
    if isinstance(model, str | Path) and settings in TUNABLE and not GPU.exists():
        folder = resolve(model)
        if (folder / TUNING_FILE).exists():
            embedder = ACCELERATORS["embedder"](folder)
    if embedder is None:
        embedder = open_format(model).load_embedder(settings)
    embedder.prompt.usual = embedder.prompt.prompts.find(prompt)
    return embedder


TUNABLE = tuple(LoadSettings("auto", device) for device in ("auto", "cpu"))
"""Settings for which the results of `bertkit export tune` are used."""

GPU = Path("/proc/driver/nvidia")
"""Path that exists if an NVIDIA driver is loaded. A tuned CPU model may be slower than a GPU."""


def _header(file: BinaryIO, count: int, width: int) -> int:
    """Write the header of a .npy file, and return its size in bytes."""
    shape = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
    np.lib.format.write_array_header_1_0(file, shape)
    return file.tell()
