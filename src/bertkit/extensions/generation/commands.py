"""Commands of models that write."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertkit.console import asked, lines, numbered_lines, say
from bertkit.data.readers import read_lines
from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.generation.alignment import alignment
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.summarize import summaries
from bertkit.extensions.generation.tasks.seq2seq import Seq2seq
from bertkit.models.decoding import Decoding
from bertkit.nn.precision import Inference
from bertkit.pipelines import load_on, pipeline
from bertkit.pipelines.base import batched
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import Reading
from bertkit.view.chart import heat_map, write_svg
from bertkit.view.page import refuse_place


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
    writer = Generate.open(model, precision=precision, device=device)
    prompts = prompt or list(lines())
    if not stream:
        return iter(
            writer(prompts, decoding, stop=stops or (), prefix=prefix, choices=choices or ())
        )
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
    writer = Generate.open(model, precision=precision, device=device)
    if not writer.reads:
        raise CheckpointError(
            f"{writer.loaded.folder}: reads no other text than it writes; take a model with an "
            "encoder, such as Marian, or ask this one with bertkit generate"
        )
    source = iter(lines(blank=True) if file is None else read_lines(file))
    for first, part in enumerate(batched(source, LINES_AT_ONCE)):
        asked = [line for line in part if line.strip()]
        answers = iter(writer(asked, decoding))
        for number, line in enumerate(part, first * LINES_AT_ONCE + 1):
            texts = next(answers) if line.strip() else []
            if texts and texts[0].ended == "length":
                say(f"line {number}: cut, as it has no end after {texts[0].tokens:,} tokens")
            if scores:
                yield texts
            else:
                print(texts[0].text if texts else "")


LINES_AT_ONCE = 1024
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
        rows = read_examples(Seq2seq, file, Reading(text_column=text_column), labelled=False)
        texts = ((row.where, row.document) for row in rows)
    for part in batched(texts, DOCUMENTS_AT_ONCE):
        answers = summaries(writer, [text for _, text in part], decoding)
        for (where, _), answer in zip(part, answers, strict=True):
            if answer.truncated:
                say(f"{where}: longer than the model reads: its end was left out")
            print(" ".join(answer.text.split()))


DOCUMENTS_AT_ONCE = 256
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
    writer = Generate.open(model, precision=precision, device=device)
    messages = [Message("system", system)] if system else []
    told, first = writer.chat, len(messages)
    length = writer.stepper.length
    if sys.stdin.isatty():
        say("Write a line; Ctrl-D ends.")
    for line in asked("> "):
        messages.append(Message("user", line))
        while (
            len(told.encode(messages)[0]) > max(length - MIN_ANSWER_TOKENS, length // 2)
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


MIN_ANSWER_TOKENS = 256
"""Tokens that an answer in a conversation has room for at least, where the model has."""


def align(
    model: str,
    text: str,
    /,
    *,
    translation: str | None = None,
    out: Path | None = None,
    device: str = "auto",
) -> dict[str, Any] | None:
    """Show which source tokens a translation attends to.

    The weights are the mean over layers and heads.

    Args:
        model: Directory or hub id of a translation model with attention.
        text: Source text.
        translation: Translation. Default: the translation of the model.
        out: Output path of a heat map (.svg). Must not exist. Default: print the weights, one row
            per token of the translation.
        device: auto, cpu or a CUDA device such as cuda:0. auto is a GPU if PyTorch finds one.
    """
    if out is not None:
        refuse_place(out)
        if out.suffix != ".svg":
            raise ConfigError(f"{out}: the suffix must be .svg")
    looked = alignment(load_on(model, device), text, translation)
    if out is None:
        rows = [[round(float(weight), 4) for weight in row] for row in looked.weights]
        return {"source": looked.source, "target": looked.target, "weights": rows}
    write_svg(out, heat_map(looked.target, looked.source, looked.weights.tolist(),
                            x="read", y="written"))  # fmt: skip
    say(f"{out}: {len(looked.target)} tokens written, {len(looked.source)} read")
    return None
