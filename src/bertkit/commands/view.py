"""The command that shows what a model does with a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bertkit.console import say
from bertkit.models.surgery import read_head
from bertkit.pipelines import load_on
from bertkit.view.explain import explain as explain_text
from bertkit.view.page import refuse_place, write_page


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
