"""Readers of datasets for word similarity and for words in context (WiC); search for a word."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from bertkit.data.document_readers import json_object, numbered
from bertkit.errors import DataError

MIN_SIMILARITY = 0.5
"""Minimum similarity of a word and one of its forms: the ratio that difflib computes."""

MAX_WORD_CHARACTERS = 64
"""Maximum number of characters of a word that `find_word` compares."""


@dataclass(frozen=True)
class InContext:
    """Two sentences that contain a word, and whether the word has the same meaning in both."""

    texts: tuple[str, str]
    spans: tuple[tuple[int, int], tuple[int, int]]
    same: bool


def read_word_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Read a file with two words and a score per line (WordSim-353, SimLex-999).

    Args:
        path: The file.

    Raises:
        DataError: If a line is invalid. The message names the file and line.
    """
    pairs = []
    for number, line in numbered(path):
        try:
            first, second, score = line.split()
            pairs.append((first, second, float(score)))
        except ValueError:
            raise DataError(
                f"{path}:{number}: expected two words and a score; separate them with tabs"
            ) from None
        if not math.isfinite(pairs[-1][2]):
            raise DataError(f"{path}:{number}: score must be finite, got {score}; remove the line")
    if not pairs:
        raise DataError(f"{path}: contains no rows; each row must be two words and a score")
    return pairs


WIC_SUFFIX = ".data.txt"
"""Suffix of WiC's data files. The labels are in separate files with the suffix .gold.txt."""


def read_in_context(path: Path) -> tuple[list[InContext], int]:
    """Read words in context from a .jsonl file (SuperGLUE), or from WiC's own files.

    A .jsonl file has rows {word, sentence1, sentence2, label}. A row may specify the position of
    the word with start1, end1, start2, and end2. Otherwise, `find_word` searches for the word.

    Args:
        path: The file.

    Returns:
        The rows, and the number of rows that were skipped because their word was not found.

    Raises:
        DataError: If a row is invalid. The message names the file and line.
    """
    if path.name.endswith(WIC_SUFFIX):
        return list(_wic(path)), 0
    rows, missing = [], 0
    for number, line in numbered(path):
        location = f"{path}:{number}"
        row = _in_context(json_object(line.encode(), location), location)
        rows += [row] if row else []
        missing += row is None
    return rows, missing


def _wic(path: Path) -> Iterator[InContext]:
    """Read WiC's own files.

    A line contains the word, its part of speech, the index of the word in each sentence (such as
    2-5), and two sentences.
    """
    rows = numbered(path)
    golds = numbered(path.with_name(path.name.removesuffix(WIC_SUFFIX) + ".gold.txt"))
    if len(rows) != len(golds):
        raise DataError(
            f"{path}: has {len(rows)} lines, but the .gold.txt file has {len(golds)} labels; "
            "download both files again"
        )
    for (number, line), (_, gold) in zip(rows, golds, strict=True):
        match line.split("\t"):
            case [_, _, positions, *texts] if len(texts) == 2:
                indices = [int(n) for n in positions.split("-") if n.isdecimal()]
                spans = [_nth_word(*pair) for pair in zip(texts, indices, strict=False)]
            case _:
                texts, spans = [], []
        match spans, gold.strip():
            case [(int(), int()) as first, (int(), int()) as second], ("T" | "F") as same:
                yield InContext((texts[0], texts[1]), (first, second), same == "T")
            case _:
                raise DataError(
                    f"{path}:{number}: not a line of WiC; expected a word, its part of speech, its "
                    "positions (2-5) and two sentences, with T or F in the .gold.txt file"
                )


def _nth_word(text: str, index: int) -> tuple[int, int] | None:
    words = list(re.finditer(r"\S+", text))
    return words[index].span() if index < len(words) else None


def _in_context(row: dict[str, Any], location: str) -> InContext | None:
    match row:
        case {
            "word": str(word),
            "sentence1": str(first),
            "sentence2": str(second),
            "label": bool() | 0 | 1 as label,
        }:
            texts = first, second
        case _:
            raise DataError(
                f"{location}: expected word, sentence1 and sentence2 (strings), and label (true or "
                "false)"
            )
    spans = []
    for number, text in enumerate(texts, start=1):
        start, end = row.get(f"start{number}"), row.get(f"end{number}")
        if start is None or end is None:
            spans.append(find_word(word, text))
        elif isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(text):
            spans.append((start, end))
        else:
            raise DataError(
                f"{location}: start{number} and end{number} must be the range of the word in "
                f"sentence{number}"
            )
    span, other_span = spans
    return InContext(texts, (span, other_span), bool(label)) if span and other_span else None


def find_word(word: str, text: str) -> tuple[int, int] | None:
    """Find a word, or one of its forms, in a text, and return its characters [start, end).

    For "carry", for example, it finds "carried". The result is the most similar word with the same
    first letter, or the first of several equally similar words. Therefore, "went" is not found for
    "go". The similarity is the ratio of difflib, and must be at least `MIN_SIMILARITY`. Words
    longer than `MAX_WORD_CHARACTERS` are skipped, because the comparison takes cubic time. If no
    word is similar, the result is None.
    """
    target = word.casefold()
    best, best_span, start = 0.0, None, 0
    for part in text.split():
        start = text.index(part, start)
        bare = part.strip(".,;:!?\"'()[]`")
        candidate = bare.casefold()
        if candidate[:1] == target[:1] and max(len(candidate), len(target)) <= MAX_WORD_CHARACTERS:
            ratio = SequenceMatcher(None, target, candidate, autojunk=False).ratio()
            if ratio > best and ratio >= MIN_SIMILARITY:
                begin = start + part.index(bare)
                best, best_span = ratio, (begin, begin + len(bare))
        start += len(part)
    return best_span
