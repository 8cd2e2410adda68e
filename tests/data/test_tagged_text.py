"""Tagged text: CoNLL columns, character spans, and error positions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.test_tag_schemes import sentence
from tokenizers import normalizers, pre_tokenizers

from bertkit.data.tag_schemes import IOB2, SCHEMES, Entity, scheme_of, spans
from bertkit.data.tagged_text import TaggedText, align, read_conll, read_spans, words_of
from bertkit.errors import DataError


def write(path: Path, content: str) -> Path:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def line(text: TaggedText) -> int:
    return int(text.where.rpartition(":")[2])


# ---- Columns


def test_read_conll_accepts_several_formats(tmp_path: Path) -> None:
    text = "-DOCSTART- O 0\n\nAda B-PER 0\r\nran  O\t0 \n \t\n\n# O 0\nJoe\u00a0X B-PER 0"
    first, second = read_conll(write(tmp_path / "a.conll.gz", "\ufeff" + text))
    assert (first.words, first.tags, line(first)) == (["Ada", "ran"], ["B-PER", "O"], 3)
    assert (second.words, second.tags, line(second)) == (["#", "Joe\u00a0X"], ["O", "B-PER"], 7)


def test_comments_are_skipped_but_number_signs_kept(tmp_path: Path) -> None:
    text = (
        "# text = Ada saw 10 000\n#\n1\tAda\tPROPN\n2\tsaw\tVERB\n3\t10 000\tNUM\n\n"
        "# text = # !\n#\t#\tSYM\n# id\tPUNCT\n"
    )
    path = write(tmp_path / "a.conllu", text)
    with pytest.raises(
        DataError, match=r"a\.conllu:9: expected 3 columns separated by tabs .*3, got 2"
    ):
        read_conll(path, word=1)
    path = write(path, text.replace("# id\t", "2\t!\t"))
    first, second = read_conll(path, word=1)
    assert (first.words, first.tags) == (["Ada", "saw", "10 000"], ["PROPN", "VERB", "NUM"])
    assert (line(first), line(second)) == (3, 8)
    assert second.words == ["#", "!"]


def test_tag_column_is_detected_or_set(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "Ada NNP B-PER 0\nran VBD O 0\n")
    assert read_conll(path)[0].tags == ["B-PER", "O"]
    assert read_conll(path, tag=1)[0].tags == ["NNP", "VBD"]
    assert read_conll(path, word=1, tag=-4)[0].tags == ["Ada", "ran"]
    assert read_conll(path, word=3)[0].tags == ["B-PER", "O"]
    # The columns of CoNLL-2003.
    chunks = "Ada NNP I-NP I-PER\nran VBD I-VP O\n"
    assert read_conll(write(tmp_path / "c.txt", chunks))[0].tags == ["I-PER", "O"]
    # CoNLL-2000 has no names.
    chunks = "Ada NNP B-NP\nran VBD B-VP\n"
    assert read_conll(write(tmp_path / "c.txt", chunks))[0].tags == ["B-NP", "B-VP"]
    path = write(tmp_path / "pos.txt", "Ada x NNP\nran y VBD\n")
    assert read_conll(path)[0].tags == ["NNP", "VBD"]
    assert read_conll(write(tmp_path / "words.txt", "Ada\nran\n"))[0].tags is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a O\n\nb O\nc\n", r"a\.txt:4: expected 2 columns separated by spaces .* line 1, got 1"),
        ("a\tO\nb O\n", r"a\.txt:2: expected 2 columns separated by tabs .* got 1"),
        ("# O\n#\nb O\n", r"a\.txt:2: expected 2 columns .* line 3, got 1"),
        ("a\tO\n\tO\n", r"a\.txt:2: empty word or tag"),
        ("a B-A 0\nb X-A 0\nc O 0\n", r"a\.txt:2: tag 'X-A' is not valid in IOB2"),
        ("a B-A 0\n\n\nb B-A 0\nc B- 0\n", r"a\.txt:5: tag 'B-' is not valid in IOB2"),
        ("a B-A\n\nb B-A\n\n# 1 2\nc O\nd I-A\n", r"a\.txt:7: tag 'I-A' .* expected B-A"),
        (" \n-DOCSTART- O\n", r"a\.txt: the file contains no words"),
    ],
)
def test_read_conll_reports_line_of_errors(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_conll(write(tmp_path / "a.txt", content))


def test_read_conll_rejects_missing_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a O\n")
    with pytest.raises(DataError, match="no column 2 for the word; the file has 2"):
        read_conll(path, word=2)
    with pytest.raises(DataError, match="no column -3 for the tag"):
        read_conll(path, tag=-3)
    with pytest.raises(DataError, match="column -2 contains the words"):
        read_conll(path, tag=-2)
    with pytest.raises(DataError, match="column 0 contains tags; set text_column= to the words"):
        read_conll(write(tmp_path / "swapped.txt", "O a\nB-X b\n"))
    with pytest.raises(DataError, match=r"gone\.txt: no such file"):
        read_conll(tmp_path / "gone.txt")
    with pytest.raises(DataError, match="got a directory"):
        read_conll(tmp_path)


@given(st.lists(sentence().filter(lambda given: given[1] > 0), min_size=1), st.sampled_from("\t "))
def test_read_conll_returns_written_tags(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[list[Entity], int]], between: str
) -> None:
    tags = [IOB2.encode(entities, length) for entities, length in given]
    rows = ["".join(f"#{between}{tag}\n" for tag in sentence_tags) for sentence_tags in tags]
    path = write(tmp_path_factory.mktemp("conll") / "a.txt", "\n".join(rows))
    found = read_conll(path)
    assert [text.tags for text in found] == tags
    lines = path.read_text().split("\n")
    assert all(lines[line(text) - 1][0] == "#" and not lines[line(text) - 2] for text in found)


@pytest.mark.parametrize(
    ("name", "sentences", "words"),
    [
        ("conll2003/train.txt", 14041, 203621),
        ("conll2003/valid.txt", 3250, 51362),
        ("wnut17/wnut17train.conll", 3394, 62730),
        ("wnut17/emerging.dev.conll", 1009, 15733),
    ],
)
def test_public_data_sets_are_read_completely(
    data_folder: Path, name: str, sentences: int, words: int
) -> None:
    found = read_conll(data_folder / name)
    tags = [text.tags or [] for text in found]
    assert len(found) == sentences
    assert sum(map(len, tags)) == words
    assert scheme_of(tags) is IOB2
    lines = (data_folder / name).read_text(encoding="utf-8").split("\n")
    for text in found:
        rows = lines[line(text) - 1 : line(text) - 1 + len(text.words)]
        assert [tuple(row.split()[:2]) for row in rows] == [
            *zip(text.words, text.tags, strict=True)
        ]
    for scheme in SCHEMES.values():
        converted = [scheme.encode(spans(row), len(row)) for row in tags]
        assert scheme_of(converted) == scheme
        assert [IOB2.encode(spans(row), len(row)) for row in converted] == tags


# ---- Character spans


def test_read_spans_accepts_both_formats(tmp_path: Path) -> None:
    rows = [
        {"text": "Ada 😀 Joe", "entities": [[6, 9, "PER"], {"start": 0, "end": 3, "label": "PER"}]},
        {"id": 7, "text": "", "entities": []},
    ]
    path = write(tmp_path / "a.jsonl.gz", "\n\n".join(map(json.dumps, rows)))
    first, second = read_spans(path)
    assert first.entities == [(0, 3, "PER"), (6, 9, "PER")]
    assert [first.text[start:end] for start, end, _ in first.entities] == ["Ada", "Joe"]
    assert (second.text, second.entities, second.where) == ("", [], f"{path}:3")


@pytest.mark.parametrize(
    ("row", "message"),
    [('{"text": "abc", "entities": [[1, 4, "A"]]}', "1:4 .A. is outside the text of 3"),
     ('{"text": "abc", "entities": [[-1, 2, "A"]]}', "-1:2 .A. is outside the text"),
     ('{"text": "abc", "entities": [[2, 2, "A"]]}', "2:2 .A. is outside the text"),
     ('{"text": "abc", "entities": [[true, 2, "A"]]}', "True:2 .A. is outside the text"),
     ('{"text": "abc", "entities": [[1, 3, "A"], [0, 2, "B"]]}', "0:2 .B. and 1:3 .A. overlap"),
     ('{"text": "abc", "entities": [[0, 1, "A"], [0, 1, "A"]]}', "overlap"),
     ('{"text": "abc", "entities": [[0, 1.5, "A"]]}', "must be .* or .start, end, label."),
     ('{"text": "abc", "entities": [[0, 1, ""]]}', "must be .* or .start, end, label."),
     ('{"text": "abc", "entities": [{"start": 0, "end": 1, "type": "A"}]}',
      "must be .* or .start, end, label."),
     ('{"text": "abc", "entities": {"A": [0, 1]}}', "'entities' must contain a list, got dict"),
     ('{"text": 5, "entities": []}', "'text' must contain text, got int"),
     ('{"text": "abc", "entitys": []}', "no field 'entities'; did you mean 'entitys'"),
     ('{"text": "\\ud800", "entities": []}', "lone surrogate"),
     ("[]", "expected a JSON object, got list"), ("abc", "invalid JSON")],
)  # fmt: skip
def test_read_spans_reports_line_of_errors(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "", "entities": []}}\n{row}\n')
    with pytest.raises(DataError, match=rf"a\.jsonl:2: .*{message}"):
        read_spans(path)


def test_read_spans_rejects_unusable_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the file is empty"):
        read_spans(write(tmp_path / "a.jsonl", "\n"))
    with pytest.raises(DataError, match=r"expected a \.jsonl"):
        read_spans(write(tmp_path / "a.json", "[]"))
    with pytest.raises(DataError, match="no such file"):
        read_spans(tmp_path / "gone.jsonl")


def test_words_of_splits_text() -> None:
    text = " U.S. 😀café's\u00a0$5 北京 "
    words = ["U", ".", "S", ".", "😀café", "'", "s", "$", "5", "北", "京"]
    assert [text[start:end] for start, end in words_of(text)] == words
    assert words_of("") == words_of(" \n") == []


@given(st.text() | st.text("aé .,'北𠀀\u4dc0\u9fff\u3400\u00a0\u200b😀"))
def test_words_of_matches_bert_pre_tokenizer(text: str) -> None:
    normalizer = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    splitter = pre_tokenizers.BertPreTokenizer()
    expected = [word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))]
    assert [text[start:end] for start, end in words_of(text)] == expected


def test_align_expands_entities_to_words() -> None:
    text = "Ada's uncle Joe-Bob left."
    words = words_of(text)  # Ada ' s uncle Joe - Bob left .
    tags, expanded, skipped = align([(0, 3, "PER"), (11, 19, "PER")], words)
    assert tags == ["B-PER", "O", "O", "O", "B-PER", "I-PER", "I-PER", "O", "O"]
    assert (expanded, skipped) == (0, 0)
    tags, expanded, skipped = align(
        [(1, 3, "A"), (6, 13, "B"), (13, 15, "C"), (19, 20, "D")], words
    )
    assert tags == ["B-A", "O", "O", "B-B", "I-B", "O", "O", "O", "O"]
    assert (expanded, skipped) == (2, 2)


@given(st.text("ab .,北"), st.data())
def test_align_keeps_entities_of_whole_words(text: str, data: st.DataObject) -> None:
    words = words_of(text)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(words)))))
    entities = [Entity(a, b, "AB"[a % 2]) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    characters = [(words[a][0], words[b - 1][1], kind) for a, b, kind in entities]
    aligned = align(characters, words)
    assert spans(aligned.tags) == entities
    assert (aligned.expanded, aligned.skipped) == (0, 0)
