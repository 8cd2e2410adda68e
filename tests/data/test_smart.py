"""Collections as Cranfield and CISI are published."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.data.documents import Columns, documents
from bertkit.data.judgments import read_judgments, read_queries
from bertkit.data.smart import is_smart
from bertkit.errors import DataError

DOCUMENTS = """.I 1
.T
wings in a
slipstream .
.A
brenckman,m.
.B
j. ae. scs. 25, 1958, 324.
.W
an experimental study .
  it was made
.I 2
.T
.W
.I 3
.W
no title here .
.X
1\t5\t3
"""

QUERIES = """.I 001
.W
what lifts
a wing .
.I 004
.W
why ?
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_documents_have_their_fields_and_those_without_text_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "cran.all.1400", DOCUMENTS)
    first, third = documents([path], Columns(keep=("author",)))
    assert (first.id, third.id) == ("1", "3")
    assert first.text == "wings in a slipstream .\nan experimental study . it was made"
    assert first.fields == {"author": "brenckman,m."}
    assert first.where == f"{path}:1"
    assert third.text == "no title here ."


def test_queries_are_numbered_by_their_places(tmp_path: Path) -> None:
    assert read_queries(write(tmp_path / "cran.qry", QUERIES)) == {
        "1": "what lifts a wing .",
        "2": "why ?",
    }
    with pytest.raises(DataError, match=r"cran.qry:9: the query is empty"):
        read_queries(write(tmp_path / "cran.qry", QUERIES + "\n.I 5\n.W\n"))


def test_judgments_of_cisi_are_pairs(tmp_path: Path) -> None:
    text = "     1     28\t0\t0.000000\n     1     35\t0\t0.000000\n     2     29\t0\t0.000000\n"
    assert read_judgments(write(tmp_path / "CISI.REL", text)) == {
        "1": {"28": 1, "35": 1},
        "2": {"29": 1},
    }


def test_grades_of_which_the_best_is_1_count_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "cranqrel", "1 184 2 \n1 12 1 \n1 486 -1\n")
    assert read_judgments(path, graded=False) == {"1": {"184": 1, "12": 1, "486": 0}}
    assert read_judgments(path) == {"1": {"184": 2, "12": 1, "486": -1}}


def test_other_files_are_none(tmp_path: Path) -> None:
    assert not is_smart(write(tmp_path / "a.txt", "I. One\n.I 1\n"))
    assert not is_smart(tmp_path)
    (tmp_path / "b").write_bytes(b"\xff\xfe.I 1\n")
    assert not is_smart(tmp_path / "b")


def test_cranfield_as_it_is(data_folder: Path) -> None:
    folder = data_folder / "cranfield"
    found = list(documents([folder / "cran.all.1400"], Columns()))
    assert len(found) == 1398
    queries = read_queries(folder / "cran.qry")
    assert len(queries) == 225
    judged = read_judgments(folder / "cranqrel", graded=False)
    assert judged.keys() == queries.keys()
    assert sum(g > 0 for grades in judged.values() for g in grades.values()) == 1612
