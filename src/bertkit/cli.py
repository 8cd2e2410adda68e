"""The commands. Each is a typed function; its help is its signature and docstring."""

from __future__ import annotations

import io
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from bertkit import __version__
from bertkit.errors import BertkitError, ConfigError, DataError

app = App(
    name="bertkit",
    help="From raw text to a BERT in service.",
    version=__version__,
    help_on_error=False,
    suppress_keyboard_interrupt=False,  # `run` says how to go on
)
vocab = App(name="vocab", help="Vocabularies.")
app.command(vocab)
LATE = {
    "learn:finetune": "Fine-tune a model on labelled data, for one of many tasks.",
    "learn:distill": "Teach a small model what a fine-tuned one does; prints JSON.",
    "learn:augment": "More labelled texts from those there are, for a student; prints JSON.",
    "learn:prune": "A fine-tuned model without heads or layers, and what that costs; prints JSON.",
    "learn:probe": "Which layers of a frozen model know what tagging words needs; prints JSON.",
    "learn:vectors": "Learn static word vectors from text.",
    "learn:compare": "Labels from random weights, word vectors and pretraining; prints JSON.",
    "search:index": "Put documents into a store, to be searched; prints JSON.",
    "search:search": "The documents of a store that answer a query best.",
    "serve:serve": "Serve models over HTTP.",
    "serve:view": "Look into models in the browser.",
    "search:mine": "Rows to train on: queries, answers, and near misses; prints JSON.",
    "view:explain": "What a model does with a text, as a page: attention, masked words, layers.",
}
"""Commands of modules in `bertkit.commands`, which are imported when one of them is called."""
for _place, _help in LATE.items():
    app.command(f"bertkit.commands.{_place}", name=_place.partition(":")[2], help=_help)

Long = Literal["error", "truncate", "window"]
Precision = Literal["auto", "fp32", "bf16", "int8"]


def main() -> None:
    """Run the command line: 0 when all is well, 2 for what the user can mend, 130 for Ctrl-C."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are one sentence on stderr."""
    try:
        words = _join(arguments) if arguments[:1] in (["pretrain"], ["adapt"]) else list(arguments)
        words = _own_task(words)
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except (BertkitError, CycloptsError) as error:
        print(f"bertkit: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"bertkit: {str(stop) or 'stopped'}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:  # a file or folder that the commands could not foresee
        where = f"{error.filename}: " if error.filename else ""
        print(f"bertkit: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    return 0


@vocab.command
def train(
    text: list[Path],
    /,
    *,
    out: Path,
    kind: Literal["wordpiece", "bpe", "unigram"] = "wordpiece",
    size: int = 30522,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
) -> None:
    """Learn a vocabulary from text.

    Parameters
    ----------
    text
        Files or folders of .txt or .jsonl, also .gz.
    out
        The tokenizer's folder, to be made.
    kind
        wordpiece is BERT's, bpe RoBERTa's (byte-level), unigram ALBERT's.
    size
        Pieces, special tokens included.
    lowercase
        Whether case is dropped; by default as BERT-uncased, ALBERT and RoBERTa do.
    strip_accents
        Whether accents are dropped; by default as lowercase.
    min_frequency
        How often a pair of pieces must occur to be joined.
    """
    from bertkit.recipes.vocabulary import train_vocabulary

    tokenizer = train_vocabulary(
        text,
        kind=kind,
        size=size,
        out=out,
        lowercase=lowercase,
        strip_accents=strip_accents,
        min_frequency=min_frequency,
    )
    _say(f"{out}: {tokenizer.vocab_size:,} pieces")


@vocab.command
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
    from bertkit.data.readers import read_text
    from bertkit.recipes.extend import extend as recipe

    given = [] if words is None else [w.strip() for w in read_text(words).splitlines()]
    _print(
        recipe(
            model,
            text,
            out=out,
            size=size,
            words=[word for word in given if word],
            min_frequency=min_frequency,
        )
    )


@app.command
def prepare(
    text: list[Path],
    /,
    *,
    tokenizer: Path,
    out: Path,
    field: str = "text",
    blank_lines: Literal["paragraphs", "documents"] = "paragraphs",
    processes: int | None = None,
) -> None:
    """Turn text into a corpus of token ids that pretraining reads from disk.

    Parameters
    ----------
    text
        Files or folders of .txt or .jsonl, also .gz.
    tokenizer
        Folder of the tokenizer.
    out
        The corpus's folder. The same command goes on after a kill.
    field
        The field of .jsonl rows that holds the text.
    blank_lines
        Whether a blank line of a .txt file ends a paragraph or a document.
    processes
        How many work at once; by default one for each core.
    """
    from bertkit.recipes.prepare import prepare as recipe
    from bertkit.text.tokenizer import Tokenizer

    recipe(
        text,
        tokenizer=Tokenizer.load(tokenizer),
        out=out,
        field=field,
        blank_lines=blank_lines,
        processes=processes,
        say=_say,
    )


@app.command
def inspect(
    corpus: Path,
    /,
    *,
    count: int = 3,
    config: Path | None = None,
    seed: int = 0,
    length: int = 128,
    pairs: Literal["nsp", "sop", "none"] = "nsp",
) -> None:
    """Print samples of a corpus as a person reads them, and statistics.

    Parameters
    ----------
    corpus
        A prepared corpus.
    count
        Samples to print.
    config
        A run file whose sampling and masking to use, instead of length and pairs.
    seed
        Which samples.
    length
        Tokens of a sample.
    pairs
        Next sentence, sentence order, or none.
    """
    from bertkit.config import decode, read_toml
    from bertkit.data.corpus import Corpus
    from bertkit.data.masking import Masking
    from bertkit.data.segments import Sampling
    from bertkit.recipes.inspect import draw, rates, readable, statistics
    from bertkit.recipes.run_file import read_config

    opened = Corpus.open(corpus)
    tokenizer = opened.tokenizer()
    sampling = decode(Sampling, {"pairs": pairs, "length": length}, "sampling")
    masking = Masking()
    if config is not None:
        settings = read_config(read_toml(_config(config)), tokenizer)
        sampling, masking = settings.sampling, settings.masking
    samples, drawn = draw(opened, tokenizer, sampling, masking, seed=seed, count=max(count, 1000))
    for sample in drawn[:count]:
        print("\n".join(readable(samples, sample)), end="\n\n")
    for name, value in statistics(opened).items():
        print(f"{name:32} {value:,}")
    print(f"{'samples an epoch':32} {len(samples):,}")
    for name, value in rates(samples, drawn).items():
        print(f"{name:32} {value:.3f}")


@app.command
def pretrain(
    config: Path,
    /,
    *settings: Annotated[str, Parameter(show=False)],
    corpus: Path,
    out: Path,
    resume: bool = False,
) -> None:
    """Pretrain a model. Any setting of the file can be replaced: --train.learning_rate 3e-4.

    Parameters
    ----------
    config
        The run file: a path, or the name of one that comes with bertkit: see bertkit families.
    corpus
        A prepared corpus.
    out
        The run's folder; it is a model folder from the start.
    resume
        Go on after the newest complete checkpoint.
    """
    from bertkit.config import override, read_toml
    from bertkit.recipes.pretrain import pretrain as recipe

    data = override(read_toml(_config(config)), _overrides(settings))
    scores = recipe(data, corpus=corpus, out=out, resume=resume)
    _say(f"{out}: done  " + "  ".join(f"{k} {v:.3f}" for k, v in scores.items()))


@app.command
def adapt(
    model: str,
    /,
    *settings: Annotated[str, Parameter(show=False)],
    corpus: Path,
    out: Path,
    resume: bool = False,
) -> None:
    """Go on pretraining a model on text of your own field; prints held-out losses as JSON.

    Any setting of a run file can be given: --train.steps 5000.

    Parameters
    ----------
    model
        A model folder or hub id.
    corpus
        A corpus prepared with the model's vocabulary.
    out
        The run's folder; it is a model folder from the start.
    resume
        Go on after the newest complete checkpoint.
    """
    from bertkit.recipes.adapt import adapt as recipe

    found = recipe(model, corpus=corpus, out=out, settings=_overrides(settings), resume=resume)
    _print(found)


@app.command(name="extend-positions")
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
    from bertkit.recipes.positions import extend_positions as recipe

    _print(recipe(model, length=length, out=out, how=how))


evaluate = App(
    name="evaluate", help="Score a fine-tuned model, a search, or what layers know of words."
)
app.command(evaluate)
evaluate.command(
    "bertkit.commands.search:judge", name="retrieval", help="Score a search; prints JSON."
)
evaluate.command(
    "bertkit.commands.learn:words",
    name="words",
    help="Score what layers know of words; prints JSON.",
)


@evaluate.default
def score(
    model: str,
    file: Path,
    /,
    *,
    task: str | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    header: bool | None = None,
    errors: Path | None = None,
    precision: Precision = "fp32",
) -> None:
    """Score a fine-tuned model on a labelled file; prints JSON.

    Parameters
    ----------
    task
        module:Class, for a task from outside the package.
    text
        Column of the text; guessed and said otherwise, as are the others.
    errors
        A folder for the list of the worst answers, errors.html and errors.jsonl.
    """
    from bertkit.pipelines import answering
    from bertkit.recipes.evaluate import evaluate as recipe
    from bertkit.recipes.finetune import read_examples
    from bertkit.tasks.task import Reading

    ready = answering(model, task, precision=precision)
    reading = Reading(text=text, pair=pair, label=label, header=header)
    examples = read_examples(type(ready.task), file, reading)
    print(json.dumps(recipe(ready, examples, errors=errors)))


@app.command
def predict(
    model: str,
    text: list[str] | None = None,
    /,
    *,
    pair: list[str] | None = None,
    file: Path | None = None,
    task: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    header: bool | None = None,
    long: Long | None = None,
    precision: Precision = "fp32",
) -> None:
    """Answers to texts: arguments, a file's rows, or the lines of stdin. One line of JSON each.

    Parameters
    ----------
    pair
        What goes with the text: the second of a pair, a question's context, each choice.
    file
        Examples as for training, without their labels; columns are guessed and said.
    task
        module:Class, for a task from outside the package.
    long
        What to do with texts longer than the model; by default what the task does.
    """
    from bertkit.pipelines import answering
    from bertkit.recipes.finetune import read_examples
    from bertkit.tasks.task import Reading

    if file is not None and (text or pair):
        raise ConfigError("--file: its rows are answered; leave out other texts, or the file")
    if file is None and (text_column, pair_column, header) != (None, None, None):
        raise ConfigError("--text-column, --pair-column, --header: go with --file")
    ready = answering(model, task, precision=precision)
    if file is not None:
        reading = Reading(text=text_column, pair=pair_column, header=header)
        examples = read_examples(type(ready.task), file, reading, labelled=False)
        for answer in ready.answers(examples, long=long):
            _print(answer)
        return
    for answer in ready(((line, pair) if pair else line for line in text or _lines()), long=long):
        _print(answer)


@app.command(name="fill-mask")
def fill_mask(model: str, text: list[str] | None = None, /, *, top: int = 10) -> None:
    """The likeliest pieces for each [MASK] of a text."""
    from bertkit.pipelines import pipeline

    texts = _texts(text)
    for answers in pipeline("fill-mask", model)(texts, top=top):
        _print(answers)


@app.command(name="next-sentence")
def next_sentence(model: str, a: str, b: str, /) -> None:
    """How likely sentence B follows sentence A."""
    from bertkit.pipelines import pipeline

    _print(pipeline("next-sentence", model)([a], [b])[0])


@app.command
def embed(
    model: str,
    text: list[str] | None = None,
    /,
    *,
    pooling: Literal["mean", "cls", "max"] | None = None,
    long: Long = "error",
    precision: Precision = "fp32",
    invariant: bool = False,
    backend: Literal["bertkit", "onnx", "openvino"] | None = None,
    out: Path | None = None,
) -> None:
    """A vector for each text: a line of JSON, or all as a .npy file.

    Texts are arguments or the lines of stdin; any number of them, as they come.

    Parameters
    ----------
    pooling
        The mean or maximum over tokens, or [CLS]; by default as the folder says, else mean.
    invariant
        Each text by itself, which is slower: its vector is then the same to the last bit,
        whatever it is embedded with.
    backend
        What computes; by default what the folder is: a model, or what `bertkit export` made.
    out
        A .npy file of float32, one row a text.
    """
    from bertkit.memory import keep_few_shapes
    from bertkit.recipes.embed import embed_file, opened

    keep_few_shapes()
    ready, texts = opened(model, backend, precision, pooling, invariant), text or _lines()
    count = cut = 0
    if out is not None:
        count, cut = embed_file(ready, texts, out, long=long)
        _say(f"{out}: {count:,} × {ready.dimension}")
    else:
        for vectors, short in ready.stream(texts, long=long):
            count, cut = count + len(short), cut + sum(short)
            for row in vectors.tolist():
                print(json.dumps(row))
    if cut:
        _say(f"{cut:,} of {count:,} texts are longer than {ready.length} tokens and were cut")


@app.command
def export(
    model: str,
    /,
    *,
    out: Path,
    format: Literal["onnx", "openvino"] = "onnx",
    pooling: Literal["mean", "cls", "max"] | None = None,
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
    """
    from bertkit.recipes.export import export as recipe

    _print(recipe(model, out=out, kind=format, pooling=pooling))


@app.command
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
    from bertkit.recipes.quantize import quantize as recipe

    _print(recipe(model, texts, out=out, lowest=lowest))


@app.command
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
    from bertkit.recipes.tune import tune as recipe

    _print(recipe(model, texts or (), lowest=lowest))


@app.command
def info(model: str, /) -> None:
    """What a model folder holds: shape, parameters and where they are, heads; prints JSON."""
    from bertkit.checkpoint.folder import load
    from bertkit.recipes.info import info as recipe

    print(json.dumps(recipe(load(model)), indent=2))


@app.command
def families(*, json: bool = False) -> None:
    """The run files that come with bertkit, side by side: parameters, shape, method, data.

    Parameters
    ----------
    json
        Print JSON.
    """
    from bertkit.recipes.variants import variants

    found = variants()
    if json:
        _print(found)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("run file", "family", "parameters", "layers/hidden/heads", "method", "data")
    for v in found:
        shape = f"{v.layers}/{v.hidden}/{v.heads}"
        shape += f", {v.weights} set of weights" if v.weights < v.layers else ""
        shape += f", embedding {v.embedding}" if v.embedding != v.hidden else ""
        table.add_row(v.name, v.family, f"{v.parameters / 1e6:.1f} M", shape, v.method, v.data)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@app.command
def demo(*, out: Path = Path("demo"), text: list[Path] | None = None, minutes: float = 4.0) -> None:
    """The whole life of a BERT on this machine, from text to a report, in minutes.

    Parameters
    ----------
    out
        The folder for everything, report.html included.
    text
        Files or folders of your own; by default the English on this machine: the Python
        reference and the docstrings of installed packages.
    minutes
        How long pretraining may take.
    """
    from bertkit.recipes.demo import demo as recipe

    print(recipe(out, text=text, minutes=minutes))


def _own_task(words: list[str]) -> list[str]:
    """Where a task from outside is named, it may lie in the folder one works in.

    `finetune module:Class`, or `finetune --task module:Class`, becomes a command there is.
    """
    if words[:1] == ["finetune"] and "--task" in words[:-1]:
        place = words.index("--task")
        words = ["finetune", words[place + 1], *words[1:place], *words[place + 2 :]]
    new = words[1] if words[:1] == ["finetune"] and ":" in "".join(words[1:2]) else ""
    if (new or "--task" in words) and "" not in sys.path:
        sys.path.insert(0, "")
    if new:
        from bertkit.commands.learn import know_task

        know_task(new)
    return words


def _join(arguments: Sequence[str]) -> list[str]:
    """`--train.steps 300` as one word, so that the parser keeps the two together."""
    joined: list[str] = []
    rest = iter(arguments)
    for word in rest:
        name = word.split("=", 1)[0]
        if name.startswith("--") and "." in name:
            value = word.partition("=")[2] if "=" in word else next(rest, None)
            if value is None:
                raise ConfigError(f"{name}: a value is missing; write {name} VALUE")
            word = f"{name[2:]}={value}"
        joined.append(word)
    return joined


def _overrides(settings: Iterable[str]) -> list[tuple[str, str]]:
    found = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or "." not in key:
            raise ConfigError(f"{setting!r}: not a setting; write --group.name value")
        found.append((key, value))
    return found


def _config(path: Path) -> Path:
    """A run file, or one of those in the package by its bare name."""
    inside = Path(__file__).parent / "configs" / f"{path.name.removesuffix('.toml')}.toml"
    return inside if not path.exists() and path.parent == Path() and inside.exists() else path


def _texts(arguments: list[str] | None) -> list[str]:
    """Texts from the arguments, else the lines of stdin."""
    return arguments or list(_lines())


def _lines() -> Iterator[str]:
    """The lines of stdin that hold text, as they come."""
    if sys.stdin.isatty():
        raise DataError("no text; give it as an argument or on stdin, one text a line")
    if isinstance(sys.stdin, io.TextIOWrapper):  # the tokenizer names what is not UTF-8
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    lines = (line.strip("\ufeff\r\n") for line in sys.stdin if line.strip())
    first = next(lines, None)
    if first is None:
        raise DataError("stdin: no text; give one text a line")
    yield from itertools.chain([first], lines)


def _print(answer: Any) -> None:
    from bertkit.console import print_json

    print_json(answer)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
