"""Data sets of word similarity: pairs of words, and words in sentences (WiC)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.data.document_readers import json_object, numbered
from bertkit.errors import DataError
from bertkit.text.word_splitting import find_word


@dataclass(frozen=True)
class InContext:
    """A word in two sentences, and whether it means the same in both."""

    texts: tuple[str, str]
    spans: tuple[tuple[int, int], tuple[int, int]]
    same: bool


def read_word_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Rows of two words and a score (WordSim-353, SimLex-999).

    Raises: DataError naming file and line.
    """
    pairs = []
    for number, line in numbered(path):
        try:
            first, second, score = line.split()
            pairs.append((first, second, float(score)))
        except ValueError:
            raise DataError(
                f"{path}:{number}: not two words and a score; write them with tabs between"
            ) from None
        if not math.isfinite(pairs[-1][2]):
            raise DataError(f"{path}:{number}: the score {score} is no number; remove the line")
    if not pairs:
        raise DataError(f"{path}: no rows; each is two words and a score")
    return pairs


WIC_SUFFIX = ".data.txt"
"""Suffix of WiC's files; their labels stand beside, in .gold.txt."""


def read_in_context(path: Path) -> tuple[list[InContext], int]:
    """Rows {word, sentence1, sentence2, label} of .jsonl, as SuperGLUE has WiC, or WiC's own files.

    Where the word is may be said by start1, end1, start2 and end2; else it is looked for (`find`).
    Returns: the rows, and how many were left out because their word was not found.
    Raises: DataError naming file and line.
    """
    if path.name.endswith(WIC_SUFFIX):
        return list(_wic(path)), 0
    rows, missing = [], 0
    for number, line in numbered(path):
        where = f"{path}:{number}"
        row = _in_context(json_object(line.encode(), where), where)
        rows += [row] if row else []
        missing += row is None
    return rows, missing


def _wic(path: Path) -> Iterator[InContext]:
    """WiC as it is published: word, part of speech, the word's places (2-5), and two sentences."""
    rows = numbered(path)
    golds = numbered(path.with_name(path.name.removesuffix(WIC_SUFFIX) + ".gold.txt"))
    if len(rows) != len(golds):
        raise DataError(
            f"{path}: {len(rows)} lines, and {len(golds)} labels beside it; get both files again"
        )
    for (number, line), (_, gold) in zip(rows, golds, strict=True):
        match line.split("\t"):
            case [_, _, places, *texts] if len(texts) == 2:
                numbers = [int(place) for place in places.split("-") if place.isdecimal()]
                spans = [_nth_word(*each) for each in zip(texts, numbers, strict=False)]
            case _:
                texts, spans = [], []
        match spans, gold.strip():
            case [(int(), int()) as first, (int(), int()) as second], ("T" | "F") as same:
                yield InContext((texts[0], texts[1]), (first, second), same == "T")
            case _:
                raise DataError(
                    f"{path}:{number}: not a line of WiC; each is a word, its part of speech, its "
                    "places (2-5) and two sentences, with T or F in the file beside"
                )


def _nth_word(text: str, place: int) -> tuple[int, int] | None:
    words = list(re.finditer(r"\S+", text))
    return words[place].span() if place < len(words) else None


def _in_context(row: dict[str, Any], where: str) -> InContext | None:
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
                f"{where}: not a word in two sentences; give word, sentence1, sentence2, and label "
                "true or false"
            )
    spans = []
    for place, text in enumerate(texts, start=1):
        start, end = row.get(f"start{place}"), row.get(f"end{place}")
        if start is None or end is None:
            spans.append(find_word(word, text))
        elif isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(text):
            spans.append((start, end))
        else:
            raise DataError(f"{where}: start{place} and end{place} are no place in sentence{place}")
    one, other = spans
    return InContext(texts, (one, other), bool(label)) if one and other else None
