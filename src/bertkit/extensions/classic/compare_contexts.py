"""Command that compares the states of one word in several texts, for several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.data.document_readers import numbered
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.classic.charts import squares
from bertkit.extensions.classic.context_figures import context_squares, cosine_table
from bertkit.extensions.classic.contexts import TEXTS, compare, encode_word
from bertkit.extensions.classic.word_pairs import find_word
from bertkit.nn.precision import Precision
from bertkit.storage import check_unused, new_folder, write_json
from bertkit.view.chart import write_svg
from bertkit.view.figures import Marked, Table
from bertkit.view.page import write_report


def contexts(
    word: str,
    file: Path,
    /,
    *,
    models: Sequence[str],
    out: Path | str,
    layer: int = -1,
    precision: Precision = "fp32",
    device: str = "auto",
) -> dict[str, Any]:
    """Compare the states of one word in several texts and models.

    For each model and layer, the output contains the cosine similarity of the word's states in
    every two texts. With word vectors, the state of the word is the same in all texts.

    Args:
        word: The word to compare. The texts may contain another form of it (carry, carried).
        file: File with texts that contain the word, one per line.
        models: Model directory, hub id, directory of an ELMo, or file of word vectors. Repeatable.
        out: Output directory for contexts.json, contexts.svg and contexts.html. Must not exist.
        layer: Layer that contexts.svg shows: 0 is the embedding layer, -1 the last layer.
            contexts.json and contexts.html contain all layers.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.

    Returns:
        The contents of contexts.json.

    Raises:
        ConfigError: If out exists, or a model does not have the layer.
        DataError: If a text does not contain the word. The message names the file and line.
        CheckpointError: If a model cannot be loaded.
    """
    out = Path(out)
    check_unused(out)
    texts, ranges = _texts(word, file)
    rows = []
    for name in models:
        frozen = open_format(name).load_words(LoadSettings(precision, device))
        states = compare(frozen, encode_word(name, frozen, texts, ranges), texts, ranges)
        rows.append({"model": name, "sees": states.sees, "cosines": states.cosines})
        if not -len(states.cosines) <= layer < len(states.cosines) and frozen.layers:
            raise ConfigError(f"layer must be from 0 to {frozen.layers} for {name}, got {layer}")
    result = {"word": word, "texts": texts, "ranges": ranges, "layer": layer, "models": rows}
    with new_folder(out) as folder:
        write_json(folder / "contexts.json", result)
        _draw(folder, result)
    return result


def _texts(word: str, file: Path) -> tuple[list[str], list[tuple[int, int]]]:
    """Read the texts, and find the range of the word in each text."""
    rows = numbered(file)
    if not 2 <= len(rows) <= TEXTS:
        raise DataError(f"{file} must contain 2 to {TEXTS} texts, one per line, got {len(rows)}")
    texts, ranges = [], []
    for number, line in rows:
        span = find_word(word, line)
        if span is None:
            raise DataError(
                f"{file}:{number}: the text does not contain {word!r}; use a text that does"
            )
        texts.append(line)
        ranges.append(span)
    return texts, ranges


def _draw(folder: Path, result: Mapping[str, Any]) -> None:
    word, layer = result["word"], result["layer"]
    rows = [
        (f"{number}. {Path(model['model']).name}", model["sees"], model["cosines"])
        for number, model in enumerate(result["models"], 1)
    ]
    charts = context_squares(rows, layer)
    title = f"Cosines of “{word}” in {len(result['texts'])} texts, by model"
    write_svg(folder / "contexts.svg", squares(charts, title))
    pairs = zip(result["texts"], result["ranges"], strict=True)
    texts = [(str(n), Marked(text, [(*span, "")])) for n, (text, span) in enumerate(pairs, 1)]
    layer_name = "the last layer" if layer == -1 else f"layer {layer}"
    write_report(
        folder / "contexts.html",
        "contexts.html",
        word=word,
        layer=f"{layer_name}, counted from the last," if layer < -1 else layer_name,
        charts=[squares([model], model.name) for model in charts],
        texts=Table("Texts", texts, ("", "text"), wraps=True),
        models=[
            (square.name, model["model"], model["sees"], cosine_table(model["cosines"]))
            for square, model in zip(charts, result["models"], strict=True)
        ],
    )
