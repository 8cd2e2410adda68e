"""Vectors of any number of texts, as lines or as one file; an exported model needs no torch."""

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
from bertkit.storage import refuse_used, writing
from bertkit.synonyms import check_keywords
from bertkit.text.long_texts import Long

if TYPE_CHECKING:  # an exported model needs no torch
    from bertkit.checkpoint.directory import Loaded
    from bertkit.pipelines.base import Embedder

Part = tuple[NDArray[np.float32], list[bool]]
"""Vectors of some texts, and which of these were cut."""


def embed_texts(
    model: str,
    texts: Sequence[str] | None = None,
    /,
    *,
    prompt: str | None = None,
    pooling: Literal["mean", "cls", "max"] | None = None,
    long: Long = "error",
    precision: Literal["auto", "fp32", "bf16", "int8"] = "fp32",
    invariant: bool = False,
    device: str = "auto",
    out: Path | None = None,
) -> Iterator[list[float]]:
    """Compute embeddings of texts, as JSON or as a .npy file.

    Args:
        model: A model folder or hub id, or a folder that `bertkit export` made.
        texts: Input texts; by default the lines of stdin, without a limit.
        prompt: What stands before each text: the name of one of the model's prompts, or a text
            such as "query: "; by default the model's default one, if any. It is said which.
        pooling: The mean or maximum over tokens, or [CLS]; by default as the folder says, else
            mean.
        long: What to do with texts longer than the model.
        precision: Precision of the computation.
        invariant: Each text by itself, which is slower: its vector is then the same to the last
            bit, whatever it is embedded with.
        device: auto is the GPU where there is one, and the precision is not int8.
        out: A .npy file of float32, to be made, one row a text.
    """
    limit_onednn_cache()
    settings = LoadSettings(precision, device, pooling=pooling, batch_invariant=invariant)
    pipeline = opened(model, settings, prompt)
    count = cut = 0
    if out is not None:
        count, cut = embed_file(pipeline, texts or lines(), out, long=long)
        say(f"{out}: {count:,} × {pipeline.dimension}")
    else:
        for vectors, short in pipeline.stream(texts or lines(), long=long):
            count, cut = count + len(short), cut + sum(short)
            yield from vectors.tolist()
    if cut:
        say(f"{cut:,} of {count:,} texts are longer than {pipeline.length} tokens and were cut")


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
    """A vector for each text of any rows: a DataFrame, one of its columns, a Dataset, dicts, texts,
    or a file as a `Path`.

    `text_column` names the column of the texts; else it is the one that reads like texts. `device`
    auto is the GPU where there is one, and the precision is not int8.
    Shapes: (S, D). Raises: DataError for an empty cell of a table, or a text longer than the model
    unless `long` says what to do; ConfigError for settings that the model has not.
    """
    limit_onednn_cache()
    if isinstance(texts, str) and is_table(texts):
        raise DataError(f"{texts}: a file, and not a text; give its Path for its rows")
    pipeline = opened(model, LoadSettings(precision, device, pooling=pooling), prompt)
    given = [texts] if isinstance(texts, str) else texts
    if not (isinstance(given, list) and all(isinstance(text, str) for text in given)):
        from bertkit.data.rows_in_memory import texts_of  # tables of all kinds are slow to import

        given = texts_of(given, text_column, "texts")
    vectors = np.empty((len(given), pipeline.dimension), np.float32)
    parts, count = pipeline.stream(given, long=long), 0
    for part, _ in parts if len(given) <= MIN_TEXTS_FOR_PROGRESS else _watched(parts, len(given)):
        vectors[count : count + len(part)] = part
        count += len(part)
    return vectors


MIN_TEXTS_FOR_PROGRESS = 1000
"""With more texts than these progress is shown."""


def embed_file(
    embed: Embedder, texts: Iterable[str], out: Path, *, long: Long = "error"
) -> tuple[int, int]:
    """Write a vector for each text, as they come, into a .npy file (S, D) of float32.

    Texts are taken and written some thousands at a time, so that their number needs no memory. The
    file appears when all are written. Returns how many they are, and how many were cut.
    Raises: ConfigError when `out` is in use, DataError as `long` says.
    """
    refuse_used(out)
    width = embed.dimension
    count = cut = 0
    with writing(out) as partial, partial.open("wb") as file:
        start = _header(file, 0, width)
        for vectors, short in _watched(embed.stream(texts, long=long), None):
            file.write(np.ascontiguousarray(vectors, dtype="<f4").data)
            count, cut = count + len(vectors), cut + sum(short)
        file.seek(0)
        assert _header(file, count, width) == start  # numpy leaves room for longer numbers
    return count, cut


def _watched(parts: Iterator[Part], total: int | None) -> Iterator[Part]:
    """The same parts, as they come, and a bar that shows how many of the texts are done."""
    from bertkit.progress import progress  # rich is slow to import

    with progress() as bar:
        task = bar.add_task("embedding", total=total, note="")
        for vectors, short in parts:
            yield vectors, short
            bar.advance(task, len(vectors))


def opened(
    model: str | Path | Loaded, settings: LoadSettings, prompt: str | None = None
) -> Embedder:
    """Load a model of any format that computes embeddings.

    Raises:
        ConfigError: If a setting is not supported by the model, or the prompt is unknown.
    """
    ready: Embedder | None = None
    if isinstance(model, str | Path) and settings in TUNABLE and not GPU.exists():
        folder = resolve(model)
        if (folder / TUNING_FILE).exists():
            ready = ACCELERATORS["embedder"](folder)
    if ready is None:
        ready = open_format(model).load_embedder(settings)
    ready.prompt.usual = ready.prompt.prompts.find(prompt)
    return ready


TUNABLE = tuple(LoadSettings("auto", device) for device in ("auto", "cpu"))
"""Settings with which the settings that `bertkit export tune` stored are used."""

GPU = Path("/proc/driver/nvidia")
"""There where a GPU may be the faster device."""


def _header(file: BinaryIO, count: int, width: int) -> int:
    """Write what numpy begins a file with, and return how long it is."""
    shape = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
    np.lib.format.write_array_header_1_0(file, shape)
    return file.tell()
