"""Commands that show what a model does."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from bertkit.console import say
from bertkit.models.layers import read_head
from bertkit.view.explain import explain as explaining
from bertkit.view.page import refuse_place, write_page


def explain(
    model: str,
    text: str,
    /,
    *,
    out: Path,
    pair: str | None = None,
    off: list[str] | None = None,
    long: Literal["error", "truncate"] = "error",
) -> None:
    """What a model does with a text, as one HTML file: pieces, attention, masked words, layers.

    Parameters
    ----------
    model
        A model folder or hub id.
    out
        The file, to be made; any browser opens it, and it needs nothing else.
    pair
        A second text, read together with the first.
    off
        Switch this head off, as LAYER.HEAD from 1; once for each.
    long
        What to do with a text longer than the model.
    """
    refuse_place(out)
    found = explaining(model, text, pair, off=[read_head(name) for name in off or ()], long=long)
    write_page(out, found)
    cut = "; the text is longer and was cut" if found.truncated else ""
    say(
        f"{out}: {len(found.tokens)} tokens, {found.model.layers} layers of "
        f"{found.model.heads} heads{cut}"
    )
