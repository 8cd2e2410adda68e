"""Pairs of words, and words in two sentences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import DataError
from bertkit.extensions.classic.word_pairs import find_word, read_in_context, read_word_pairs


def test_read_word_pairs_returns_words_and_scores(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("love\tsex\t6.77\n\ntiger cat 7\n", encoding="utf-8")
    assert read_word_pairs(path) == [("love", "sex", 6.77), ("tiger", "cat", 7.0)]
    for score in ("nan", "inf"):
        path.write_text(f"a b 1\na c {score}\n", encoding="utf-8")
        with pytest.raises(DataError, match=f"pairs.txt:2: score must be finite, got {score}"):
            read_word_pairs(path)


@pytest.mark.parametrize(
    ("word", "text", "found"),
    [
        ("hand", "He kept trying to see my hand .", "hand"),
        ("hand", "He hands it over, by hand.", "hand"),  # An exact match takes precedence.
        ("carry", "She carried (her) bag.", "carried"),
        ("begin", "He 'began' it", "began"),
        ("come", "Next came the student", "came"),
        ("break", "Three inmates broke jail .", "broke"),
        ("Straße", "die STRASSE hinab", "STRASSE"),
    ],
)
def test_find_word_matches_other_forms(word: str, text: str, found: str) -> None:
    span = find_word(word, text)
    assert span is not None
    assert text[slice(*span)] == found


def test_read_in_context_reads_published_wic(tmp_path: Path) -> None:
    data = tmp_path / "train.data.txt"
    data.write_text(
        "carry\tV\t2-1\tYou must carry your camping gear .\tSound carries well over water .\n"
        "go\tV\t1-0\tI went .\tGo !\n",
        encoding="utf-8",
    )
    (tmp_path / "train.gold.txt").write_text("F\nT\n", encoding="utf-8")
    (first, second), missing = read_in_context(data)
    assert missing == 0
    assert [first.same, second.same] == [False, True]
    words = [text[slice(*span)] for text, span in zip(first.texts, first.spans, strict=True)]
    assert words == ["carry", "carries"]
    # `find_word` does not find this form.
    assert second.texts[0][slice(*second.spans[0])] == "went"
    (tmp_path / "train.gold.txt").write_text("F\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"has 2 lines, but the \.gold\.txt file has 1 labels"):
        read_in_context(data)
    (tmp_path / "train.gold.txt").write_text("F\nT\n", encoding="utf-8")
    data.write_text("carry\tV\t2-9\tYou must carry it\tIt carries\ngo\tV\t1-0\ta b\tc\n")
    with pytest.raises(DataError, match=r"train.data.txt:1: not a line of WiC"):
        read_in_context(data)


def test_find_word_returns_none_for_absent_word() -> None:
    assert find_word("go", "The belt went around his waist .") is None
    assert find_word("see", "") is None
    # Words of this length are not searched.
    assert find_word("a" * 700, f"{'a' * 700} {'ab' * 700}") is None


@given(st.lists(st.text("abcdef", min_size=1, max_size=64), min_size=1), st.data())
def test_find_word_finds_every_word_of_text(words: list[str], data: st.DataObject) -> None:
    word = data.draw(st.sampled_from(words))
    span = find_word(word, " ".join(words))
    assert span is not None
    assert " ".join(words)[slice(*span)] == word


def row(**more: object) -> dict[str, object]:
    return {"word": "bank", "sentence1": "a bank", "sentence2": "banks", "label": True, **more}


def test_read_in_context_reads_json_rows(tmp_path: Path) -> None:
    path = tmp_path / "wic.jsonl"
    rows = [row(label=0), row(word="river"), row(start1=0, end1=1, start2=0, end2=4)]
    path.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    (first, second), missing = read_in_context(path)
    assert missing == 1
    assert (first.spans, first.same) == (((2, 6), (0, 5)), False)
    assert (second.spans, second.same) == (((0, 1), (0, 4)), True)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"word": "bank"}, "expected word, sentence1 and sentence2"),
        (row(label="yes"), "expected word, sentence1 and sentence2"),
        (row(start1=3, end1=3), "start1 and end1 must be the range of the word"),
        (row(start2=0, end2=99), "start2 and end2 must be the range of the word"),
        (row(start2="0", end2=2), "start2 and end2 must be the range of the word"),
    ],
)
def test_read_in_context_rejects_invalid_rows(
    bad: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "wic.jsonl"
    path.write_text(json.dumps(row()) + "\n" + json.dumps(bad) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=f"wic.jsonl:2: {message}"):
        read_in_context(path)
