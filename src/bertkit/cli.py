"""Entry point of the command line, which reports errors as messages and exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)

from bertkit import __version__
from bertkit.commands.table import check_replaced, register
from bertkit.console import STDIN, write_line
from bertkit.errors import BertkitError, ConfigError, at_command_line, missing_package
from bertkit.synonyms import translated
from bertkit.threads import settle

LASTING = ("pretrain", "serve")
"""Commands that run for hours and share the machine with other processes."""

app = App(
    name="bertkit",
    help="From raw text to a BERT in service. Results go to stdout, messages to stderr.\n\n"
    "With --print-config a command prints its options as TOML; with --config FILE it reads them.",
    version=__version__,
    help_on_error=False,
    default_parameter=Parameter(negative_iterable=()),
    suppress_keyboard_interrupt=False,  # `_run` prints how to resume after Ctrl-C
)
register(app)


def main() -> None:
    """Run the command line. Exit codes: 0 for success, 2 for an error, 130 for Ctrl-C."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. An error is printed to stderr as one line."""
    # torch reads these environment variables when it is imported.
    settle(lasting=any(word in LASTING for word in arguments[:1]))
    with at_command_line():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    # stdin is None if the parent process has closed it.
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO())
    try:
        check_replaced(arguments)
        words, app.config = _with_config([STDIN if word == "-" else word for word in arguments])
        words = _with_task(words)
        if "TORCHELASTIC_RUN_ID" in os.environ and words[:1] not in (["pretrain"], ["finetune"]):
            raise ConfigError("torchrun supports only `pretrain` and `finetune`; run without it")
        app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except (BertkitError, CycloptsError, ImportError) as error:
        match error:
            case ImportError():
                message = str(missing_package(error))
            case MissingArgumentError():
                message = _missing(error)
            case UnknownOptionError():
                message = _unknown(error)
            case UnusedCliTokensError() if words[:1] == ["search"]:
                message = f"search: more than one query ({error}); put the query in quotation marks"
            # The command accepts any option, and received one with a dot, such as --a.b.
            case _ if "[KEYWORD]" in str(error):
                message = f"Unknown option: {next(word for word in words if '.' in word)}"
            case _:
                message = str(error)
        write_line(f"bertkit: {' '.join(message.split())}")
        return 2
    except KeyboardInterrupt as stop:
        write_line(f"bertkit: {str(stop) or 'stopped'}")
        return 130
    except BrokenPipeError:
        # The process that reads the output has ended, such as `head`.
        sys.stderr.close()
        return 0
    except OSError as error:
        # Unexpected errors of files and directories are also printed as one line.
        path = f"{error.filename}: " if error.filename else ""
        write_line(f"bertkit: {path}{error.strerror or error}")
        return 2
    return 0


def _with_config(words: list[str]) -> tuple[list[str], list[Any]]:
    """Return the arguments without `--config FILE`, and the options that FILE contains.

    Raises:
        ConfigError: If the file is missing or malformed.
    """
    parts = (w.split("=", 1) if w.startswith("--config=") else [w] for w in words)
    words = [word for part in parts for word in part]
    if "--config" not in words:
        return words, []
    from cyclopts.config import Dict

    from bertkit.config import read_toml

    index = words.index("--config")
    if index + 1 == len(words):
        raise ConfigError("--config has no value; use --config FILE")
    path = words[index + 1]
    options = Dict(read_toml(Path(path)), use_commands_as_keys=False, source=path)
    return words[:index] + words[index + 2 :], [options]


def _missing(error: MissingArgumentError) -> str:
    """Return the error message for a missing argument."""
    command = " ".join(["bertkit", *(error.command_chain or ())])
    name, given = getattr(error.argument, "name", ""), error.keyword
    problem = f"{given} has no value" if given else f"{name} is missing"
    _, _, suggestion = str(error).partition(" Did you mean ")
    if suggestion:
        return f"{problem}. Did you mean {suggestion}"
    return f"{problem}; `{command} --help` lists the options"


def _unknown(error: UnknownOptionError) -> str:
    """Return the error message for an unknown option, with a suggestion."""
    name = (error.token.keyword or "").removeprefix("--")
    known = [option for argument in error.argument_collection for option in argument.names]
    if found := translated(name, [option.removeprefix("--").replace("-", "_") for option in known]):
        return f"Unknown option: --{name}. Did you mean --{found.replace('_', '-')}?"
    if name in ("seeds", "grid", "keep-all"):
        return f"Unknown option: --{name}. Use `bertkit experiment` for several seeds or settings"
    return str(error)


def _with_task(words: list[str]) -> list[str]:
    """Add the command `finetune TASK` if TASK is an extension's task or `module:Class`.

    The module may be in the working directory.
    """
    name = words[1] if words[:1] == ["finetune"] and len(words) > 1 else ""
    if (":" in name or "--task" in words) and "" not in sys.path:
        sys.path.insert(0, "")
    if name and not name.startswith("-") and name not in app["finetune"]:
        from bertkit.commands.command import command
        from bertkit.commands.finetune import finetune
        from bertkit.tasks import find

        task = find(name)
        meaning = (task.__doc__ or name).split("\n\n")[0]
        app["finetune"].command(command(finetune(task)), name=name, help=meaning)
    return words
