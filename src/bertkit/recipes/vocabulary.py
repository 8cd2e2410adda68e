"""Learn a vocabulary from files of raw text and write it as a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import Progress

from bertkit.console import say
from bertkit.data.readers import documents
from bertkit.errors import ConfigError
from bertkit.progress import progress
from bertkit.storage import refuse_used
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
    chinese_chars: bool = True,
    character_coverage: float = 0.9999,
    max_length: int | None = 512,
) -> Tokenizer:
    """Learn a vocabulary from text: WordPiece, byte-level BPE, Unigram, or whole words.

    All documents are read once. More settings are those of `text.vocabulary_training`.
    Raises: ConfigError if `out` is in use or the settings are impossible, DataError if a text
    cannot be read. Nothing is written then.

    Args:
        texts: Files or folders of .txt, .jsonl or .parquet, also .gz.
        out: The tokenizer's folder, to be made.
        kind: wordpiece is BERT's, bpe RoBERTa's (byte-level), unigram ALBERT's; words are whole
            ones, for an ELMo.
        size: Pieces, special tokens included.
        use: encode is for models that read; write for those that write (GPT), with bpe alone;
            spans for T5, the same; translate for two languages at once, by SentencePiece, with
            unigram alone.
        lowercase: Whether case is dropped; by default as BERT-uncased, ALBERT and RoBERTa do.
        strip_accents: Whether accents are dropped; by default as lowercase.
        min_frequency: How often a pair of pieces must occur to be joined, or a whole word.
    """
    out = Path(out)
    refuse_used(out)
    if use == "translate" and kind != "unigram":
        raise ConfigError(f"use: a vocabulary to translate with is unigram, not {kind}")
    with progress() as bar:
        if use == "translate":
            return _said(TOKENIZERS[use].train(_watched(texts, bar), out, size=size), out, size)
        tokenizer = train(
            _watched(texts, bar),
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
    return _said(tokenizer, out, size if kind != "words" else 0)  # of words it is the most


def _said(tokenizer: Tokenizer, out: Path, size: int) -> Tokenizer:
    """Say how many pieces there are, and where the text had no more."""
    fewer = tokenizer.vocab_size < size
    asked = f" of {size:,} asked for: the text has no more; give more, or a smaller size" * fewer
    say(f"{out}: {tokenizer.vocab_size:,} pieces{asked}")
    return tokenizer


def _watched(texts: Sequence[Path | str], bar: Progress) -> Iterator[str]:
    """The documents' texts, telling the bar what has been read and when learning begins."""
    task = bar.add_task("counting words", total=None, note="")
    characters = 0
    for count, document in enumerate(documents(texts), start=1):
        yield document.text
        characters += len(document.text)
        bar.update(task, note=f"{count:,} documents, {characters / 1e6:,.0f} M characters")
    bar.update(task, description="learning pieces")
