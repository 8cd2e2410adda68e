"""Labeled files: values as written, and positions of unusable rows."""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.document_readers import STDIN
from bertkit.data.row_readers import Rows
from bertkit.errors import DataError


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def values(rows: Rows) -> list[dict[str, Any]]:
    return [record for _, record in rows.records()]


def use(path: Path) -> None:
    table = Rows.read(path)
    table.check_lengths()
    table.texts("label")


def test_tsv_keeps_quotes_and_csv_removes_them(tmp_path: Path) -> None:
    tsv = Rows.read(
        write(tmp_path / "a.tsv", 'sentence\tlabel\r\nHe said "no, never\t0\r\nB\t1\r\n')
    )
    assert values(tsv)[0] == {"sentence": 'He said "no, never', "label": "0"}
    assert tsv.lines == [2, 3]
    csv = Rows.read(write(tmp_path / "a.csv", '\ufefftext,label\n"A ""b"",\nc",0\n\nD,1\n'))
    assert csv.columns == ["text", "label"]
    assert values(csv) == [{"text": 'A "b",\nc', "label": "0"}, {"text": "D", "label": "1"}]
    assert csv.lines == [2, 5]


def test_text_file_with_tabs_is_a_table(tmp_path: Path) -> None:
    table = Rows.read(write(tmp_path / "msr.txt", "\ufeffQuality\t#1 String\t#2 String\n1\tA\tB\n"))
    assert values(table) == [{"Quality": "1", "#1 String": "A", "#2 String": "B"}]
    write(tmp_path / "trec.txt", "DESC:manner How did it end ?\nHUM:ind Who ?\n")
    table = Rows.read(tmp_path / "trec.txt", separator="space", header=False)
    assert values(table)[0] == {"1": "DESC:manner", "2": "How did it end ?"}


def test_separator_option_accepts_any_character(tmp_path: Path) -> None:
    table = Rows.read(write(tmp_path / "a.csv", 'text;label\n"A; b";0\n'), separator=";")
    assert values(table) == [{"text": "A; b", "label": "0"}]
    path = write(tmp_path / "b.tsv", "A|0\n")
    assert values(Rows.read(path, separator="|", header=False)) == [{"1": "A", "2": "0"}]
    path = write(tmp_path / "c.csv", "text\tlabel\nA, b\t0,5\n")
    assert values(Rows.read(path, separator="tab")) == [{"text": "A, b", "label": "0,5"}]
    with pytest.raises(
        DataError, match="separator must be one character, tab or space, got 'comma'"
    ):
        Rows.read(path, separator="comma")


@pytest.mark.parametrize("name", ["a.all", "reviews.test", "data", "a.dat.gz"])
def test_separator_option_accepts_any_suffix(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, "gut Das Essen war sehr lecker\n")
    found = Rows.read(path, separator="space", header=False)
    assert values(found) == [{"1": "gut", "2": "Das Essen war sehr lecker"}]
    with pytest.raises(DataError, match="or set separator= for a text file with another suffix"):
        Rows.read(path)


@pytest.mark.parametrize(
    ("names", "row"),
    [
        (("评论", "情感"), ("菜的味道真的很好", "正面")),
        (("本文", "分類"), ("料理がとても美味しかった", "エンターテインメント")),
        (("ข้อความ", "ความรู้สึก"), ("อาหารร้านนี้อร่อยมากจริงๆ", "เชิงบวก")),
        (("리뷰", "감정"), ("음식이 정말 아주 맛있었어요", "긍정")),
        (("समीक्षा", "भावना"), ("यहाँ का खाना बहुत अच्छा था", "सकारात्मक")),
    ],
)
def test_names_and_values_can_be_in_any_script(
    names: tuple[str, str], row: tuple[str, str], tmp_path: Path
) -> None:
    for name, separator in (("a.tsv", "\t"), ("a.csv", ",")):
        path = write(tmp_path / name, f"{separator.join(names)}\n{separator.join(row)}\n")
        assert values(Rows.read(path)) == [dict(zip(names, row, strict=True))]


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [("a.csv", "text;label", "no comma but a semicolon; set separator=';' if the semicolon"),
     ("a.csv", "text\tlabel", 'no comma but a tab; set separator="tab" if the tab separates'),
     ("a.tsv", "text,label",
      "no tab but a comma; set separator=',' if the comma separates the columns")],
)  # fmt: skip
def test_read_rejects_other_separators_by_default(
    tmp_path: Path, name: str, line: str, message: str
) -> None:
    path = write(tmp_path / name, f"{line}\nA; b, c\t0,5\n")
    with pytest.raises(DataError, match=rf"{name}: the header line contains {message}"):
        Rows.read(path)
    assert len(Rows.read(path, header=False, separator="|")) == 2


def test_csv_with_one_column_is_accepted(tmp_path: Path) -> None:
    table = Rows.read(write(tmp_path / "c.csv", "text\nA; b\nC\n"))
    assert table.texts("text") == ["A; b", "C"]


@pytest.mark.parametrize(
    "text", ['{"text": "A", "label": "0"}', "text\tlabel\nA\t0", "text,label\nA,0"]
)
def test_stdin_format_is_detected_from_first_line(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    # Standard input can be read again.
    for _ in range(2):
        table = Rows.read(STDIN)
        assert values(table) == [{"text": "A", "label": "0"}]


def test_stdin_rejects_invalid_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, message in (
        (b"", "stdin: the file is empty"),
        (b"text\n\xff\n", "stdin:2: not UTF-8"),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        with pytest.raises(DataError, match=message):
            Rows.read(STDIN)


def test_row_lengths_may_differ_after_used_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "sts.tsv", "a\tb\t5.0\tx\ty\nc\td\t1.0\te\tf\tno one\nq\tr\t2.0\n")
    with pytest.raises(DataError, match=r"sts.tsv:2: expected 5 columns"):
        Rows.read(path, header=False).check_lengths()
    table = Rows.read(path, header=False)
    table.check_lengths("1", "3")
    assert table.texts("3") == ["5.0", "1.0", "2.0"]
    assert table.texts("5")[2] == ""
    with pytest.raises(DataError, match=r"sts.tsv:3: expected 5 columns as .* got 3"):
        table.check_lengths("1", "4")


def test_longer_csv_rows_are_rejected_if_columns_are_set(tmp_path: Path) -> None:
    """A comma without quotation marks moves the other values to wrong columns."""
    table = Rows.read(write(tmp_path / "a.csv", "text,label\nyes, fine,good\nno,bad\n"))
    with pytest.raises(DataError, match=r"a.csv:2: expected 2 columns as .* got 3"):
        table.check_lengths("text", "label")


@pytest.mark.parametrize(
    ("name", "cell", "remedy"),
    [
        ("a.tsv", '"a ""b"" c"', "name the file .csv and set --separator tab"),
        ("a.tsv", '"""b"" c"', "name the file .csv and set --separator tab"),
        ("a.csv", ' "b"', "remove the space before them"),
        ("a.tsv", '"a" and "b"', None),
        ("a.tsv", '""', None),
        ("a.csv", '"a ""b"" c"', None),
        ("a.csv", ' b "c" d', None),
    ],
)
def test_quotation_marks_of_another_format_are_reported(
    name: str, cell: str, remedy: str | None, tmp_path: Path
) -> None:
    separator = "," if name == "a.csv" else "\t"
    rows = [["label", "text"], ["x", "plain"], ["y", cell]]
    table = Rows.read(write(tmp_path / name, "\n".join(map(separator.join, rows))))
    message = f"warning: line 3 has quotation marks around a value, .*; {remedy}"
    assert bool(re.search(message, table.summary)) == (remedy is not None)
    assert ("warning" in table.summary) == (remedy is not None)


def test_csv_cell_can_contain_a_document(tmp_path: Path) -> None:
    text = "word " * 40_000
    table = Rows.read(write(tmp_path / "a.csv", f'text,label\n"{text}",1\n'))
    assert table.texts("text") == [text]


def test_jsonl_values_convert_to_text(tmp_path: Path) -> None:
    line = '{"text": "A", "label": 1, "x": 0.5, "y": true, "z": null, "l": ["ä"]}\n'
    table = Rows.read(write(tmp_path / "a.jsonl.gz", line))
    texts = [table.texts(column)[0] for column in table.columns]
    assert texts == ["A", "1", "0.5", "True", "", '["ä"]']
    assert values(table) == [json.loads(line)]


def test_summary_warns_of_repeated_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\na\tx\ntext\tlabel\nb\ty\n")
    table = Rows.read(path)
    assert "warning: line 3 repeats the header line; remove this line" in table.summary
    assert len(table) == 3
    assert "warning" not in Rows.read(write(tmp_path / "b.tsv", "text\tlabel\na\tx\n")).summary


def test_first_line_is_header_by_default(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "ham\tOk lar...\nspam\tWin a prize\n")
    table = Rows.read(path)
    assert (table.columns, table.lines, table.header) == (["ham", "Ok lar..."], [2], True)
    assert table.summary == f"{path}: columns ham, Ok lar..."
    table = Rows.read(path, header=False)
    assert (table.columns, table.lines, table.header) == (["1", "2"], [1, 2], False)
    assert table.summary == f"{path}: columns 1, 2 (no header line)"


CELLS = st.text("abc1. ", min_size=1, max_size=9).map(str.strip).filter(bool)


@given(cells=st.lists(st.lists(CELLS, min_size=3, max_size=3, unique=True), min_size=2))
def test_rows_do_not_depend_on_values(
    cells: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cells") / "a.tsv"
    write(path, "".join("\t".join(line) + "\n" for line in cells))
    assert [list(row.values()) for row in values(Rows.read(path))] == cells[1:]
    assert Rows.read(path).columns == cells[0]
    assert [list(row.values()) for row in values(Rows.read(path, header=False))] == cells


def test_rows_of_empty_cells_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tpair\nA\tB\n\t\n\n \nC\tD\n")
    assert Rows.read(path).texts("text") == ["A", "", "C"]
    assert Rows.read(path).lines == [2, 3, 6]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("a.tsv", "text\tlabel\nA\t0\nB\n", r"a\.tsv:3: expected 2 columns .* got 1"),
     ("a.csv", 'text,label\n"A\nB",0\nC,1,2\n', r"a\.csv:4: expected 2 columns .* got 3"),
     ("a.csv", 'text,label\nA,0\n"B,1\nC,1\n', r"a\.csv:3: invalid CSV"),
     ("a.tsv", "text\ttext\nA\tB\n", r"a\.tsv:1: two columns have the same name"),
     ("a.tsv", "text\tlabel\n", r"a\.tsv: only a header line"),
     ("a.tsv", "\n", r"a\.tsv: the file is empty"),
     ("a.jsonl", '{"text": "A", "label": 0}\n{"text": "B", "lable": 1}\n',
      r"2: no field 'label'.*'lable'"),
     ("a.jsonl", '{"text": "A"}\nB\n', r"a\.jsonl:2: invalid JSON"),
     ("a.xlsx", "A", r"a\.xlsx: unsupported file type"),
     ("a.tsv", b"A\t\xff\n", r"a\.tsv:1: not UTF-8")],
)  # fmt: skip
def test_read_reports_position_of_unusable_rows(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        use(write(tmp_path / name, content))


def test_read_rejects_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.tsv: no such file"):
        Rows.read(tmp_path / "gone.tsv")


def test_public_data_sets_are_read_completely(data_folder: Path) -> None:
    for name, header, columns, count in (
        ("cola/in_domain_train.tsv", False, ["1", "2", "3", "4"], 8551),
        ("ag_news/dev.tsv", False, ["1", "2"], 1001),
        ("trecqa/dev.csv", True, ["qtext", "label", "atext"], 1148),
        ("wic/dev.jsonl", True, None, 400),
    ):
        table = Rows.read(data_folder / name, header=header)
        assert len(table) == count
        assert columns is None or table.columns == columns
