"""Labelled files: every value as written, and each unusable row refused with its place."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.columns import choose_columns
from bertkit.data.readers import STDIN
from bertkit.data.tables import COLUMN_NAMES, rows
from bertkit.errors import DataError


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_tsv_keeps_quotes_and_csv_takes_them_off(tmp_path: Path) -> None:
    tsv = rows(write(tmp_path / "a.tsv", 'sentence\tlabel\r\nHe said "no, never\t0\r\nB\t1\r\n'))
    assert tsv.rows[0] == {"sentence": 'He said "no, never', "label": "0"}
    assert tsv.lines == [2, 3]
    csv = rows(write(tmp_path / "a.csv", '\ufefftext,label\n"A ""b"",\nc",0\n\nD,1\n'))
    assert csv.columns == ["text", "label"]
    assert csv.rows == [{"text": 'A "b",\nc', "label": "0"}, {"text": "D", "label": "1"}]
    assert csv.lines == [2, 5]


def test_a_text_file_with_tabs_is_a_table(tmp_path: Path) -> None:
    table = rows(write(tmp_path / "msr.txt", "\ufeffQuality\t#1 String\t#2 String\n1\tA\tB\n"))
    assert table.rows == [{"Quality": "1", "#1 String": "A", "#2 String": "B"}]
    lines = "DESC:manner How did it end ?\nHUM:ind Who ?\n"
    with pytest.raises(DataError, match=r"trec.txt: no tab was found .* \(separator=.space.\)"):
        rows(write(tmp_path / "trec.txt", lines))
    table = rows(tmp_path / "trec.txt", separator="space")
    assert table.rows[0] == {"1": "DESC:manner", "2": "How did it end ?"}


def test_other_characters_may_divide_columns(tmp_path: Path) -> None:
    table = rows(write(tmp_path / "a.csv", 'text;label\n"A; b";0\n'), separator=";")
    assert table.rows == [{"text": "A; b", "label": "0"}]
    assert rows(write(tmp_path / "b.tsv", "A|0\n"), separator="|").rows == [{"1": "A", "2": "0"}]
    with pytest.raises(DataError, match="separator: 'tab'; give one character, or the word space"):
        rows(tmp_path / "b.tsv", separator="tab")


def test_what_divides_a_csv_file_is_told(tmp_path: Path) -> None:
    for text in ("text;label\nA, b;0,5\n", "text\tlabel\nA, b\t0,5\n"):
        assert rows(write(tmp_path / "a.csv", text)).rows == [{"text": "A, b", "label": "0,5"}]
    assert rows(write(tmp_path / "b.csv", '"A; b",0\n"C; d",1\n')).columns == ["1", "2"]
    table = rows(write(tmp_path / "c.csv", "good phone;4,5\nbad one;1,0\nbad too;1,5\n"))
    assert table.rows[1] == {"1": "bad one", "2": "1,0"}  # a decimal comma divides nothing
    assert rows(write(tmp_path / "c.csv", "text\nA; b\nC\n")).rows[0] == {"text": "A; b"}
    with pytest.raises(DataError, match=r"d.csv:3: expected 2 columns as .* found 3"):
        rows(write(tmp_path / "d.csv", "text,label\nA,0\nB,1,2\n"))


@pytest.mark.parametrize(
    "text",
    ['{"text": "A", "label": "0"}', "text\tlabel\nA\t0", "text,label\nA,0", "text;label\nA;0"],
)
def test_stdin_is_told_by_how_it_begins(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    for _ in range(2):  # what was read can be read again
        table = rows(STDIN)
        assert table.rows == [{"text": "A", "label": "0"}]


def test_stdin_is_checked_as_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, said in ((b"", "stdin: the file is empty"), (b"text\n\xff\n", "stdin:2: not UTF-8")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        with pytest.raises(DataError, match=said):
            rows(STDIN)


def test_rows_may_differ_beside_the_columns_that_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "sts.tsv", "a\tb\t5.0\tx\ty\nc\td\t1.0\te\tf\tno one\nq\tr\t2.0\n")
    with pytest.raises(DataError, match=r"sts.tsv:2: expected 5 columns"):
        rows(path)
    table = rows(path, named=("1", "3"))
    assert [row["3"] for row in table.rows] == ["5.0", "1.0", "2.0"]
    assert table.rows[2]["5"] == ""
    with pytest.raises(DataError, match=r"sts.tsv:3: expected 5 columns as .* found 3"):
        rows(path, named=("1", "4"))


def test_a_cell_may_hold_a_document(tmp_path: Path) -> None:
    text = "word " * 40_000
    (row,) = rows(write(tmp_path / "a.csv", f'text,label\n"{text}",1\n')).rows
    assert row["text"] == text


def test_jsonl_values_are_text(tmp_path: Path) -> None:
    lines = '{"text": "A", "label": 1, "x": 0.5, "y": true, "z": null}\n'
    table = rows(write(tmp_path / "a.jsonl.gz", lines))
    assert table.rows == [{"text": "A", "label": "1", "x": "0.5", "y": "true", "z": ""}]


def test_a_header_that_is_repeated_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\na\tx\ntext\tlabel\nb\ty\n")
    table = rows(path)
    assert "warning: line 3 repeats the names of the columns: remove it" in table.said
    assert len(table.rows) == 3
    assert "warning" not in rows(write(tmp_path / "b.tsv", "text\tlabel\na\tx\n")).said


@pytest.mark.parametrize(
    ("first", "columns"),
    [
        ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", None),
        ("question\tsentence\tlabel", None),
        ("index\tsentence1\tsentence2\tscore", None),
        ("It was a label.\t1", ["1", "2"]),
        ("gj04\t1\t\tOur friends won't buy this analysis.", ["1", "2", "3", "4"]),
        ("ham\tOk lar... Joking wif u oni...", ["1", "2"]),
    ],
)
def test_a_header_is_guessed_and_said(
    tmp_path: Path, first: str, columns: list[str] | None
) -> None:
    path = write(tmp_path / "a.tsv", f"{first}\n{first.replace('l', 'x')}\n")
    table = rows(path)
    assert table.columns == (columns or first.split("\t"))
    assert len(table.rows) == (2 if columns else 1)
    assert ", ".join(table.columns) in table.said
    assert ("no header" in table.said) == (columns is not None)
    assert len(rows(path, header=columns is None).rows) == len(table.rows)
    assert len(rows(path, header=columns is not None).rows) != len(table.rows)


WORDS = st.text("abcdefgh ", min_size=1, max_size=20).map(str.strip).filter(bool)


@given(
    names=st.lists(WORDS, min_size=2, max_size=4, unique=True),
    cells=st.lists(WORDS, min_size=4, max_size=4),
    place=st.integers(0, 3),
)
def test_a_named_column_in_the_first_line_makes_it_a_header(
    names: list[str], cells: list[str], place: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("named") / "a.tsv"
    lines = [names, cells[: len(names)]]
    write(path, "".join("\t".join(line) + "\n" for line in lines))
    name = names[place % len(names)]
    for table in (rows(path, named=[name]), rows(path)):
        table.expect([name])
        assert table.columns == names
        assert table.rows == [dict(zip(names, cells, strict=False))]
        assert table.lines == [2]
        assert "named by the first line" in table.said
        assert not table.unnamed
    for column in ("1", "none such"):  # a column's number, or a name of none
        table = rows(path, named=[column])
        table.expect([column])
        named = not COLUMN_NAMES.isdisjoint(names)
        assert table.rows[0] == dict(zip(table.columns, lines[named], strict=True))
    denied = rows(path, header=False, named=[name])
    denied.expect([name])
    assert len(denied.rows) == 2


def test_a_column_named_by_its_number_names_no_header(tmp_path: Path) -> None:
    path = write(tmp_path / "cola.tsv", "gj04\t1\t\tA day.\ngj04\t0\t*\tA the.\n")
    assert len(rows(path, named=["4", "1", "2"]).rows) == 2


@pytest.mark.parametrize(
    "content",
    [
        # numbers, or true and false, below a name
        "body,stars\nA fine film,5\nDull,1\nNo,3\n",
        "How was it today?,liked\nA fine film,True\nDull,False\nNo,True\n",
        "stars,Отзыв\n4.5,Да\n1,Нет\n-2e1,Да\n",
        # names above texts and their labels
        "body,topic\nA fine film it is,film\nRain all day long,weather\nA dull film,film\n",
        ",body,topic\n0,A fine film it is,film\n1,Rain all day,weather\n2,A dull film,film\n",
        # a usual name beside the index of pandas
        ",text,label\n0,Fine,film\n",
    ],
)
def test_a_header_is_told_by_what_stands_below_it(tmp_path: Path, content: str) -> None:
    table = rows(write(tmp_path / "a.csv", content))
    assert table.columns == content.partition("\n")[0].split(",")
    assert table.lines[0] == 2
    assert "named by the first line" in table.said
    assert rows(tmp_path / "a.csv", header=False).lines[0] == 1


@pytest.mark.parametrize(
    "content",
    [
        # two rows below tell nothing
        "body|stars\nA fine film|5\nDull|1\n",
        # of the first row a number is missing, or there is one
        "A fine film|n/a\nDull|1\nNo|3\nYes|2\n",
        "A fine film|NaN\nDull|1\nNo|3\nYes|2\n",
        "A fine film|\nDull|1\nNo|3\nYes|2\n",
        "A fine film|true\nDull|false\nNo|true\nYes|true\n",
        # one row has no number
        "A fine film|good\nDull|1\nNo|3\nYes|bad\n",
        # CoLA: the mark of the author's judgment
        "gj04|1||Our friends won't buy it\ngj04|0|*|The more we do\ncj99|1||He saw it there\n"
        "cj99|0|*|She it saw there\n",
        # the first text has several words, or a sentence's end
        "great|I loved it\nbad|I hated it all\nbad|No good at all\nbad|Not a fine film\n",
        "great|Wow!\nbad|I hated it all the time\nbad|No good at all\nbad|Not a fine film\n",
        "great|Wow.\nbad|I hated it all the time\nbad|No good at all\nbad|Not a fine film\n",
        # the first label comes again
        "great|Wow\nbad|I hated it all the time\nbad|No good at all\ngreat|A very fine film\n",
        # other labels come once as well, or both columns are texts
        "greet|Hello\nbook|A table for two please\npay|The bill now please\nleave|I go home now\n",
        "Hello|Hallo\nHow are you now|Wie geht es dir\nI go home now|Ich gehe nach Hause\n"
        "How are you now|Wie geht es dir\n",
        # a label that is also the usual name of a column, or a text that is
        "great movie|positive\nbad movie|negative\nfine movie|positive\ndull movie|negative\n",
        "where is my order|question\nthank you|thanks\nwho are you|question\nhello|greeting\n",
        # other texts are words as well
        "fruit|apple\nanimal|dog\nanimal|cat\nanimal|cow\n",
    ],
)
def test_no_header_is_read_where_there_is_none(tmp_path: Path, content: str) -> None:
    table = rows(write(tmp_path / "a.tsv", content.replace("|", "\t")))
    assert table.columns == [str(i + 1) for i in range(len(table.columns))]
    assert table.lines[0] == 1
    assert "no header line" in table.said
    assert table.unnamed


def test_a_row_of_empty_cells_is_a_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tpair\nA\tB\n\t\n\n \nC\tD\n")
    assert [row["text"] for row in rows(path).rows] == ["A", "", "C"]
    assert rows(path).lines == [2, 3, 6]


def test_no_header_is_read_among_labels_and_texts_cut_at_a_space(tmp_path: Path) -> None:
    content = "".join(f"{x} {y}\n" for x, y in (("HUM:ind", "Who was it ?"), ("ABBR", "Why ?")) * 3)
    assert len(rows(write(tmp_path / "trec.txt", content), separator="space").rows) == 6


def test_a_named_column_without_a_header_is_answered_with_what_helps(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "A fine day\tx\n")
    said = r"no column 'body'; no header line was seen; say header= if the first line names the "
    with pytest.raises(DataError, match=said + r"columns \(columns: 1, 2\)"):
        choose_columns(rows(path), text="body")
    with pytest.raises(DataError, match="no column 'body'; known: '1', '2'"):
        choose_columns(rows(path, header=False), text="body")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "text\tlabel\nA\t0\nB\n", r"a\.tsv:3: expected 2 columns .* found 1"),
        ("a.csv", 'text,label\n"A\nB",0\nC,1,2\n', r"a\.csv:4: expected 2 columns .* found 3"),
        ("a.csv", 'text,label\nA,0\n"B,1\nC,1\n', r"a\.csv:3: not CSV"),
        ("a.tsv", "text\ttext\nA\tB\n", r"a\.tsv:1: two columns|a\.tsv: no header"),
        ("a.tsv", "text\tlabel\n", r"a\.tsv: only a header line"),
        ("a.tsv", "\n", r"a\.tsv: the file is empty"),
        (
            "a.jsonl",
            '{"text": "A", "label": 0}\n{"text": "B", "lable": 1}\n',
            r"2: no field 'label'.*'lable'",
        ),
        ("a.jsonl", '{"text": "A"}\nB\n', r"a\.jsonl:2: not JSON"),
        ("a.xlsx", "A", r"a\.xlsx: rows are read from"),
        ("a.tsv", b"A\t\xff\n", r"a\.tsv:1: not UTF-8"),
    ],
)
def test_unusable_rows_are_named_with_their_place(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        rows(write(tmp_path / name, content), header=True if "text\ttext" in str(content) else None)


def test_a_missing_labelled_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.tsv: no such file"):
        rows(tmp_path / "gone.tsv")


def test_public_data_sets_are_read_whole(data_folder: Path) -> None:
    for name, columns, count in (
        ("cola/in_domain_train.tsv", ["1", "2", "3", "4"], 8551),
        ("ag_news/dev.tsv", ["1", "2"], 1001),
        ("trecqa/dev.csv", ["qtext", "label", "atext"], 1148),
        ("wic/dev.jsonl", None, 400),
    ):
        table = rows(data_folder / name)
        assert len(table.rows) == count
        assert columns is None or table.columns == columns
