"""LanceDB stores: finished and unfinished runs, damaged files, and concurrent writers."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.extensions.search.conftest import SPEC, passage, unit

from bertkit.errors import SearchError
from bertkit.extensions.search import lance
from bertkit.extensions.search.lance import TABLE, LanceStore


def make_store(store_path: Path) -> None:
    store = LanceStore.open(str(store_path), SPEC)
    store.replace([passage("a", "first"), passage("b", "second")], np.stack([unit(1, 0, 0, 0)] * 2))
    store.finish()


def test_search_returns_only_finished_runs(tmp_path: Path) -> None:
    store_path = str(tmp_path / "store")
    writer = LanceStore.open(store_path, SPEC)
    writer.replace([passage("a", "first")], unit(1, 0, 0, 0)[None])
    with pytest.raises(SearchError, match="did not finish; run the same command again"):
        LanceStore.open(store_path, None)
    writer.finish()
    reader = LanceStore.open(store_path, None)
    writer.replace([passage("a", "changed")], unit(1, 0, 0, 0)[None])
    writer.replace([passage("b", "second")], unit(1, 0, 0, 0)[None])
    for store in (reader, LanceStore.open(store_path, None)):
        assert [h.text for h in store.by_vector(unit(1, 0, 0, 0), 9)] == ["first"]
        assert [h.text for h in store.by_words("first changed second", 9)] == ["first"]
    assert writer.digests(["a", "b"]) == {"a": "changed", "b": "second"}
    writer.finish()
    now = LanceStore.open(store_path, None)
    assert {h.text for h in now.by_words("first changed second", 9)} == {"changed", "second"}
    # A reader keeps the version that it opened.
    assert [h.text for h in reader.by_vector(unit(1, 0, 0, 0), 9)] == ["first"]


def test_cached_search_matches_search_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    store = LanceStore.open(str(tmp_path / "store"), SPEC)
    # The last of several versions changes documents of the first version.
    for start in range(0, 300, 100):
        passages = [passage(f"d{i % 250}", f"text {i}") for i in range(start, start + 100)]
        store.replace(passages, np.stack([unit(*rng.standard_normal(4)) for _ in passages]))
    store.finish()
    queries = [unit(*rng.standard_normal(4)) for _ in range(5)]
    in_memory = LanceStore.open(str(tmp_path / "store"), None)
    assert in_memory._cached is not None
    monkeypatch.setattr(lance, "MAX_CACHED_BYTES", 0)
    on_disk = LanceStore.open(str(tmp_path / "store"), None)
    assert on_disk._cached is None
    for vector in queries:
        cached_hits, disk_hits = (s.by_vector(vector, 7) for s in (in_memory, on_disk))
        assert [h.text for h in cached_hits] == [h.text for h in disk_hits]
        scores = [h.score for h in disk_hits]
        assert [h.score for h in cached_hits] == pytest.approx(scores, abs=1e-6)
    assert len(in_memory.by_vector(queries[0], 1000)) == len(in_memory) == 250


def test_open_rejects_files_and_other_directories(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    for create in (None, SPEC):
        with pytest.raises(SearchError, match="file: expected a directory, got a file"):
            LanceStore.open(str(file), create)
    with pytest.raises(SearchError, match="folder: the directory is not a store, but contains"):
        LanceStore.open(str(folder), SPEC)
    with pytest.raises(SearchError, match="folder: not a store"):
        LanceStore.open(str(folder), None)
    assert [p.name for p in folder.iterdir()] == ["mine"]


def test_open_removes_partial_file_of_killed_run(tmp_path: Path) -> None:
    store_path = tmp_path / "store"
    store_path.mkdir()
    (store_path / ".bertkit.json.partial-999999999").write_text("{")
    assert len(LanceStore.open(str(store_path), SPEC)) == 0
    assert not list(store_path.glob("*.partial-*"))


def test_unfinished_store_is_recreated_with_other_settings(tmp_path: Path) -> None:
    store_path = str(tmp_path / "store")
    first = LanceStore.open(store_path, SPEC)
    first.replace([passage("a", "b")], unit(1, 0, 0, 0)[None])
    # The run is closed before `finish`.
    first.close()
    other = msgspec.structs.replace(SPEC, long="truncate")
    with closing(LanceStore.open(store_path, other)) as store:
        assert (len(store), store.spec.long) == (0, "truncate")
        store.replace([passage("a", "b")], unit(1, 0, 0, 0)[None])
        store.finish()
    with pytest.raises(SearchError, match='the store was made with long="truncate", not window'):
        LanceStore.open(store_path, SPEC)
    assert len(LanceStore.open(store_path, None)) == 1


@pytest.mark.parametrize("lost", ["data", "_versions"])
def test_store_without_files_raises_search_error(lost: str, tmp_path: Path) -> None:
    store_path = tmp_path / "store"
    make_store(store_path)
    shutil.rmtree(store_path / f"{TABLE}.lance" / lost)
    with pytest.raises(SearchError, match="cannot read or write the store"):
        LanceStore.open(str(store_path), None).by_vector(unit(1, 0, 0, 0), 1)


def test_store_with_truncated_files_raises_search_error(tmp_path: Path) -> None:
    store_path = tmp_path / "store"
    make_store(store_path)
    for file in (store_path / f"{TABLE}.lance" / "data").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:64])
    with pytest.raises(SearchError, match="the store is damaged"):
        LanceStore.open(str(store_path), None).by_vector(unit(1, 0, 0, 0), 1)


@pytest.mark.parametrize("column", ["end", "vector", "words"])
def test_store_without_column_raises_search_error(column: str, tmp_path: Path) -> None:
    store_path = tmp_path / "store"
    make_store(store_path)
    store = LanceStore.open(str(store_path), SPEC)
    store.table.drop_columns([column])
    store._tag()
    store.close()

    def search() -> None:
        store = LanceStore.open(str(store_path), None)
        store.by_vector(unit(1, 0, 0, 0), 1)
        store.by_words("wing", 1)

    with pytest.raises(SearchError, match=r"store: (cannot read or write|expected embeddings)"):
        search()


def test_open_rejects_second_writer(tmp_path: Path) -> None:
    store_path = str(tmp_path / "store")
    make_store(Path(store_path))
    writer = LanceStore.open(store_path, SPEC)
    with pytest.raises(SearchError, match="store: another `bertkit index` is writing to the st"):
        LanceStore.open(store_path, SPEC)
    # Searches do not wait for the writer.
    assert len(LanceStore.open(store_path, None)) == 2
    writer.close()
    LanceStore.open(store_path, SPEC).close()


def test_reader_uses_new_version_after_cleanup(tmp_path: Path) -> None:
    store_path = str(tmp_path / "store")
    make_store(Path(store_path))
    readers = [LanceStore.open(store_path, None) for _ in range(2)]
    assert {hit.text for hit in readers[0].by_vector(unit(1, 0, 0, 0), 9)} == {"first", "second"}
    writer = LanceStore.open(store_path, SPEC)
    writer.replace([passage(id, "changed") for id in "ab"], np.stack([unit(1, 0, 0, 0)] * 2))
    writer.finish()
    time.sleep(1.1)
    writer.table.optimize(cleanup_older_than=timedelta(seconds=1), delete_unverified=True)
    assert {hit.text for hit in readers[0].by_vector(unit(1, 0, 0, 0), 9)} == {"changed"}
    assert {hit.text for hit in readers[1].by_words("changed first", 9)} == {"changed"}
    writer.close()
    shutil.rmtree(tmp_path / "store" / "passages.lance" / "data")
    with pytest.raises(SearchError, match="the store is damaged"):
        readers[0].by_vector(unit(1, 0, 0, 0), 9)


def test_unfinished_run_is_completed_after_weeks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LanceStore.open(str(tmp_path / "store"), SPEC)
    store.replace([passage("a", "a")], unit(1, 0, 0, 0)[None])
    store.finish()
    for id in "bc":
        store.replace([passage(id, id)], unit(1, 0, 0, 0)[None])
    # The run is stopped before `finish`.
    store.close()
    time.sleep(1.1)
    monkeypatch.setattr(lance, "WEEK", timedelta(seconds=1))
    again = LanceStore.open(str(tmp_path / "store"), SPEC)
    again.finish()
    again.close()
    assert len(LanceStore.open(str(tmp_path / "store"), None)) == 3
