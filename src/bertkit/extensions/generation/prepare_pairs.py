"""Preparation of pairs of texts to train translation models on."""

from __future__ import annotations

from pathlib import Path

from bertkit.console import say
from bertkit.data.columns import check_columns, first_column, missing_columns
from bertkit.data.document_readers import read_lines
from bertkit.data.row_readers import Rows
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.generation.pairs import SIDES, Pairs, write_pairs
from bertkit.storage import check_unused
from bertkit.text.tokenizer import Tokenizer

Side = tuple[list[str], list[str]]
"""The source texts or the target texts, and the location of each text in its file."""


def prepare_pairs(
    *,
    source: Path | None = None,
    target: Path | None = None,
    file: Path | None = None,
    source_column: str | None = None,
    target_column: str | None = None,
    tokenizer: Path,
    out: Path,
) -> Pairs:
    """Tokenize pairs of sentences to pretrain a translation model.

    Args:
        source: File with the sentences to translate, one per line; also .gz.
        target: File with the translation of each line of --source on the same line; also .gz.
        file: File with both texts in each row (.tsv, .csv or .jsonl, also .gz), instead of
            --source and --target.
        source_column: With --file: column of the sentence to translate. Default: source.
        target_column: With --file: column of the translation. Default: target.
        tokenizer: Directory of a tokenizer from `tokenizer train --use translate`.
        out: Output directory. Must not exist.

    Returns:
        The prepared pairs.

    Raises:
        ConfigError: If the arguments are not either `file` or both `source` and `target`, or `out`
            exists.
        DataError: If `source` and `target` have different numbers of lines, or a text is empty.
    """
    check_unused(out)
    sides = read_pairs(source, target, file, source_column, target_column)
    files = [path for path in (source, target, file) if path is not None]
    tokenizers = {
        "source": Tokenizer.load(tokenizer, side="source"),
        "target": Tokenizer.load(tokenizer, side="target"),
    }
    tokenizers["source"].need("pad", "eos")
    ids = {}
    for side, (texts, locations) in zip(SIDES, sides, strict=True):
        ids[side] = tokenizers[side].ids(texts)
        empty = next((n for n, text in enumerate(ids[side]) if not len(text)), None)
        if empty is not None:
            raise DataError(f"{locations[empty]}: the text has no tokens; remove the pair")
    pairs = write_pairs(out, tokenizers["source"], ids, sources=files)
    manifest = pairs.manifest
    say(
        f"{out}: {manifest.pairs:,} pairs, {manifest.source_tokens:,} source and "
        f"{manifest.target_tokens:,} target tokens"
    )
    return pairs


def read_pairs(
    source: Path | None,
    target: Path | None,
    file: Path | None,
    source_column: str | None = None,
    target_column: str | None = None,
) -> tuple[Side, Side]:
    """Read source and target texts from two files of lines, or from one file of rows.

    Args:
        source: File with the sentences to translate, one per line.
        target: File with the translation of each line of `source` on the same line.
        file: File with both texts in each row, instead of `source` and `target`.
        source_column: Column of the sentence to translate. Default: source.
        target_column: Column of the translation. Default: target.

    Raises:
        ConfigError: If the arguments are not either `file` or both `source` and `target`.
        DataError: If `source` and `target` have different numbers of lines, or a text is empty.
    """
    if file is not None and source is None and target is None:
        sides = _read_table(file, source_column, target_column)
    elif source is not None and target is not None and file is None:
        if source_column is not None or target_column is not None:
            raise ConfigError("--source-column and --target-column require --file")
        sides = _read_lines(source, target)
    else:
        raise ConfigError("pass either --source and --target, or --file")
    for texts, locations in sides:
        empty = next((n for n, text in enumerate(texts) if not text.strip()), None)
        if empty is not None:
            raise DataError(f"{locations[empty]}: the text is empty; add text, or remove the pair")
    return sides


def _read_lines(source: Path, target: Path) -> tuple[Side, Side]:
    sides = [read_lines(source), read_lines(target)]
    counts = [len(lines) for lines in sides]
    if counts[0] != counts[1]:
        longer, shorter = (source, target) if counts[0] > counts[1] else (target, source)
        raise DataError(
            f"{longer}:{min(counts) + 1}: {shorter} ends before this line ({counts[0]:,} and "
            f"{counts[1]:,} lines); use files in which line N of one translates line N of the other"
        )
    locations = [[f"{path}:{n + 1}" for n in range(counts[0])] for path in (source, target)]
    return (sides[0], locations[0]), (sides[1], locations[1])


def _read_table(file: Path, source: str | None, target: str | None) -> tuple[Side, Side]:
    table = Rows.read(file)
    check_columns(table, source, target)
    text = source or first_column(table, ("source",), target)
    other = target or first_column(table, ("target",), text)
    if text is None or other is None:
        missing = {"--source-column": "source"} if text is None else {}
        raise missing_columns(
            table, missing if other is not None else {**missing, "--target-column": "target"}
        )
    say(f"{table.summary}; {len(table):,} rows; source = {text!r}, target = {other!r}")
    locations = [table.where(index) for index in range(len(table))]
    return (list(table.texts(text)), locations), (list(table.texts(other)), locations)
