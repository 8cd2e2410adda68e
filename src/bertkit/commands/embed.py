"""The command that makes vectors, which may do without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from bertkit.console import lines, say
from bertkit.memory import limit_onednn_cache
from bertkit.recipes.embed import embed_file, opened
from bertkit.text.long import Long


def embed(
    model: str,
    text: list[str] | None = None,
    /,
    *,
    prompt: str | None = None,
    pooling: Literal["mean", "cls", "max"] | None = None,
    long: Long = "error",
    precision: Literal["auto", "fp32", "bf16", "int8"] = "fp32",
    invariant: bool = False,
    backend: Literal["bertkit", "onnx", "openvino"] | None = None,
    out: Path | None = None,
) -> None:
    """A vector for each text: a line of JSON, or all as a .npy file.

    Texts are arguments or the lines of stdin; any number of them, as they come.

    Parameters
    ----------
    prompt
        What stands before each text: the name of one of the model's prompts, or a text such as
        "query: "; by default the model's default one, if any. It is said which.
    pooling
        The mean or maximum over tokens, or [CLS]; by default as the folder says, else mean.
    invariant
        Each text by itself, which is slower: its vector is then the same to the last bit,
        whatever it is embedded with.
    backend
        What computes; by default what the folder is: a model, or what `bertkit export` made.
    out
        A .npy file of float32, to be made, one row a text.
    """
    limit_onednn_cache()
    ready = opened(model, backend, precision, pooling, invariant, prompt)
    texts = text or lines()
    count = cut = 0
    if out is not None:
        count, cut = embed_file(ready, texts, out, long=long)
        say(f"{out}: {count:,} × {ready.dimension}")
    else:
        for vectors, short in ready.stream(texts, long=long):
            count, cut = count + len(short), cut + sum(short)
            for row in vectors.tolist():
                print(json.dumps(row))
    if cut:
        say(f"{cut:,} of {count:,} texts are longer than {ready.length} tokens and were cut")
