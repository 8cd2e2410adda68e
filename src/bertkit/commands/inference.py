"""Commands that ask a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from bertkit.config import Count
from bertkit.console import lines
from bertkit.nn.precision import Inference
from bertkit.pipelines import pipeline
from bertkit.pipelines.base import batched
from bertkit.tasks.inference import STREAM_ITEMS


def fill_mask(
    model: str, text: list[str] | None = None, /, *, top: Count = 10, device: str = "auto"
) -> Iterator[Any]:
    """The likeliest pieces for each [MASK] of a text.

    Args:
        model: A model folder or hub id with a masked-LM head.
        text: Text with masked tokens; by default the lines of stdin.
        top: How many pieces.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    yield from pipeline("fill-mask", model, device=device)(text or list(lines()), top=top)


def fill_gap(model: str, text: list[str] | None = None, /, *, top: Count = 10) -> Iterator[Any]:
    """The likeliest words for the gap of a text, told from the left and from the right.

    Args:
        model: The folder of an ELMo that was pretrained with bertkit.
        text: Texts with ___ where a word is missing; by default the lines of stdin.
        top: How many words of each direction.
    """
    yield from pipeline("fill-gap", model)(text or list(lines()), top=top)


def token_embeddings(
    model: str,
    text: list[str] | None = None,
    /,
    *,
    layer: int = -1,
    long: Literal["error", "truncate"] = "error",
    precision: Inference = "fp32",
    device: str = "auto",
) -> Iterator[Any]:
    """Print the token embeddings (hidden states) of texts.

    Args:
        model: Model directory or hub id.
        text: Texts. Default: the lines of stdin.
        layer: Layer of the hidden states. 0 is the embedding layer, -1 the last layer.
        long: What to do with texts longer than the model: raise an error, or truncate them.
        precision: Precision of the matrix multiplications.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    embed = pipeline("token-embeddings", model, precision=precision, device=device)
    for part in batched(text or lines(), STREAM_ITEMS):
        for answer in embed(part, layer=layer, long=long):
            yield {
                "tokens": answer.tokens,
                "offsets": answer.offsets.tolist(),
                "embeddings": answer.embeddings.tolist(),
            }


def next_sentence(model: str, a: str, b: str, /, *, device: str = "auto") -> Any:
    """How likely sentence B follows sentence A.

    Args:
        model: A model folder or hub id with a head for next sentences.
        a: The first sentence.
        b: The second.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    return pipeline("next-sentence", model, device=device)([a], [b])[0]
