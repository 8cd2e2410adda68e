"""Commands that ask a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from bertkit.config import Count
from bertkit.console import asked, lines, numbered_lines, say
from bertkit.data.readers import read_lines
from bertkit.errors import CheckpointError, ConfigError
from bertkit.models.decoding import Decoding
from bertkit.nn.precision import Inference
from bertkit.pipelines import pipeline
from bertkit.pipelines.base import STREAM, batched
from bertkit.pipelines.summarize import summaries
from bertkit.tasks.examples import read_examples
from bertkit.tasks.seq2seq import Seq2seq
from bertkit.tasks.task import Reading
from bertkit.text.chat import Message


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


def generate(
    model: str,
    prompt: list[str] | None = None,
    /,
    *,
    decoding: Decoding | Mapping[str, Any] | None = None,
    stops: list[str] | None = None,
    prefix: str = "",
    choices: list[str] | None = None,
    stream: bool = False,
    precision: Inference = "fp32",
    device: str = "auto",
) -> Iterator[Any] | None:
    """What a model writes behind a prompt.

    Args:
        model: A model folder or hub id with a language-model head (GPT-2).
        prompt: Beginning of the text; by default the lines of stdin.
        stops: A text ends before this string; may be repeated.
        prefix: What every text begins with.
        choices: A text is one of these; may be repeated.
        stream: Write the text itself while it comes, and a line break after each.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    writer = pipeline("generate", model, precision=precision, device=device)
    prompts = prompt or list(lines())
    if not stream:
        answers: list[Any] = writer(
            prompts, decoding, stop=stops or (), prefix=prefix, choices=choices or ()
        )
        return iter(answers)
    if prefix or choices:
        raise ConfigError("--stream: goes with neither --prefix nor --choices; leave it out")
    for one in prompts:
        for piece in writer.stream(one, decoding, stop=stops or ()):
            print(piece, end="", flush=True)
        print()
    return None


def translate(
    model: str,
    file: Path | None = None,
    /,
    *,
    decoding: Decoding | Mapping[str, Any] | None = None,
    scores: bool = False,
    precision: Inference = "fp32",
    device: str = "auto",
) -> Iterator[Any]:
    """The lines of a file or of stdin in another language.

    A line that is empty stays so. One that was cut is named on stderr.

    Args:
        model: A translation model's folder or hub id (Marian).
        file: Text, a sentence a line; by default stdin.
        scores: Print JSON with each line's translations, best first, and their scores.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    writer = pipeline("generate", model, precision=precision, device=device)
    if not writer.reads:
        raise CheckpointError(
            f"{writer.loaded.folder}: reads no other text than it writes; take a model with an "
            "encoder, such as Marian, or ask this one with bertkit generate"
        )
    source = iter(lines(blank=True) if file is None else read_lines(file))
    for first, part in enumerate(batched(source, TRANSLATED)):
        asked = [line for line in part if line.strip()]
        answers = iter(writer(asked, decoding))
        for number, line in enumerate(part, first * TRANSLATED + 1):
            texts = next(answers) if line.strip() else []
            if texts and texts[0].ended == "length":
                say(f"line {number}: cut, as it has no end after {texts[0].tokens:,} tokens")
            if scores:
                yield texts
            else:
                print(texts[0].text if texts else "")


TRANSLATED = 1024
"""Lines read before the first of them is translated."""


def summarize(
    model: str,
    file: Path | None = None,
    /,
    *,
    text_column: str | None = None,
    decoding: Decoding | Mapping[str, Any] | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
) -> None:
    """A summary of each document, a line each.

    Of a document that is longer than the model its beginning is read; it is named on stderr.

    Args:
        model: A folder or hub id of a model that summarizes: T5, BART, or one of `finetune
            summarize`, which chooses sentences.
        file: Documents in .jsonl, .csv or .tsv, or - for such rows on stdin; by default the lines
            of stdin.
        text_column: With a file: column of the document.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    if file is None and text_column is not None:
        raise ConfigError("--text-column: goes with a file")
    writer = pipeline("summarize", model, precision=precision, device=device)
    if file is None:
        texts = ((f"stdin:{number}", line) for number, line in numbered_lines())
    else:
        rows = read_examples(Seq2seq, file, Reading(text=text_column), labelled=False)
        texts = ((row.where, row.document) for row in rows)
    for part in batched(texts, SUMMARIZED):
        answers = summaries(writer, [text for _, text in part], decoding)
        for (where, _), answer in zip(part, answers, strict=True):
            if answer.truncated:
                say(f"{where}: longer than the model reads: its end was left out")
            print(" ".join(answer.text.split()))


SUMMARIZED = 256
"""Documents read before the first of them is summarized."""


def chat(
    model: str,
    /,
    *,
    system: str | None = None,
    decoding: Decoding | Mapping[str, Any] | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
) -> None:
    """A conversation with a model, a turn a line.

    It ends with the input (Ctrl-D). When it fills the model its oldest turns are forgotten, and it
    is said.

    Args:
        model: A folder, GGUF file or hub id of a model that was tuned for conversations.
        system: What the model is told before; by default what its makers tell it.
        precision: Precision of the computation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    writer = pipeline("generate", model, precision=precision, device=device)
    messages = [Message("system", system)] if system else []
    told, first = writer.chat, len(messages)
    length = writer.stepper.length
    if sys.stdin.isatty():
        say("Write a line; Ctrl-D ends.")
    for line in asked("> "):
        messages.append(Message("user", line))
        while (
            len(told.encode(messages)[0]) > max(length - ANSWER, length // 2)
            and len(messages) > first + 1
        ):
            del messages[first : first + 2]
            say("the conversation fills the model: its oldest turn is forgotten")
        pieces = []
        for piece in writer.stream(messages, decoding):
            print(piece, end="", flush=True)
            pieces.append(piece)
        print()
        messages.append(Message("assistant", "".join(pieces).strip() or "…"))


ANSWER = 256
"""Tokens that an answer in a conversation has room for at least, where the model has."""


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
    for part in batched(text or lines(), STREAM):
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
