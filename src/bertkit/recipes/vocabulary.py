"""Training of tokenizers on raw text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import Progress

from bertkit.config import PythonOnly
from bertkit.console import say
from bertkit.data.document_readers import documents
from bertkit.errors import ConfigError
from bertkit.progress import progress
from bertkit.storage import check_unused
from bertkit.synonyms import check_keywords
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_files import TOKENIZERS
from bertkit.text.vocabulary_training import Kind, Use, train


@check_keywords
def train_vocabulary(
    texts: Sequence[Path | str],
    /,
    *,
    out: Path | str,
    kind: Kind = "wordpiece",
    size: int = 30522,
    use: Use = "encode",
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
    chinese_chars: PythonOnly[bool] = True,
    character_coverage: PythonOnly[float] = 0.9999,
    max_length: PythonOnly[int | None] = 512,
) -> Tokenizer:
    """Train a tokenizer on text.

    All documents are read once.

    Args:
        texts: Text files (.txt, .jsonl or .parquet, also with .gz), or directories of them.
        out: Output directory of the tokenizer. Must not exist.
        kind: wordpiece (BERT), bpe (byte-level, RoBERTa and GPT-2), unigram (ALBERT), or words
            (whole words, ELMo).
        size: Vocabulary size, including special tokens.
        use: Models that use the tokenizer: encode (encoders), write (GPT; requires --kind bpe),
            spans (T5; requires --kind bpe), or translate (translation between two languages that
            share a SentencePiece vocabulary; requires --kind unigram).
        lowercase: Whether to lowercase text. Default: as in BERT-uncased, ALBERT and RoBERTa.
        strip_accents: Whether to remove accents. Default: the value of --lowercase.
        min_frequency: Minimum number of times that a pair of tokens must occur to be merged, or
            that a whole word must occur.
        chinese_chars: Whether each Chinese character is a separate word (wordpiece).
        character_coverage: Fraction of the characters in the text that the alphabet covers
            (wordpiece and unigram). Words with other characters become the unknown token.
        max_length: Maximum number of tokens of a text. It is saved with the tokenizer.

    Returns:
        The tokenizer.

    Raises:
        ConfigError: If `out` exists, or settings cannot be combined.
        DataError: If a text cannot be read. Nothing is written.
    """
    out = Path(out)
    check_unused(out)
    if use == "translate" and kind != "unigram":
        raise ConfigError(f"--use translate requires --kind unigram, got {kind}")
    with progress() as bar:
        if use == "translate":
            return _report(TOKENIZERS[use].train(_read(texts, bar), out, size=size), out, size)
        tokenizer = train(
            _read(texts, bar),
            kind=kind,
            size=size,
            use=use,
            lowercase=lowercase,
            strip_accents=strip_accents,
            chinese_chars=chinese_chars,
            min_frequency=min_frequency,
            character_coverage=character_coverage,
            max_length=max_length,
        )
    tokenizer.save(out)
    # A vocabulary of whole words has at most `size` words, so fewer words are not worth a note.
    return _report(tokenizer, out, size if kind != "words" else 0)


def _report(tokenizer: Tokenizer, out: Path, size: int) -> Tokenizer:
    """Print the vocabulary size, and a note if the text has too few different tokens for `size`."""
    fewer = tokenizer.vocab_size < size
    note = f", not --size {size:,}: the text is too short; add text, or reduce --size" * fewer
    say(f"{out}: {tokenizer.vocab_size:,} tokens{note}")
    return tokenizer


def _read(texts: Sequence[Path | str], bar: Progress) -> Iterator[str]:
    """Yield the texts of the documents, and show progress."""
    task = bar.add_task("counting words", total=None, note="")
    characters = 0
    for count, document in enumerate(documents(texts), start=1):
        yield document.text
        characters += len(document.text)
        bar.update(task, note=f"{count:,} documents, {characters / 1e6:,.0f} M characters")
    bar.update(task, description="training the tokenizer")
