"""The commands, and words turned into calls of them: exit codes and one sentence out."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from bertkit import __version__
from bertkit.errors import BertkitError, ConfigError

app = App(
    name="bertkit",
    help="From raw text to a BERT in service.",
    version=__version__,
    help_on_error=False,
    suppress_keyboard_interrupt=False,  # `run` says how to go on
)
COMMANDS = {
    "corpus:vocab": "Vocabularies.",
    "corpus:prepare": "Turn text into a corpus of token ids that pretraining reads from disk.",
    "pretrain:inspect": "Print samples of a corpus as a person reads them, and statistics.",
    "pretrain:pretrain": "Pretrain a model.",
    "pretrain:adapt": "Go on pretraining a model on text of your own field; prints JSON.",
    "pretrain:families": "The run files that come with bertkit, side by side.",
    "pretrain:demo": "The whole life of a BERT on this machine, from text to a report, in minutes.",
    "learn:finetune": "Fine-tune a model on labelled data, for one of many tasks.",
    "learn:distill": "Teach a small model what a fine-tuned one does; prints JSON.",
    "learn:augment": "More labelled texts from those there are, for a student; prints JSON.",
    "learn:prune": "A fine-tuned model without heads or layers, and what that costs; prints JSON.",
    "learn:probe": "Which layers of a frozen model know what tagging words needs; prints JSON.",
    "learn:vectors": "Learn static word vectors from text.",
    "learn:compare": "Labels from random weights, word vectors and pretraining; prints JSON.",
    "answer:evaluate": "Score a fine-tuned model, a search, or what layers know of words.",
    "answer:predict": "Answers to texts: a line of JSON each.",
    "answer:fill_mask": "The likeliest pieces for each [MASK] of a text.",
    "answer:next_sentence": "How likely sentence B follows sentence A.",
    "embed:embed": "A vector for each text: a line of JSON, or all as a .npy file.",
    "search:index": "Put documents into a store, to be searched; prints JSON.",
    "search:search": "The documents of a store that answer a query best.",
    "search:mine": "Rows to train on: queries, answers, and near misses; prints JSON.",
    "serve:serve": "Serve models over HTTP.",
    "serve:view": "Look into models in the browser.",
    "view:explain": "What a model does with a text, as one HTML file.",
    "folder:info": "What a model folder holds: shape, parameters, heads; prints JSON.",
    "folder:extend_positions": "Let a model read longer texts; prints JSON.",
    "folder:export": "A model that makes vectors, to run without torch; prints JSON.",
    "folder:quantize": "Make a model compute in 8-bit integers; prints JSON.",
    "folder:tune": "Find what a model is fastest with here, for --precision auto; prints JSON.",
}
"""Each command: its module in `bertkit.commands`, imported when it is called, and what the list of
commands says of it."""
for _place, _help in COMMANDS.items():
    _name = _place.partition(":")[2].replace("_", "-")
    app.command(f"bertkit.commands.{_place}", name=_name, help=_help)


def main() -> None:
    """Run the command line: 0 when all is well, 2 for what the user can mend, 130 for Ctrl-C."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are one sentence on stderr."""
    try:
        words = _join(arguments) if arguments[:1] in (["pretrain"], ["adapt"]) else list(arguments)
        words = _own_task(words)
        _tell_all(words)
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


def _tell_all(words: Sequence[str]) -> None:
    """Show a command's docstring on its own help page; the list of commands has a shorter text."""
    command = app
    for word in words:
        if word.startswith("-") or word not in command:
            return
        command = command[word]
        if command.default_command:
            command.help = None


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
