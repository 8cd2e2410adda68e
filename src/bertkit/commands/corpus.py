"""Commands that lead from text to a corpus; none of them needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App

from bertkit.console import say
from bertkit.recipes.prepare import prepare as preparing
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.text.tokenizer import Tokenizer

vocab = App(name="vocab")
vocab.command(
    "bertkit.commands.folder:extend",
    name="extend",
    help="Give a model more words; prints what it is worth as JSON.",
)


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
    tokenizer = train_vocabulary(
        text,
        kind=kind,
        size=size,
        out=out,
        lowercase=lowercase,
        strip_accents=strip_accents,
        min_frequency=min_frequency,
    )
    say(f"{out}: {tokenizer.vocab_size:,} pieces")


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
    preparing(
        text,
        tokenizer=Tokenizer.load(tokenizer),
        out=out,
        field=field,
        blank_lines=blank_lines,
        processes=processes,
        say=say,
    )
