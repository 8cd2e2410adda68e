"""Prepare pairs of texts to learn to translate from."""

from __future__ import annotations

from pathlib import Path

from bertkit.console import say
from bertkit.data.pairs import Pairs, write_pairs
from bertkit.data.readers import read_lines
from bertkit.errors import DataError
from bertkit.storage import refuse_used
from bertkit.text.tokenizer import Tokenizer


def prepare_pairs(*, source: Path, target: Path, tokenizer: Path, out: Path) -> Pairs:
    """Prepare pairs to learn to translate from: two files, of which lines belong together.

    Raises: DataError for files of different length and for an empty side, by its line.

    Args:
        source: Text to translate, a sentence a line; also .gz.
        target: Its translation, line by line.
        tokenizer: The folder of a vocabulary, made with `vocab train --use translate`.
        out: The folder, to be made.
    """
    refuse_used(out)
    sides = {"source": read_lines(source), "target": read_lines(target)}
    counts = [len(lines) for lines in sides.values()]
    if counts[0] != counts[1]:
        longer, shorter = (source, target) if counts[0] > counts[1] else (target, source)
        raise DataError(
            f"{longer}:{min(counts) + 1}: {shorter} ends before this line ({counts[0]:,} and "
            f"{counts[1]:,} lines); lines that belong together stand in the same place"
        )
    for path, lines in zip((source, target), sides.values(), strict=True):
        empty = next((n for n, line in enumerate(lines, 1) if not line.strip()), None)
        if empty is not None:
            raise DataError(f"{path}:{empty}: empty; give its translation, or leave out the pair")
    opened = {side: Tokenizer.load(tokenizer, side=side) for side in ("source", "target")}
    opened["source"].need("pad", "eos")
    ids = {side: opened[side].ids(lines) for side, lines in sides.items()}
    for path, texts in zip((source, target), ids.values(), strict=True):
        nothing = next((n for n, text in enumerate(texts, 1) if not len(text)), None)
        if nothing is not None:
            raise DataError(f"{path}:{nothing}: no token is left of it; leave out the pair")
    pairs = write_pairs(out, opened["source"], ids, sources=(source, target))
    manifest = pairs.manifest
    say(
        f"{out}: {manifest.pairs:,} pairs, {manifest.source_tokens:,} and "
        f"{manifest.target_tokens:,} tokens"
    )
    return pairs
