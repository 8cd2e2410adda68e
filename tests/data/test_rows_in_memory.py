"""In-memory rows are read like files, and errors use Python names."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.rows_in_memory import are_examples, is_rows, name_of, rows_of, texts_of
from bertkit.errors import BertkitError, DataError
from bertkit.tasks.choose import Choose
from bertkit.tasks.classify import Classify
from bertkit.tasks.examples import read_examples, take
from bertkit.tasks.labeled_text import LabelExample
from bertkit.tasks.similarity import Similarity
from bertkit.tasks.tag import Tag
from bertkit.tasks.task import Reading

TEXTS, LABELS = ["a fine film it is", "a dull film it is", "fine and dull"], ["good", "bad", "good"]


def as_pandas() -> Any:
    return pytest.importorskip("pandas").DataFrame(
        {"id": [7, 8, 9], "text": TEXTS, "label": LABELS}
    )


def as_arrow() -> Any:
    return pytest.importorskip("pyarrow").table({"text": TEXTS, "label": LABELS})


class Dataset(list[dict[str, Any]]):
    """Rows like those of `datasets`; a class has a name and a number."""

    class Label:
        def int2str(self, number: int) -> str:
            return ("bad", "good")[number]

    features: ClassVar = {"text": None, "label": Label()}
    column_names = ("text", "label")


KINDS: dict[str, Callable[[], Any]] = {
    "pandas": as_pandas,
    "polars": lambda: pytest.importorskip("polars").DataFrame({"text": TEXTS, "label": LABELS}),
    "pyarrow": as_arrow,
    "dicts": lambda: [{"text": t, "label": y} for t, y in zip(TEXTS, LABELS, strict=True)],
    "tuples": lambda: list(zip(TEXTS, LABELS, strict=True)),
    "lists": lambda: [[t, y] for t, y in zip(TEXTS, LABELS, strict=True)],
    "columns": lambda: {"text": TEXTS, "label": np.array(LABELS)},
}


def first_row(kind: str) -> str:
    return "train.iloc[0]" if kind == "pandas" else "train[0]"


@pytest.mark.parametrize("kind", KINDS)
def test_in_memory_rows_equal_file_rows(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_taken = take(Classify, KINDS[kind](), None, "train")
    message = capsys.readouterr().err
    assert "3 rows; text = 'text', label = 'label'" in message
    assert "/" not in message
    assert rows_taken.examples[0].where == first_row(kind)
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": t, "label": y}) for t, y in zip(TEXTS, LABELS, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    from_file = read_examples(Classify, path)
    assert [(e.text, e.label) for e in rows_taken.examples] == [
        (e.text, e.label) for e in from_file
    ]


def test_parquet_file_is_accepted(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "rows.parquet"
    parquet.write_table(as_arrow(), path)
    rows_taken = take(Classify, path, None, "train")
    assert rows_taken.file == str(path)
    assert [e.label for e in rows_taken.examples] == LABELS
    assert rows_taken.examples[2].where == f"{path}[2]"
    assert list(texts_of(path, None, "texts")) == TEXTS
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"rows\.parquet: invalid \.parquet file"):
        take(Classify, path, None, "train")
    with pytest.raises(DataError, match=r"none\.parquet: no such file"):
        take(Classify, str(tmp_path / "none.parquet"), None, "train")


def test_hash_depends_only_on_row_contents() -> None:
    hashes = {take(Classify, KINDS[kind](), None, "train").sha256 for kind in ("dicts", "tuples")}
    assert len(hashes) == 1
    other = [*zip(TEXTS, ["good", "bad", "bad"], strict=True)]
    assert take(Classify, other, None, "train").sha256 not in hashes


def test_task_examples_are_kept_unchanged() -> None:
    examples = [LabelExample("a film", None, "good")]
    assert are_examples(examples)
    assert not are_examples(TEXTS)
    assert take(Classify, examples, None, "train").examples == examples


def test_labels_can_be_numbers_or_lists() -> None:
    numbers = take(Classify, [("a film", np.int64(1)), ("b film", 0)], None, "train").examples
    assert [e.label for e in numbers] == ["1", "0"]
    several = {"text": TEXTS[:2], "label": [["x", "y"], np.array(["y"])]}
    task = Classify.from_examples(
        take(Classify, several, None, "train").examples, Classify.Options()
    )
    assert task.options.multi_label
    assert task.labels == ("x", "y")


def test_similarity_and_tag_accept_rows() -> None:
    pairs = take(Similarity, [("one film", "a film", 4.5), ("one", "two", 0.5)], None, "dev")
    assert len(pairs.examples) == 2
    text = "Ada lived in London."
    spans = [{"start": 0, "end": 3, "label": "PER"}, {"start": 13, "end": 19, "label": "LOC"}]
    (tagged,) = take(Tag, [{"text": text, "entities": spans}], None, "train").examples
    assert tagged.where == "train[0]"


@pytest.mark.parametrize(
    ("rows", "reading", "message"),
    [({"text": ["a", " "], "label": ["x", "y"]}, None, r"^train\[1\]: the text is empty"),
     ([("a", "x"), ("b", None)], None, r"^train\[1\]: no label; add a label"),
     ([("a", "x"), ("b", math.nan)], None, r"^train\[1\]: no label; add a label"),
     ([("a", "x"), ("b",)], None, r"^train\[1\]: expected 2 items as in train\[0\], got 1 item"),
     ([{"text": "a", "label": "x"}, ("b", "y")], None,
      r"^train\[1\]: expected a dict .*, got 2 items"),
     ([("a", "b", "c", "d")], None, r"^train\[0\]: got 4 items; pass \(text, label\)"),
     ([{"text": "a", "label": "x"}, {"text": "b"}], None, r"^train\[1\]: no field 'label'"),
     ([1, 2], None, r"^train\[0\]: unsupported row an int; pass a DataFrame"),
     (7, None, r"^train: unsupported type int; pass a DataFrame"),
     (["a b c", "d e f"], None,
      r"^train: .* known name for the label; set label_column= \(columns: text\)$"),
     ({"text": 1}, None, "^train: column 'text' must be a list, got an int"),
     ({"text": ["a"], "label": ["x", "y"]}, None, "different lengths .*'text' 1, 'label' 2"),
     ({"text": [], "label": []}, None, "^train: no rows"), ([], None, "^train: no rows"),
     ({"text": ["a b"], "label": [object()]}, None, "^train.0.: column 'label' contains object"),
     ({"text": ["a \ud800"], "label": ["x"]}, None, r"^train\[0\]: lone surrogate"),
     ({"text": ["a b"], "label": ["x"]}, Reading(text_column="body"), "^train: no column 'body'"),
     ({k: ["a b c"] for k in "pqr"}, None,
      r"^train: .* for the text and the label; set text_column= and label_column= "),
     ({"train": Dataset()}, None,
      r"^train is a dict of tables; pass one of them, such as train\['train'\]")],
)  # fmt: skip
def test_errors_use_python_names(rows: Any, reading: Reading | None, message: str) -> None:
    with pytest.raises(BertkitError, match=message) as error:
        take(Classify, rows, reading, "train")
    assert "--" not in str(error.value)
    assert "/tmp" not in str(error.value)


def test_whole_floats_and_dates_keep_their_form() -> None:
    rows = {"text": ["a b", "c d"], "label": [1.0, 2.0], "when": [date(2026, 1, 2), Decimal("1.5")]}
    examples = take(
        Classify, rows, Reading(text_column="text", label_column="label"), "train"
    ).examples
    assert [e.label for e in examples] == ["1.0", "2.0"]
    halves = take(Classify, [("a", 1.5), ("b", 2.0)], None, "train").examples
    assert [e.label for e in halves] == ["1.5", "2.0"]


@pytest.mark.parametrize(
    "labels", [[True, False, True], [0.0, 1.0, 1.0], [1, 0, 1], [0.5, 2.0, -1e20], ["a", "b", "a"]]
)
def test_data_frame_equals_its_csv_file(labels: list[Any], tmp_path: Path) -> None:
    table = pytest.importorskip("pandas").DataFrame({"text": TEXTS, "label": labels})
    table.to_csv(tmp_path / "rows.csv", index=False)
    table.to_csv(tmp_path / "numbered.csv")
    from_file = [e.label for e in read_examples(Classify, tmp_path / "rows.csv")]
    assert [e.label for e in read_examples(Classify, tmp_path / "numbered.csv")] == from_file
    tuples = list(zip(table["text"], table["label"], strict=True))
    for rows in (table, tuples, table.to_dict("list"), table.to_dict("records")):
        assert [e.label for e in take(Classify, rows, None, "train").examples] == from_file


@pytest.mark.parametrize("kind", ["dicts", "parquet"])
def test_labels_do_not_depend_on_other_columns(kind: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {
        "text": ["a b c", "d e f", "g h i", "j k l"],
        "label": [True, False, True, False],
        "tags": [None, None, ["x"], None],
    }
    table: Any = pyarrow.table(columns)
    rows: Any = table.to_pylist()
    if kind == "parquet":
        rows = tmp_path / "rows.parquet"
        parquet.write_table(table, rows)
    examples = take(Classify, rows, None, "train").examples
    assert [example.label for example in examples] == ["True", "False", "True", "False"]


def test_float_answers_of_choose_are_indices() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"context": ["a b"], "choices": [["x", "y"]], "label": [1.0]})
    (question,) = take(Choose, table, None, "train").examples
    assert question.answer == 1


def test_take_rejects_tuples_of_columns() -> None:
    table = as_pandas()
    columns: list[tuple[Any, str]] = [
        ((table["text"], table["label"]), "tuple"),
        ([table["text"], table["label"]], "list"),
        ((table["text"].tolist() * 2, table["label"].tolist() * 2), "tuple"),
        ((np.array(TEXTS * 2), np.array(LABELS * 2)), "tuple"),
    ]
    for rows, kind in columns:
        message = rf"^train: expected rows, got a {kind} of columns; pass a DataFrame, or list"
        with pytest.raises(DataError, match=message):
            take(Classify, rows, None, "train")
    assert len(take(Classify, (["a film", "x"], ["b film", "y"]), None, "train").examples) == 2
    with pytest.raises(DataError, match=r"^train: no column has a known name for the label"):
        take(Classify, table["text"], None, "train")


def test_take_rejects_duplicate_column_names() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame([["a", "b", "x"]], columns=["text", "text", "label"])
    with pytest.raises(DataError, match=r"^train: two columns are called 'text'; rename one"):
        take(Classify, table, None, "train")


@pytest.mark.parametrize(
    ("items", "rows"),
    [(Dataset(), True), ({"text": TEXTS}, True), ([{"text": "a"}], True), (np.array(TEXTS), True),
     (Path("a.csv"), True), (TEXTS, False), ([("a", "b")], False), ("a text", False),
     (iter(TEXTS), False), ([], False)],
)  # fmt: skip
def test_is_rows_recognizes_tables(items: Any, rows: bool) -> None:
    assert is_rows(items) == rows


def test_texts_of_returns_the_text_column(tmp_path: Path) -> None:
    assert list(texts_of(np.array(TEXTS), None, "texts")) == TEXTS
    assert list(texts_of({"n": [1, 2, 3], "text": TEXTS}, None, "texts")) == TEXTS
    assert list(texts_of({"one": TEXTS, "two": TEXTS}, "two", "texts")) == TEXTS
    path = tmp_path / "texts.csv"
    path.write_text("id,text\n1,a film\n2,\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"texts\.csv:3: the text is empty; remove the row"):
        texts_of(path, None, "texts")
    with pytest.raises(DataError, match=r"^texts\[1\]: the text is empty"):
        texts_of(np.array(["a", ""]), None, "texts")
    with pytest.raises(
        DataError, match=r"^texts: no column has a known name for the text; set text_col"
    ):
        texts_of({"one": TEXTS, "two": TEXTS}, None, "texts")


def test_missing_pandas_labels_are_rejected() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": ["a", "b"], "label": pandas.array([1, None], dtype="Int64")})
    with pytest.raises(DataError, match=r"^train\.iloc\[1\]: no label"):
        take(Classify, table, None, "train")


def test_dataset_class_labels_convert_to_names() -> None:
    rows = Dataset({"text": text, "label": y} for text, y in zip(TEXTS, (1, 0, 1), strict=True))
    assert [e.label for e in take(Classify, rows, None, "train").examples] == LABELS
    rows.append({"text": "a test", "label": -1})
    with pytest.raises(DataError, match=r"^train\[3\]: no label"):
        take(Classify, rows, None, "train")


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a", "b"]),
            st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.none(),
            min_size=1,
        ),
        min_size=1,
    )
)
def test_records_are_unchanged(rows: list[dict[str, Any]]) -> None:
    table = rows_of(rows, "rows")
    assert [record for _, record in table.records()] == rows
    assert [where for where, _ in table.records()] == [f"rows[{i}]" for i in range(len(rows))]


MILLION = """
import resource, pandas
from bertkit.tasks.classify import Classify
from bertkit.tasks.examples import take
table = pandas.DataFrame({"text": ["a film"] * 10**6, "label": ["good", "bad"] * 500_000})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert len(take(Classify, table, None, "train").examples) == 10**6
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_rows_need_at_most_one_kilobyte_each() -> None:
    pytest.importorskip("pandas")
    done = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, check=True)
    # The unit is kilobytes: 1 KB per row.
    assert int(done.stdout) < 1_000_000


def test_name_of_returns_the_table_name() -> None:
    class Published(Dataset):
        info = SimpleNamespace(dataset_name="imdb", config_name="plain_text")
        split = "train"

    published = Published([{"text": "a", "label": 1}])
    assert name_of(published) == "imdb plain_text train"
    published.info = SimpleNamespace(dataset_name="imdb", config_name="default")
    assert name_of(published) == "imdb train"
    assert name_of(as_pandas()) == "pandas DataFrame"
    assert name_of([("a", "b")]) is None
    assert name_of({"text": TEXTS, "label": LABELS}) is None
    rows = take(Classify, as_pandas(), None, "train")
    assert rows.record["name"] == "pandas DataFrame"
    assert "name" not in take(Classify, KINDS["dicts"](), None, "train").record
