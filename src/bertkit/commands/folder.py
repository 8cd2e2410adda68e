"""Commands that look at a model folder, or make another of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from bertkit.checkpoint.folder import load
from bertkit.console import print_json
from bertkit.data.readers import read_text
from bertkit.recipes.export import export as exporting
from bertkit.recipes.extend import extend as extending
from bertkit.recipes.info import info as telling
from bertkit.recipes.positions import extend_positions as lengthening
from bertkit.recipes.quantize import quantize as quantizing
from bertkit.recipes.tune import tune as tuning


def info(model: str, /) -> None:
    """What a model folder holds: shape, parameters and where they are, heads; prints JSON."""
    print(json.dumps(telling(load(model)), indent=2))


def extend(
    model: str,
    text: list[Path],
    /,
    *,
    out: Path,
    size: int | None = None,
    words: Path | None = None,
    min_frequency: int = 5,
) -> None:
    """Give a model more words; prints what it is worth as JSON.

    Parameters
    ----------
    model
        A model folder or hub id with a WordPiece vocabulary.
    text
        Files or folders of .txt or .jsonl, also .gz, of your field.
    out
        The folder of the larger model, to be made.
    size
        As many words: those that save most pieces on the text.
    words
        Instead: a file with a word a line.
    min_frequency
        How often a word must occur to be chosen.
    """
    given = [] if words is None else [w.strip() for w in read_text(words).splitlines()]
    print_json(
        extending(
            model,
            text,
            out=out,
            size=size,
            words=[word for word in given if word],
            min_frequency=min_frequency,
        )
    )


def extend_positions(
    model: str,
    /,
    *,
    length: int,
    out: Path,
    how: Literal["tile", "interpolate"] = "tile",
) -> None:
    """Let a model read longer texts; prints JSON. Go on with adapt, on long texts.

    Parameters
    ----------
    model
        A model folder or hub id.
    length
        Tokens of the longest sequence.
    out
        The folder of the longer model, to be made.
    how
        Repeat the positions there are, or stretch them.
    """
    print_json(lengthening(model, length=length, out=out, how=how))


def export(
    model: str,
    /,
    *,
    out: Path,
    format: Literal["onnx", "openvino"] = "onnx",
    pooling: Literal["mean", "cls", "max"] | None = None,
    task: str | None = None,
) -> None:
    """A model that makes vectors, as a folder that runs without torch; prints JSON.

    Parameters
    ----------
    model
        A model folder or hub id.
    out
        The folder, to be made; `bertkit embed` opens it.
    format
        What runs it: ONNX Runtime or OpenVINO.
    pooling
        The mean or maximum over tokens, or [CLS]; by default as the folder says, else mean.
    task
        What it was fine-tuned for, whose logits are to be an output too.
    """
    print_json(exporting(model, out=out, kind=format, pooling=pooling, task=task))


def quantize(
    model: str,
    texts: list[Path],
    /,
    *,
    out: Path,
    lowest: float = 0.99,
) -> None:
    """Make a model compute in 8-bit integers (--precision int8); prints what that costs as JSON.

    Parameters
    ----------
    model
        A model folder or hub id.
    texts
        .txt files, a text a line, or .jsonl: texts like those the model will see.
    out
        The folder, to be made: the model, and how its layers round what they read.
    lowest
        The lowest cosine to its fp32 vector that any may have; layers stay as they are for it.
    """
    print_json(quantizing(model, texts, out=out, lowest=lowest))


def tune(model: str, texts: list[Path] | None = None, /, *, lowest: float = 0.99) -> None:
    """Find what a model is fastest with on this machine, for --precision auto; prints JSON.

    Parameters
    ----------
    model
        A model folder, which remembers it.
    texts
        .txt files, a text a line, or .jsonl: texts like those to come. By default English.
    lowest
        A precision is left out if a vector has a lower cosine to its fp32 one.
    """
    print_json(tuning(model, texts or (), lowest=lowest))
