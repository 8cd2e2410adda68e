"""Indexing of documents: passages, updates of a store, invalid input, and killed runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import pdf

from bertkit.checkpoint.directory import load, save
from bertkit.checkpoint.pooling_files import write_pooling
from bertkit.errors import ConfigError, DataError, SearchError
from bertkit.extensions.search.documents import DocumentColumns
from bertkit.extensions.search.index import index
from bertkit.extensions.search.searcher import Searcher, model_name
from bertkit.extensions.search.store import Hit
from bertkit.extensions.search.stores import open_store
from bertkit.families import BERT
from bertkit.nn.pooling import Dense, Pooling
from bertkit.pipelines import Embed

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write(path: Path, texts: Sequence[str], **fields: Any) -> Path:
    rows = [{"id": f"d{i}", "text": text, **fields} for i, text in enumerate(texts)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def stored_hits(store_path: str, count: int = 1000) -> list[Hit]:
    vector = np.ones(32, np.float32)
    hits = open_store(store_path).by_vector(vector, count)
    return sorted(hits, key=lambda hit: (hit.id, hit.passage))


def texts(count: int) -> list[str]:
    return [" ".join(LETTERS[(i + j) % 26] for j in range(1 + 7 * i % 90)) for i in range(count)]


def test_index_passages_cover_documents(tiny: Path, tmp_path: Path) -> None:
    documents = texts(12)
    store_path = str(tmp_path / "store")
    file = write(tmp_path / "a.jsonl", documents)
    result = index([file], model=tiny, store=store_path, precision="fp32")
    hits = stored_hits(store_path)
    assert result == {"documents": 12, "unchanged": 0, "passages": len(hits)}
    tokenizer = load(tiny).tokenizer
    for number, text in enumerate(documents):
        parts = [hit for hit in hits if hit.id == f"d{number}"]
        assert [hit.passage for hit in parts] == list(range(len(parts)))
        covered = set()
        for part in parts:
            assert text[part.start : part.end] == part.text
            assert len(tokenizer.encode(part.text)) <= 32
            covered |= set(range(part.start, part.end))
        assert all(index in covered for index, letter in enumerate(text) if letter != " ")
    assert max(hit.passage for hit in hits) >= 3


def test_index_dimension_equals_dense_layer_output(tiny: Path, tmp_path: Path) -> None:
    loaded = load(tiny)
    save(tmp_path / "m", loaded.model, loaded.tokenizer, BERT, pooling=Pooling(dense=Dense(32, 6)))
    store_path = str(tmp_path / "store")
    index([write(tmp_path / "a.jsonl", texts(3))], model=tmp_path / "m", store=store_path)
    assert open_store(store_path).spec.dimension == 6
    assert Searcher(store_path)("a")[0].id == "d0"


def test_index_stores_embedding_of_each_passage(tiny: Path, tmp_path: Path) -> None:
    store_path = str(tmp_path / "store")
    index([write(tmp_path / "a.jsonl", texts(9))], model=tiny, store=store_path, precision="fp32")
    searcher = Searcher(store_path)
    for hit in stored_hits(store_path):
        best = searcher.store.by_vector(searcher.embed([hit.text])[0], 1)[0]
        assert best.score == pytest.approx(1.0, abs=1e-5)


def test_index_truncates_splits_or_rejects_long_documents(tiny: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", texts(9))
    cut = index([file], model=tiny, store=str(tmp_path / "cut"), long="truncate")
    assert cut["passages"] == 9
    short = index([file], model=tiny, store=str(tmp_path / "short"), length=12)
    assert short["passages"] > 9
    assert all(len(hit.text) <= 19 for hit in stored_hits(str(tmp_path / "short")))
    with pytest.raises(DataError, match=r"a.jsonl:\d+: .* tokens, but the limit is 32"):
        index([file], model=tiny, store=str(tmp_path / "none"), long="error")
    for length in (7, 33):
        with pytest.raises(ConfigError, match=f"length must be from 8 to 32 .*, got {length}"):
            index([file], model=tiny, store=str(tmp_path / "none"), length=length)


def test_index_replaces_only_changed_documents(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_path, file = str(tmp_path / "store"), tmp_path / "a.jsonl"
    documents = texts(9)
    index([write(file, documents)], model=tiny, store=store_path)
    hits_before = stored_hits(store_path)
    assert index([file], model=tiny, store=store_path)["unchanged"] == 9
    assert stored_hits(store_path) == hits_before
    documents[8] = "a b"
    result = index([write(file, documents)], model=tiny, store=store_path)
    assert result["unchanged"] == 8
    hits_after = stored_hits(store_path)
    assert [hit.text for hit in hits_after if hit.id == "d8"] == ["a b"]
    assert [hit for hit in hits_after if hit.id != "d8"] == [
        hit for hit in hits_before if hit.id != "d8"
    ]


def test_index_uses_model_of_existing_store(tiny: Path, tmp_path: Path) -> None:
    store_path, file = str(tmp_path / "store"), tmp_path / "a.jsonl"
    write(file, texts(3))
    with pytest.raises(SearchError, match=r"^model= is required, because the store"):
        index([file], store=store_path)
    assert not (tmp_path / "store").exists()
    shutil.copytree(tiny, tmp_path / "model")
    index([file], model=tmp_path / "model", store=store_path)
    write(file, texts(5))
    assert index([file], store=store_path) == {"documents": 5, "unchanged": 3, "passages": 5}
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(SearchError, match=r"cannot load the model of the store .* with model="):
        index([file], store=store_path)
    assert index([file], model=tmp_path / "moved", store=store_path)["unchanged"] == 5


def test_index_removes_missing_documents_only_with_sync(tiny: Path, tmp_path: Path) -> None:
    store_path, file = str(tmp_path / "store"), tmp_path / "a.jsonl"
    index([write(file, texts(9))], model=tiny, store=store_path)
    write(file, texts(4))
    assert len({hit.id for hit in stored_hits(store_path)}) == 9
    index([file], model=tiny, store=store_path)
    assert len({hit.id for hit in stored_hits(store_path)}) == 9
    result = index([file], model=tiny, store=store_path, sync=True)
    assert (result["unchanged"], result["removed"]) == (4, 5)
    assert {hit.id for hit in stored_hits(store_path)} == {f"d{i}" for i in range(4)}


def test_index_updates_sources_of_moved_documents(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_path, file = str(tmp_path / "store"), tmp_path / "a.jsonl"
    rows = [{"id": id, "text": f"{id} c"} for id in "abn"]

    def write_and_index(rows: list[dict[str, str]]) -> dict[str, int]:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return index([file], model=tiny, store=store_path, sync=True)

    write_and_index(rows[:2])
    assert write_and_index([rows[2], *rows[:2]])["unchanged"] == 2
    assert {hit.id: hit.source for hit in stored_hits(store_path)} == {
        id: f"{file}:{line}" for line, id in enumerate("nab", 1)
    }
    file = file.rename(tmp_path / "b.jsonl")
    assert index([file], model=tiny, store=store_path, sync=True)["unchanged"] == 3
    sources = {hit.source for hit in stored_hits(store_path)}
    assert sources == {f"{file}:{line}" for line in (1, 2, 3)}
    assert "moved without other changes: 3 (n, a, b)" in capsys.readouterr().err
    index([file], model=tiny, store=store_path, sync=True)
    assert "moved without other changes" not in capsys.readouterr().err


def test_index_rejects_invalid_rows_before_creating_store(tiny: Path, tmp_path: Path) -> None:
    store_path = tmp_path / "store"
    twice = tmp_path / "a.jsonl"
    twice.write_text('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"a.jsonl:2: the id '1' already exists"):
        index([twice], model=tiny, store=str(store_path))
    empty = tmp_path / "b.jsonl"
    empty.write_text('{"id": 1, "text": "a"}\n{"id": 2, "text": ""}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"b.jsonl:2: the document contains no text"):
        index([empty], model=tiny, store=str(store_path))
    assert not store_path.exists()


def test_index_reports_or_skips_all_invalid_files(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, store_path = tmp_path / "docs", tmp_path / "store"
    docs.mkdir()
    (docs / "a.txt").write_text("a b", encoding="utf-8")
    (docs / "b.txt").touch()
    (docs / "c.md").write_bytes(b"\xff")
    (docs / "d.png").touch()
    with pytest.raises(DataError, match=r"2 files or rows are invalid.*: .*b.txt, .*c.md:1$"):
        index([docs], model=tiny, store=str(store_path))
    assert not store_path.exists()
    log = capsys.readouterr().err
    assert "files: 3 (2 .txt, 1 .md); skipped: 1 (1 .png)" in log
    assert "b.txt: the file is empty" in log
    assert "c.md:1: not UTF-8" in log
    result = index([docs], model=tiny, store=str(store_path), skip_bad=True)
    assert result == {"documents": 1, "unchanged": 0, "left_out": 2, "passages": 1}
    assert "skipped: " in capsys.readouterr().err
    (docs / "b.txt").unlink()
    with pytest.raises(DataError, match=r"c.md:1: not UTF-8.*, or skip them with skip_bad=$"):
        index([docs], model=tiny, store=str(store_path))


@pytest.mark.parametrize("rows", [1, 2])
def test_missing_column_is_not_a_bad_row(rows: int, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("title,body\n" + "a,b\n" * rows, encoding="utf-8")
    with pytest.raises(DataError, match=r"field 'text' not found|2 files or rows") as error:
        index([file], model=tiny, store=str(tmp_path / "store"))
    assert "skip" not in str(error.value)


def test_model_without_pooling_is_reported(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a b", encoding="utf-8")
    embedder = tmp_path / "embedder"
    shutil.copytree(tiny, embedder)
    write_pooling(embedder, Pooling(), hidden=32, length=64)
    for model in (tiny, embedder):
        index([file], model=model, store=str(tmp_path / f"store-{model.name}"))
        warned = "is not an embedding model" in capsys.readouterr().err
        assert warned == (model is tiny)


def test_index_truncates_report_of_many_invalid_rows(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(["{}"] * 300), encoding="utf-8")
    with pytest.raises(DataError, match=r"300 files or rows .*a.jsonl:5 and 295 more"):
        index([file], model=tiny, store=str(tmp_path / "store"))
    assert "… and 200 more" in capsys.readouterr().err


def test_index_reports_missing_files(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, store_path = tmp_path / "docs", str(tmp_path / "store")
    docs.mkdir()
    for name in "ab":
        (docs / f"{name}.txt").write_text(f"{name} c", encoding="utf-8")
    index([write(tmp_path / "rows.jsonl", ["x", "y"])], model=tiny, store=store_path)
    index([docs], model=tiny, store=store_path)
    (docs / "b.txt").unlink()
    write(tmp_path / "rows.jsonl", ["x"])
    capsys.readouterr()
    # Only documents of this directory count, not all documents of the store.
    assert index(str(docs), model=tiny, store=store_path)["gone"] == 1
    assert "that these files no longer contain: 1 (b.txt)" in capsys.readouterr().err
    assert index([tmp_path / "rows.jsonl"], model=tiny, store=store_path)["gone"] == 1
    assert "that these files no longer contain: 1 (d1)" in capsys.readouterr().err
    result = index([docs, tmp_path / "rows.jsonl"], model=tiny, store=store_path, sync=True)
    assert result == {"documents": 2, "unchanged": 2, "removed": 2, "passages": 2}


def test_index_passages_keep_headings(tiny: Path, tmp_path: Path) -> None:
    text = "# a\n\n## b\n\n" + "c d e f g h. " * 8 + "\n\n## i\nj"
    (tmp_path / "a.md").write_text(text, encoding="utf-8")
    store_path = str(tmp_path / "store")
    index([tmp_path / "a.md"], model=tiny, store=store_path, precision="fp32")
    hits = stored_hits(store_path)
    assert [hit.heading for hit in hits][:1] == ["a > b"]
    assert (hits[-1].heading, hits[-1].text) == ("a > i", "## i\nj")
    assert all(text[hit.start : hit.end] == hit.text for hit in hits)
    # The input of the model begins with the headings that are not in the passage, if they fit.
    searcher = Searcher(store_path)
    later = hits[1]
    for query, is_equal in ((f"b\n{later.text}", True), (later.text, False)):
        best = searcher.store.by_vector(searcher.embed([query])[0], len(hits))
        (score,) = [hit.score for hit in best if hit.passage == later.passage]
        assert (score > 1.0 - 1e-5) == is_equal


def test_index_updates_headings_of_unchanged_text(tiny: Path, tmp_path: Path) -> None:
    file, store_path = tmp_path / "a.html", str(tmp_path / "store")
    for page, heading in (("<p>a</p><p>b</p>", ""), ("<h1>a</h1><p>b</p>", "a")):
        file.write_text(page, encoding="utf-8")
        assert index([file], model=tiny, store=store_path)["unchanged"] == 0
        assert [(hit.text, hit.heading) for hit in stored_hits(store_path)] == [("a\n\nb", heading)]


def test_index_stores_page_numbers_of_pdf(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("pypdf", reason="pip install 'bertkit[search]'")
    pages = [f"{LETTERS[i % 26]} {LETTERS[i // 26]}" for i in range(500)]
    (tmp_path / "a.pdf").write_bytes(pdf(pages))
    store_path = str(tmp_path / "store")
    index([tmp_path / "a.pdf"], model=tiny, store=store_path)
    hits = stored_hits(store_path)
    assert "\n\n".join(hit.text for hit in hits) == "\n\n".join(pages)
    for hit in hits:
        assert hit.text.startswith(pages[int(hit.heading.removeprefix("page ")) - 1])


def test_index_rejects_other_model_or_fields(tiny: Path, tmp_path: Path) -> None:
    store_path, file = str(tmp_path / "store"), write(tmp_path / "a.jsonl", texts(2))
    index([file], model=tiny, store=store_path)
    loaded = load(tiny)
    loaded.model.encoder.embedding.tokens.weight.data[7] += 1.0
    save(tmp_path / "other", loaded.model, loaded.tokenizer, loaded.family)
    with pytest.raises(SearchError, match=r"made with the model .*tiny.*, not .*other"):
        index([file], model=tmp_path / "other", store=store_path)
    files, columns = [write(file, ["a"], x=1)], DocumentColumns(keep=("x",))
    with pytest.raises(SearchError, match="keep= nothing, not x:text"):
        index(files, model=tiny, store=store_path, columns=columns)


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_index_rejects_zero_and_nan_vectors(
    value: float, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Embed.vectors

    def broken(self: Any, encodings: Any) -> Any:
        vectors = original(self, encodings)
        vectors[1] = value
        return vectors

    monkeypatch.setattr(Embed, "vectors", broken)
    file = write(tmp_path / "a.jsonl", ["a", "b c", "d"])
    message = r"a.jsonl:2: the model computes a zero or non-finite embedding for 'b c"
    with pytest.raises(DataError, match=message):
        index([file], model=tiny, store=str(tmp_path / "store"))


def test_model_name_is_absolute_path_or_hub_name(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny.parent)
    assert model_name(Path("model")) == model_name(load(tiny)) == str(tiny.resolve())
    assert model_name("someone/else") == "someone/else"


KILLED = """
import os, signal, sys
from pathlib import Path
from bertkit.extensions.search import index as indexing
from bertkit.extensions.search import lance
indexing.PART_DOCUMENTS = 4
left = int(sys.argv[4])
def fatal(name):
    original = getattr(lance.LanceStore, name)
    def call(*arguments):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)
    setattr(lance.LanceStore, name, call)
for name in ("replace", "finish", "_tag"):
    fatal(name)
indexing.index([Path(sys.argv[1])], model=sys.argv[2], store=sys.argv[3], precision="fp32")
"""


CHANGED = [text[::-1] for text in texts(12)]


@pytest.fixture(scope="module")
def stores(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One store of nine texts, and one store of the same texts, changed, and three more."""
    folder = tmp_path_factory.mktemp("stores")
    for name, rows in (("before", texts(9)), ("after", CHANGED)):
        file = write(folder / f"{name}.jsonl", rows)
        index([file], model=tiny, store=str(folder / name), precision="fp32")
    return folder / "before", folder / "after"


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5, 6])
def test_index_resumes_after_killed_run(
    call: int, stores: tuple[Path, Path], tiny: Path, tmp_path: Path
) -> None:
    """The killed run does not change the finished version of the store."""
    store_path, file = tmp_path / "store", write(tmp_path / "a.jsonl", CHANGED)
    old_store, new_store = stores
    shutil.copytree(old_store, store_path)
    arguments = [str(file), str(tiny), str(store_path), str(call)]
    command = [sys.executable, "-c", KILLED, *arguments]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == -9, done.stderr.decode()
    # The sixth call is the second tag, after all passages are written.
    assert stored_hits(str(store_path)) == stored_hits(str(old_store)) or call == 6
    index([file], model=tiny, store=str(store_path), precision="fp32")
    hits = stored_hits(str(store_path)), stored_hits(str(new_store))
    for hit, expected in zip(*hits, strict=True):
        assert (hit.id, hit.passage, hit.text) == (expected.id, expected.passage, expected.text)
        assert hit.score == pytest.approx(expected.score, abs=1e-5)
