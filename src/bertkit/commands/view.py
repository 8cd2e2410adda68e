"""Commands that show a model, and what it does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from bertkit.checkpoint.elmo import is_elmo
from bertkit.checkpoint.folder import load
from bertkit.checkpoint.hub import resolve
from bertkit.console import say
from bertkit.errors import ConfigError
from bertkit.models.surgery import read_head
from bertkit.pipelines import load_on
from bertkit.pipelines.alignment import alignment
from bertkit.recipes.info import elmo_info
from bertkit.recipes.info import info as describe
from bertkit.view.chart import heat_map, write_svg
from bertkit.view.explain import explain as explain_text
from bertkit.view.page import refuse_place, write_page


def info(model: str, /) -> None:
    """What a model folder holds: shape, parameters, heads.

    Args:
        model: A model folder or hub id.
    """
    folder = resolve(model)
    held = elmo_info(folder) if is_elmo(folder) else describe(load(model))
    print(json.dumps(held, indent=2))


def explain(
    model: str,
    text: str,
    /,
    *,
    out: Path,
    pair: str | None = None,
    off: Sequence[str] = (),
    long: Literal["error", "truncate"] = "error",
    device: str = "auto",
) -> None:
    """What a model does with a text, as a page: attention, masked words, layers.

    Args:
        model: A model folder or hub id.
        text: The text.
        out: The file, to be made; pieces, attention, masked words and layers, for any browser.
        pair: A second text, read together with the first.
        off: Switch this head off, as LAYER.HEAD from 1; once for each.
        long: What to do with a text longer than the model.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    refuse_place(out)
    shown = explain_text(
        load_on(model, device), text, pair, off=[read_head(name) for name in off], long=long
    )
    write_page(out, shown)
    cut = "; the text is longer and was cut" if shown.truncated else ""
    say(
        f"{out}: {len(shown.tokens)} tokens, {shown.model.layers} layers of "
        f"{shown.model.heads} heads{cut}"
    )


def align(
    model: str,
    text: str,
    /,
    *,
    translation: str | None = None,
    out: Path | None = None,
    device: str = "auto",
) -> dict[str, Any] | None:
    """Where a decoder looks in a text while it writes each token: numbers, or a heat map.

    Of several layers and heads it is the mean.

    Args:
        model: A folder or hub id of a model that translates, by attention.
        text: The text.
        translation: What it writes; by default what it would.
        out: A picture (.svg), to be made; by default the numbers are printed, a row for each token
            of the translation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    if out is not None:
        refuse_place(out)
        if out.suffix != ".svg":
            raise ConfigError(f"{out}: the picture is an .svg file; name it so")
    looked = alignment(load_on(model, device), text, translation)
    if out is None:
        rows = [[round(float(weight), 4) for weight in row] for row in looked.weights]
        return {"source": looked.source, "target": looked.target, "weights": rows}
    write_svg(out, heat_map(looked.target, looked.source, looked.weights.tolist(),
                            x="read", y="written"))  # fmt: skip
    say(f"{out}: {len(looked.target)} tokens written, {len(looked.source)} read")
    return None
