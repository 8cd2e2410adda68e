"""Table of commands. The function of a command is imported when the command runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from cyclopts import App, Group

from bertkit.errors import ConfigError

COMMANDS = {
    "tokenizer train": "recipes.vocabulary:train_vocabulary",
    "tokenizer extend": "recipes.extend:extend",
    "clean": "extensions.cleaning.clean:clean",
    "prepare": "recipes.prepare:prepare",
    "prepare pairs": "extensions.generation.prepare_pairs:prepare_pairs",
    "prepare negatives": "extensions.search.evaluation:mine",
    "pretrain": "commands.pretrain:pretrain",
    "finetune classify": "tasks.classify:Classify",
    "finetune tag": "tasks.tag:Tag",
    "finetune answer": "tasks.answer:Answer",
    "finetune choose": "tasks.choose:Choose",
    "finetune similarity": "tasks.similarity:Similarity",
    "finetune respond": "tasks.respond:Respond",
    "finetune summarize": "tasks.summarize:Summarize",
    "finetune chat": "extensions.generation.tasks.chat:Chat",
    "finetune dpo": "extensions.generation.tasks.dpo:Dpo",
    "finetune seq2seq": "extensions.generation.tasks.seq2seq:Seq2seq",
    "distill": "recipes.distill:distill",
    "augment": "extensions.classic.augment:augment",
    "edit average": "recipes.average:average",
    "edit prune": "recipes.prune:prune",
    "edit positions": "recipes.extend:extend_positions",
    "vectors": "extensions.classic.train_vectors:train_vectors",
    "demo": "extensions.demo.demo:demo",
    "evaluate": "recipes.evaluate:evaluate",
    "evaluate retrieval": "extensions.search.evaluation:evaluate_retrieval",
    "evaluate likelihood": "extensions.generation.likelihood:evaluate_likelihood",
    "evaluate masked": "recipes.pseudo_perplexity:evaluate_masked",
    "evaluate prompts": "extensions.generation.prompts:evaluate_prompts",
    "evaluate summaries": "extensions.generation.rouge:evaluate_summaries",
    "evaluate text": "extensions.generation.perplexity:evaluate_text",
    "evaluate translation": "extensions.generation.bleu:evaluate_translation",
    "evaluate words": "extensions.classic.evaluate_words:evaluate_words",
    "experiment": "recipes.experiment:experiment",
    "runs": "recipes.runs:runs",
    "info": "recipes.info:info",
    "view": "extensions.serving.commands:view",
    "view explain": "commands.view:explain",
    "view align": "extensions.generation.commands:align",
    "view contexts": "extensions.classic.compare_contexts:contexts",
    "predict": "commands.predict:predict",
    "generate": "extensions.generation.commands:generate",
    "chat": "extensions.generation.commands:chat",
    "embed": "recipes.embed:embed_texts",
    "index": "extensions.search.index:index",
    "search": "extensions.search.search:search",
    "serve": "extensions.serving.commands:serve",
    "export": "extensions.export.export:export",
    "export int8": "extensions.export.quantize:quantize",
    "export tune": "extensions.export.tune:tune",
    "push": "recipes.push:push",
}
"""Commands, each with the path of its function, or of the task that it fine-tunes for."""

SECTIONS = {
    "Prepare data": "tokenizer clean prepare",
    "Train": "pretrain finetune distill augment edit vectors demo",
    "Evaluate and inspect": "evaluate experiment runs info view",
    "Use": "predict generate chat embed index search serve export push",
}
"""Sections of `bertkit --help`, with their commands."""

GROUPS = {
    "tokenizer": "Train a tokenizer, or add words to the tokenizer of a model.",
    "edit": "Average checkpoints, prune a model, or extend its positions.",
    "finetune": "Fine-tune a model on labeled examples, for one of several tasks.",
}
"""Help texts of commands that only have subcommands."""

REPLACED = {
    "vocab train": "tokenizer train",
    "vocab extend": "tokenizer extend",
    "adapt": "pretrain --start",
    "glue": "experiment glue",
    "mine": "prepare negatives",
    "finetune elmo": "finetune tag --model ELMO",
    "average": "edit average",
    "quantize": "export int8",
    "tune": "export tune",
    "fill-mask": "predict --pipeline fill-mask",
    "fill-gap": "predict --pipeline fill-gap",
    "next-sentence": "predict --pipeline next-sentence",
    "token-embeddings": "predict --pipeline token-embeddings",
    "summarize": "generate",
    "translate": "generate MODEL --file FILE",
    "explain": "view explain",
    "align": "view align",
    "contexts": "view contexts",
    "inspect": "info CORPUS",
    "compare translation": "experiment translation",
    "compare": "experiment transfer",
    "families": "info",
    "prune": "edit prune",
    "extend-positions": "edit positions",
    "probe": "experiment layers",
}
"""Former commands that were renamed or merged, each with the command that replaces it."""


def check_replaced(words: Sequence[str]) -> None:
    """Raise ConfigError if a command line begins with a former command that was replaced."""
    for name in (" ".join(words[:2]), " ".join(words[:1])):
        if name in REPLACED:
            raise ConfigError(f"`bertkit {name}` is now `bertkit {REPLACED[name]}`")


def register(app: App) -> None:
    """Register all commands in an app. The function of a command is imported when it is called."""
    for position, (section, names) in enumerate(SECTIONS.items()):
        group = Group(section, sort_key=position)
        for name in names.split():
            app.command(f"{__name__}:{name}", name=name, help=summary(name), group=group)
    options = Group("Options", sort_key=len(SECTIONS))
    app["--help"].group = app["--version"].group = options
    completion = "Install completion of commands and options in bash, zsh, or fish."
    app.register_install_completion_command(help=completion, group=options)


def summary(name: str) -> str:
    """Return the first sentence of a command's docstring.

    The docstring is read from the source file, because importing the module can take seconds.
    """
    if name in GROUPS:
        return GROUPS[name]
    module, _, attribute = COMMANDS[name].partition(":")
    source = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    pattern = rf'^(?:def|class) {attribute}\(.*?"""(.+?\.)(?=\s|""")'
    match = re.search(pattern, source.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert match, f"{COMMANDS[name]}: no docstring"
    return " ".join(match[1].split())


def __getattr__(name: str) -> Any:
    """Return a command by name: a function, or an app if the command has subcommands."""
    below = [other for other in COMMANDS if other.startswith(f"{name} ")]
    if name in COMMANDS and not below:
        return _function(name)
    if not below:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    group = App(name=name)
    if name in COMMANDS:
        group.default(_function(name))
    for other in below:
        group.command(f"{__name__}:{other}", name=other.split()[1], help=summary(other))
    return group


def _function(name: str) -> Callable[..., None]:
    """Import the function of a command."""
    from bertkit.commands.command import command

    module, _, attribute = COMMANDS[name].partition(":")
    target = getattr(import_module(f"bertkit.{module}"), attribute)
    # If the target is a class, it is the task of `finetune TASK`.
    if isinstance(target, type):
        from bertkit.commands.finetune import finetune

        target = finetune(target)
    return command(target)
