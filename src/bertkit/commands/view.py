"""Command that writes a page that shows what a model computes for a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from bertkit.console import say
from bertkit.models.surgery import read_head
from bertkit.pipelines import load_on
from bertkit.view.explain import explain as explain_text
from bertkit.view.page import check_page_path, write_page


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
    """Write an HTML page that shows what a model computes for a text.

    The page shows the attention, the predictions for masked tokens, and the layers.

    Args:
        model: Model directory or hub id.
        text: Text that the model processes.
        out: Output path of the HTML page. Must not exist.
        pair: Second text of a pair.
        off: Attention head to switch off, as LAYER.HEAD, both counted from 1. Repeatable.
        long: Whether a text that exceeds the maximum length is an error or is truncated.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
    """
    check_page_path(out)
    shown = explain_text(
        load_on(model, device), text, pair, off=[read_head(name) for name in off], long=long
    )
    write_page(out, shown)
    note = "; the text was truncated" if shown.truncated else ""
    say(
        f"{out}: {len(shown.tokens)} tokens, {shown.model.layers} layers of "
        f"{shown.model.heads} heads{note}"
    )
