"""Commands that generate text: `generate`, `chat`, and `view align`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.checkpoint.directory import load
from bertkit.console import numbered_lines, print_json, prompt_lines, say
from bertkit.data.document_readers import STDIN, read_lines
from bertkit.data.paths import is_table
from bertkit.errors import ConfigError
from bertkit.extensions.generation.alignment import alignment
from bertkit.extensions.generation.chat_format import Message
from bertkit.extensions.generation.decoding import Decoding
from bertkit.extensions.generation.heat_map import heat_map
from bertkit.extensions.generation.pipeline import Generate
from bertkit.extensions.generation.summarize import WriteSummaries, summaries
from bertkit.extensions.generation.tasks.seq2seq import Seq2seq
from bertkit.nn.precision import Inference
from bertkit.pipelines import TaskPipeline, inference_device, load_on
from bertkit.pipelines.supported import TRANSLATION_FAMILIES
from bertkit.tasks import task_name_of
from bertkit.tasks.examples import read_examples
from bertkit.tasks.inference import batched
from bertkit.tasks.summarize import Summarize, SummaryAnswer
from bertkit.tasks.task import Reading
from bertkit.view.chart import write_svg
from bertkit.view.page import check_page_path


def generate(
    model: str,
    text: list[str] | None = None,
    /,
    *,
    file: Path | None = None,
    text_column: str | None = None,
    prompt: str | None = None,
    decoding: Decoding | Mapping[str, Any] | None = None,
    stops: list[str] | None = None,
    prefix: str = "",
    choices: list[str] | None = None,
    stream: bool = False,
    scores: bool = False,
    precision: Inference = "fp32",
    device: str = "auto",
) -> None:
    """Continue prompts, translate, or summarize, depending on the model.

    With a decoder-only model, the command continues each prompt and prints the result as JSON. With
    a translation model, it translates each line. With another encoder-decoder model, or a model
    from `finetune summarize`, it summarizes each document. A translation or summary is one line.

    Args:
        model: Model directory or hub id.
        text: Input texts. Default: the lines of stdin.
        file: File with one input text per line, or .jsonl, .csv or .tsv file with one input text
            per row; - is stdin.
        text_column: With --file: column that contains the input texts.
        prompt: Text before each input of an encoder-decoder model, such as "summarize: ". Default:
            the prompt of the model.
        decoding: Settings of text generation. Default: the settings of the model.
        stops: String before which a generated text ends. Repeatable.
        prefix: String that each generated text must begin with.
        choices: One of the texts that the model may generate. Repeatable.
        stream: Whether to print each token of a continuation as soon as it is generated.
        scores: Whether to print all translations of each line with their scores, as JSON.
        precision: Precision of the matrix multiplications.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.

    Raises:
        ConfigError: If an option is not supported by the model.
    """
    if text and file is not None:
        raise ConfigError("--file cannot be combined with texts; remove --file or the texts")
    if file is None and text_column is not None:
        raise ConfigError("--text-column requires --file; add --file, or remove --text-column")
    writer = _open_writer(model, precision, device)
    rules: dict[str, Any] = {"stop": stops or (), "prefix": prefix, "choices": choices or ()}
    if not isinstance(writer, Generate):
        _check_unused("a model that summarizes", stream=stream, scores=scores, **rules)
        _summarize(writer, _inputs(text, file, text_column), decoding, prompt)
    elif writer.reads:
        _check_unused("a translation model", stream=stream, prompt=prompt)
        inputs = _inputs(text, file, text_column, blank=True)
        _translate(writer, inputs, decoding, rules, scores=scores)
    else:
        _check_unused("a decoder-only model", scores=scores, prompt=prompt)
        inputs = _inputs(text, file, text_column)
        _continue(writer, [line for _, line in inputs], decoding, rules, stream=stream)


def _check_unused(model: str, **options: Any) -> None:
    """Raise ConfigError if an option is set that the type of model does not support."""
    for name, value in options.items():
        if value:
            option = {"choices": "choice"}.get(name, name)
            raise ConfigError(f"--{option}: not supported by {model}; remove the option")


def _open_writer(
    model: str, precision: Inference, device: str
) -> Generate | WriteSummaries | TaskPipeline[SummaryAnswer]:
    """Load a model, and open the pipeline for the task that it was trained on."""
    device = inference_device(device, precision, model)
    loaded = load(model)
    encodes = loaded.model.decoder is not None and loaded.family.name not in TRANSLATION_FAMILIES
    if encodes or task_name_of(loaded.settings, loaded.model.heads) == Summarize.name:
        return WriteSummaries.open(loaded, precision=precision, device=device)
    return Generate.open(loaded, precision=precision, device=device)


def _inputs(
    text: Sequence[str] | None, file: Path | None, column: str | None, *, blank: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the location and the text of each input, from arguments, a file or stdin."""
    if text:
        yield from ((f"text {number}", item) for number, item in enumerate(text, 1))
    elif file is None:
        lines = numbered_lines(blank=blank)
        yield from ((f"stdin:{number}", line) for number, line in lines)
    elif file == STDIN or is_table(str(file)):
        for row in read_examples(Seq2seq, file, Reading(text_column=column), labeled=False):
            yield row.where, row.document
    else:
        for number, line in enumerate(read_lines(file), 1):
            if blank or line.strip():
                yield f"{file}:{number}", line


def _continue(
    writer: Generate,
    prompts: Sequence[str],
    decoding: Any,
    rules: Mapping[str, Any],
    *,
    stream: bool,
) -> None:
    """Print the continuations of each prompt, as JSON or as a stream of tokens."""
    if not stream:
        for texts in writer(prompts, decoding, **rules):
            print_json(texts)
        return
    if rules["prefix"] or rules["choices"]:
        raise ConfigError("--stream cannot be combined with --prefix or --choice; remove --stream")
    for prompt in prompts:
        for token in writer.stream(prompt, decoding, stop=rules["stop"]):
            print(token, end="", flush=True)
        print()


def _translate(
    writer: Generate,
    inputs: Iterable[tuple[str, str]],
    decoding: Any,
    rules: Mapping[str, Any],
    *,
    scores: bool,
) -> None:
    """Print the best translation of each line, or all its translations with scores as JSON.

    For a blank line, the output is also blank.
    """
    for part in batched(inputs, BATCH_LINES):
        answers = iter(writer([line for _, line in part if line.strip()], decoding, **rules))
        for location, line in part:
            texts = next(answers) if line.strip() else []
            if texts and texts[0].ended == "length":
                say(f"{location}: truncated after {texts[0].tokens:,} tokens, without an EOS token")
            if scores:
                print_json(texts)
            else:
                print(texts[0].text if texts else "")


BATCH_LINES = 1024
"""Number of lines that are read and translated at a time."""


def _summarize(
    writer: WriteSummaries | TaskPipeline[SummaryAnswer],
    inputs: Iterable[tuple[str, str]],
    decoding: Any,
    prompt: str | None,
) -> None:
    """Print the summary of each document on one line."""
    if prompt is not None:
        if not isinstance(writer, WriteSummaries):
            raise ConfigError(
                "--prompt: not supported by a model that selects sentences; remove --prompt"
            )
        writer.prompt = prompt
    for part in batched(inputs, BATCH_DOCUMENTS):
        answers = summaries(writer, [text for _, text in part], decoding)
        for (location, _), answer in zip(part, answers, strict=True):
            if answer.truncated:
                say(f"{location}: longer than the model supports; the end was truncated")
            print(" ".join(answer.text.split()))


BATCH_DOCUMENTS = 256
"""Number of documents that are read and summarized at a time."""


def chat(
    model: str,
    /,
    *,
    system: str | None = None,
    decoding: Decoding | Mapping[str, Any] | None = None,
    precision: Inference = "fp32",
    device: str = "auto",
) -> None:
    """Chat with a model in the terminal.

    Press Ctrl-D to exit. When the conversation becomes too long for the model, its oldest messages
    are removed, and a warning is shown.

    Args:
        model: Model directory, GGUF file or hub id of a chat model.
        system: System message. Default: the system message of the model's chat template, if any.
        decoding: Settings of text generation. Default: the settings of the model.
        precision: Precision of the computation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.
    """
    writer = Generate.open(model, precision=precision, device=device)
    messages = [Message("system", system)] if system else []
    template, first = writer.chat, len(messages)
    length = writer.stepper.length
    if sys.stdin.isatty():
        say("Enter a message; press Ctrl-D to exit.")
    for line in prompt_lines("> "):
        messages.append(Message("user", line))
        while (
            len(template.encode(messages)[0]) > max(length - MIN_ANSWER_TOKENS, length // 2)
            and len(messages) > first + 1
        ):
            del messages[first : first + 2]
            say("warning: the conversation is too long; its oldest two messages were removed")
        parts = []
        for part in writer.stream(messages, decoding):
            print(part, end="", flush=True)
            parts.append(part)
        print()
        messages.append(Message("assistant", "".join(parts).strip() or "…"))


MIN_ANSWER_TOKENS = 256
"""Number of tokens that are reserved for an answer, but at most half the model's maximum length."""


def align(
    model: str,
    text: str,
    /,
    *,
    translation: str | None = None,
    out: Path | None = None,
    device: str = "auto",
) -> dict[str, Any] | None:
    """Show which source tokens each token of a translation attends to.

    The weights are the mean over layers and heads.

    Args:
        model: Directory or hub id of a translation model whose decoder attends to the source.
        text: Source text.
        translation: Translation of the text. Default: the translation that the model generates.
        out: Output path of a heat map (.svg). Must not exist. Default: print the weights, one row
            per token of the translation.
        device: Device, such as cpu or cuda:0. auto selects a GPU if PyTorch finds one.

    Returns:
        The tokens of both texts and the attention weights, or None if `out` is set.

    Raises:
        ConfigError: If `out` exists or does not have the suffix .svg.
    """
    if out is not None:
        check_page_path(out)
        if out.suffix != ".svg":
            raise ConfigError(f"{out}: the suffix must be .svg; use another path")
    aligned = alignment(load_on(model, device), text, translation)
    if out is None:
        rows = [[round(float(weight), 4) for weight in row] for row in aligned.weights]
        return {"source": aligned.source, "target": aligned.target, "weights": rows}
    write_svg(out, heat_map(aligned.target, aligned.source, aligned.weights.tolist(),
                            x="source", y="target"))  # fmt: skip
    say(f"{out}: {len(aligned.source)} source tokens, {len(aligned.target)} target tokens")
    return None
