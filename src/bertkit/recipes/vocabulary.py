"""Learn a vocabulary from files of raw text and write it as a folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bertkit.data.readers import documents
from bertkit.errors import DataError
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.train import Kind, train


def train_vocabulary(
    texts: Sequence[Path],
    *,
    kind: Kind,
    size: int,
    out: Path,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    chinese_chars: bool = True,
    min_frequency: int = 2,
    character_coverage: float = 0.9999,
    max_length: int | None = 512,
) -> Tokenizer:
    """Read all documents once, learn, and write the folder `out`; settings as in `text.train`.

    Raises: DataError if `out` holds anything already, or a text cannot be read; ConfigError if
    the settings are impossible. Nothing is written then.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(
            f"{out}: something is here already; name a new folder, or remove this one first"
        )
    with _progress() as bar:
        tokenizer = train(
            _watched(texts, bar),
            kind=kind,
            size=size,
            lowercase=lowercase,
            strip_accents=strip_accents,
            chinese_chars=chinese_chars,
            min_frequency=min_frequency,
            character_coverage=character_coverage,
            max_length=max_length,
        )
    tokenizer.save(out)
    return tokenizer


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def _watched(texts: Sequence[Path], bar: Progress) -> Iterator[str]:
    """The documents' texts, telling the bar what has been read and when learning begins."""
    task = bar.add_task("counting words", total=None, done="")
    characters = 0
    for count, document in enumerate(documents(texts), start=1):
        yield document.text
        characters += len(document.text)
        bar.update(task, done=f"{count:,} documents, {characters / 1e6:,.0f} M characters")
    bar.update(task, description="learning pieces")
