"""Word vector files: loading, saving, nearest neighbors, and tokens."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from bertkit.errors import DataError, StorageError
from bertkit.extensions.classic import word_vectors as vectors
from bertkit.extensions.classic.word_vectors import Vectors, tokens

GLOVE = "the 0.5 -1 2\n, 1e-3 0 0\nzoo -0.25 1 1\n"


def write_file(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz", "v.vec"])
@pytest.mark.parametrize("start", ["", "3 3\n", "\ufeff", "\ufeff3 3\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
def test_load_reads_formats_with_and_without_header(
    tmp_path: Path, name: str, start: str, end: str
) -> None:
    content = (start + GLOVE).replace("\n", end)
    for text in (content, content.removesuffix(end)):
        found = Vectors.load(write_file(tmp_path / name, text))
        assert found.words == ["the", ",", "zoo"]
        assert found.table.dtype == np.float32
        expected = np.float32([[0.5, -1, 2], [1e-3, 0, 0], [-0.25, 1, 1]])
        np.testing.assert_array_equal(found.table, expected)
        assert found.repeated == 0


def test_load_reads_words_with_spaces_and_digits(tmp_path: Path) -> None:
    rows = ". . . 1 2\nat name@domain.com 3 4\n1995 5 6\nNaN 7 8\n\u00a0 9 10\n"
    found = Vectors.load(write_file(tmp_path / "v.txt", rows))
    assert found.words == [". . .", "at name@domain.com", "1995", "NaN", "\u00a0"]
    assert found.table[:, 0].tolist() == [1, 3, 5, 7, 9]
    first = Vectors.load(write_file(tmp_path / "v.txt", "1995 5 6\n. . . 1 2\n"))
    assert first.words == ["1995", ". . ."]


def test_load_keeps_first_row_of_repeated_word(tmp_path: Path) -> None:
    found = Vectors.load(write_file(tmp_path / "v.txt", "4 1\na 1\nb 2\na 3\nb 4\n"))
    assert (found.words, found.table.tolist(), found.repeated) == (["a", "b"], [[1], [2]], 2)


def test_load_is_independent_of_block_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"wörd{i % 90} {i} {i / 7:.5f}\n" for i in range(100))
    path = write_file(tmp_path / "v.txt", rows)
    expected = Vectors.load(path)
    for size in (1, 7, 64, 1000):
        monkeypatch.setattr(vectors, "READ_BYTES", size)
        found = Vectors.load(path)
        assert found.words == expected.words
        np.testing.assert_array_equal(found.table, expected.table)
        assert found.repeated == expected.repeated == 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "v.txt: contains no rows"),
        ("3 2\n", "v.txt: contains no rows"),
        ("\n", "v.txt:1: expected a word and its values"),
        ("some prose\n", "v.txt:1: expected a word and its values"),
        ("a 1 2\nb 1\n", "v.txt:2: expected a word and 2 values, got 2 fields"),
        ("a 1 2\nb 1 2 3\n", "v.txt:2: expected a word and 2 values, got 4 fields"),
        ("a 1 2\n\nb 1 2\n", "v.txt:2: the line is empty"),
        ("a 1 2\n 1 2\n", "v.txt:2: expected a word and 2 values"),
        ("a 1 2\nb 1 x2\n", "v.txt:2: 'x2' is not a number"),
        ("a 1 2\nb  2\n", "v.txt:2: '' is not a number"),
        ("1 2\na 1 0,5\n", "v.txt:2: '0,5' is not a number"),
        ("a 1 2\nb nan 2\n", "v.txt:2: contains a value that is not finite"),
        ("a 1 2\nb 1 -inf\n", "v.txt:2: contains a value that is not finite"),
        ("a 1 2\nb 1 1e39\n", "v.txt:2: contains a value that is not finite"),
        (b"a 1 2\n\xff\xfe 1 2\n", "v.txt:2: not UTF-8"),
        (b"a 1 2\nb 1 \xff\n", "v.txt:2: .* is not a number"),
        ("3 2\na 1 2\nb 1 2\n", "v.txt:1: expected 3 rows, as in the header, but got 2"),
        ("1 2\na 1 2\nb 1 2\n", "v.txt:1: expected 1 rows, as in the header, but got 2"),
        ("9 999999999999\na 1 2\n", "v.txt:2: expected a word and 999999999999 values"),
    ],
)
@pytest.mark.parametrize("block", [8, 1 << 22])
def test_load_rejects_malformed_files(
    content: str | bytes, message: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "READ_BYTES", block)
    with pytest.raises(DataError, match=message):
        Vectors.load(write_file(tmp_path / "v.txt", content))


def test_load_rejects_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        Vectors.load(tmp_path / "none.txt")
    with pytest.raises(DataError, match="not a file"):
        Vectors.load(tmp_path)
    compressed = gzip.compress(GLOVE.encode())
    for damaged in (b"plain", compressed[:-12], compressed[:20] + b"\0\1\2" + compressed[23:]):
        (tmp_path / "v.gz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"v\.gz: cannot be read"):
            Vectors.load(tmp_path / "v.gz")


def test_load_rejects_too_long_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "READ_BYTES", 10)
    monkeypatch.setattr(vectors, "LONGEST_LINE", 100)
    with pytest.raises(DataError, match=r"v\.txt:2: the line is too long"):
        Vectors.load(write_file(tmp_path / "v.txt", "a 1\n" + "x" * 200))


WORD = st.text(min_size=1, max_size=8).filter(lambda w: "\n" not in w)
NUMBER = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def vectors_strategy(draw: st.DrawFn) -> Vectors:
    words = draw(st.lists(WORD, min_size=1, max_size=6, unique=True))
    width = draw(st.integers(1, 4))
    row = st.lists(NUMBER, min_size=width, max_size=width)
    table = draw(st.lists(row, min_size=len(words), max_size=len(words)))
    return Vectors(words, np.array(table, np.float32))


@settings(max_examples=30)  # Each example is synced to disk.
@given(original=vectors_strategy(), suffix=st.sampled_from([".txt", ".gz"]))
def test_save_and_load_keep_vectors(
    original: Vectors, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("round") / f"v{suffix}"
    try:
        original.save(path)
    except DataError:  # A word such as "a 1" cannot be distinguished from values.
        assert any(" " in word for word in original.words)
        assert not path.exists()
        return
    found = Vectors.load(path)
    assert found.words == original.words
    assert found.table.tobytes() == original.table.tobytes()


@pytest.mark.parametrize("word", ["", "a\nb", "a 1", "a nan", "x 1e5 y"])
def test_save_rejects_ambiguous_words(word: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be stored in a text file of vectors"):
        Vectors([word], np.ones((1, 2), np.float32)).save(tmp_path / "v.txt")
    assert list(tmp_path.iterdir()) == []


def test_save_is_deterministic(tmp_path: Path) -> None:
    original = Vectors(["a", "b"], np.eye(2, dtype=np.float32))
    original.save(tmp_path / "one.gz")
    original.save(tmp_path / "two.gz")
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()
    assert gzip.decompress((tmp_path / "one.gz").read_bytes()) == b"2 2\na 1 0\nb 0 1\n"


def test_save_reports_unwritable_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        Vectors(["a"], np.ones((1, 1), np.float32)).save(tmp_path / "file" / "v.txt")


def test_vectors_reject_table_of_other_size() -> None:
    with pytest.raises(ValueError, match="and 2 rows, got"):
        Vectors(["a", "b"], np.ones((3, 2), np.float32))


def test_row_prefers_exact_case() -> None:
    found = Vectors(["us", "US", "dog"], np.eye(3, dtype=np.float32))
    assert [found.row(w) for w in ("us", "US", "Us", "DOG", "cat")] == [0, 1, 0, 2, None]
    assert found["Dog"].tolist() == [0.0, 0.0, 1.0]
    assert len(found) == 3
    assert "DOG" in found
    assert "cat" not in found
    with pytest.raises(KeyError):
        found["cat"]


def test_nearest_uses_cosine_similarity() -> None:
    table = np.float32([[1, 0], [100, 0], [1, 1], [0, 5], [-2, 0], [0, 0]])
    found = Vectors(["a", "far", "half", "right", "back", "zero"], table)
    near = found.nearest("A", 5)
    assert [word for word, _ in near] == ["far", "half", "right", "zero", "back"]
    assert [score for _, score in near] == pytest.approx([1, 0.5**0.5, 0, 0, -1])
    assert found.nearest("a", 1) == near[:1]
    assert found.nearest("a", 0) == []
    assert len(found.nearest("a", 99)) == 5
    assert all(np.isfinite(score) for _, score in found.nearest("zero"))
    assert Vectors(["a"], np.ones((1, 1), np.float32)).nearest("a") == []
    with pytest.raises(DataError, match="'cat' has no vector"):
        found.nearest("cat")


def test_load_memory_is_close_to_table_size(tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((10_000, 100), np.float32)
    Vectors([f"w{i}" for i in range(len(table))], table).save(tmp_path / "v.txt")
    tracemalloc.start()
    found = Vectors.load(tmp_path / "v.txt")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.table.tobytes() == table.tobytes()
    # The file has 12 MB, the table 4 MB.
    assert peak < 1.25 * table.nbytes + 6 * vectors.READ_BYTES


def test_load_reads_glove_sample(data_folder: Path) -> None:
    path = data_folder / "wordvec_sample" / "test_glove.txt"
    found = Vectors.load(path)
    assert found.table.shape == (76, 50)
    lines = path.read_text(encoding="utf-8").splitlines()
    for row, line in enumerate(lines):
        word, *numbers = line.split(" ")
        assert found.row(word) == row
        np.testing.assert_array_equal(found.table[row], np.float32(numbers))
    unit = found.table / np.linalg.norm(found.table, axis=1, keepdims=True)
    cosine = unit @ unit[0]
    expected = [found.words[i] for i in sorted(range(1, 76), key=lambda i: -cosine[i])[:3]]
    assert [word for word, _ in found.nearest(found.words[0], 3)] == expected


def test_tokens_match_manual_result() -> None:
    assert tokens("The café's\tCAT -- isn't\nHERE!") == [
        *("the", "cafe", "'", "s", "cat", "-", "-", "isn", "'", "t", "here", "!")
    ]
    assert tokens("東京 is\x00 up\u200b") == ["東", "京", "is", "up"]
    assert tokens("") == tokens("  \n ") == []


@given(st.text(st.sampled_from("aAÉéΣς ß\u0301\u0300İ\t\n\r\x1c\x85\xa0\u2028'.-東_1\ufffd\u200d")))
def test_tokens_match_tokenizers_library(text: str) -> None:
    normal = normalizers.BertNormalizer(lowercase=True).normalize_str(text)
    expected = [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]
    assert tokens(text) == expected


@given(st.text())
def test_tokens_match_tokenizers_library_on_any_text(text: str) -> None:
    normal = normalizers.BertNormalizer(lowercase=True).normalize_str(text)
    expected = [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]
    assert tokens(text) == expected
