"""A store on disk: half-written and damaged ones say so, and searches see finished runs alone."""

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


def made(place: Path) -> None:
    from bertkit.extensions.search.lance import LanceStore

    store = LanceStore.open(str(place), SPEC)
    store.replace([passage("a", "first"), passage("b", "second")], np.stack([unit(1, 0, 0, 0)] * 2))
    store.finish()


def test_searches_see_what_was_finished(tmp_path: Path) -> None:
    from bertkit.extensions.search.lance import LanceStore

    place = str(tmp_path / "store")
    writer = LanceStore.open(place, SPEC)
    writer.replace([passage("a", "first")], unit(1, 0, 0, 0)[None])
    with pytest.raises(SearchError, match="was not completed; run it again"):
        LanceStore.open(place, None)
    writer.finish()
    reader = LanceStore.open(place, None)
    writer.replace([passage("a", "changed")], unit(1, 0, 0, 0)[None])
    writer.replace([passage("b", "second")], unit(1, 0, 0, 0)[None])
    for store in (reader, LanceStore.open(place, None)):
        assert [h.text for h in store.by_vector(unit(1, 0, 0, 0), 9)] == ["first"]
        assert [h.text for h in store.by_words("first changed second", 9)] == ["first"]
    assert writer.digests(["a", "b"]) == {"a": "changed", "b": "second"}
    writer.finish()
    now = LanceStore.open(place, None)
    assert {h.text for h in now.by_words("first changed second", 9)} == {"changed", "second"}
    assert [h.text for h in reader.by_vector(unit(1, 0, 0, 0), 9)] == ["first"]  # as it was opened


def test_memory_and_disk_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertkit.extensions.search import lance

    rng = np.random.default_rng(0)
    store = lance.LanceStore.open(str(tmp_path / "store"), SPEC)
    for start in range(0, 300, 100):  # several versions, the first changed by the last
        found = [passage(f"d{i % 250}", f"text {i}") for i in range(start, start + 100)]
        store.replace(found, np.stack([unit(*rng.standard_normal(4)) for _ in found]))
    store.finish()
    asked = [unit(*rng.standard_normal(4)) for _ in range(5)]
    in_memory = lance.LanceStore.open(str(tmp_path / "store"), None)
    assert in_memory._cached is not None
    monkeypatch.setattr(lance, "MAX_CACHED_BYTES", 0)
    on_disk = lance.LanceStore.open(str(tmp_path / "store"), None)
    assert on_disk._cached is None
    for vector in asked:
        one, other = (s.by_vector(vector, 7) for s in (in_memory, on_disk))
        assert [h.text for h in one] == [h.text for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-6)
    assert len(in_memory.by_vector(asked[0], 1000)) == len(in_memory) == 250


def test_places_that_are_no_store_are_left_alone(tmp_path: Path) -> None:
    from bertkit.extensions.search.lance import LanceStore

    file = tmp_path / "file"
    file.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    for create in (None, SPEC):
        with pytest.raises(SearchError, match="file: expected a directory, got a file"):
            LanceStore.open(str(file), create)
    with pytest.raises(SearchError, match="folder: the directory contains other files"):
        LanceStore.open(str(folder), SPEC)
    with pytest.raises(SearchError, match="folder: not a store"):
        LanceStore.open(str(folder), None)
    assert [p.name for p in folder.iterdir()] == ["mine"]


def test_a_run_killed_before_it_began_is_no_obstacle(tmp_path: Path) -> None:
    from bertkit.extensions.search.lance import LanceStore

    place = tmp_path / "store"
    place.mkdir()
    (place / ".bertkit.json.partial-999999999").write_text("{")
    assert len(LanceStore.open(str(place), SPEC)) == 0
    assert not list(place.glob("*.partial-*"))


def test_a_store_of_which_nothing_is_found_may_begin_anew_with_other_settings(
    tmp_path: Path,
) -> None:
    from bertkit.extensions.search.lance import LanceStore

    place = str(tmp_path / "store")
    first = LanceStore.open(place, SPEC)
    first.replace([passage("a", "b")], unit(1, 0, 0, 0)[None])
    first.close()  # and not finished
    other = msgspec.structs.replace(SPEC, long="truncate")
    with closing(LanceStore.open(place, other)) as store:
        assert (len(store), store.spec.long) == (0, "truncate")
        store.replace([passage("a", "b")], unit(1, 0, 0, 0)[None])
        store.finish()
    with pytest.raises(SearchError, match='the store uses long="truncate", not window'):
        LanceStore.open(place, SPEC)
    assert len(LanceStore.open(place, None)) == 1


@pytest.mark.parametrize("lost", ["data", "_versions"])
def test_a_damaged_store_says_so(lost: str, tmp_path: Path) -> None:
    from bertkit.extensions.search.lance import TABLE, LanceStore

    place = tmp_path / "store"
    made(place)
    shutil.rmtree(place / f"{TABLE}.lance" / lost)
    with pytest.raises(SearchError, match="the store is damaged, or cannot be read"):
        LanceStore.open(str(place), None).by_vector(unit(1, 0, 0, 0), 1)


def test_a_store_cut_short_says_so(tmp_path: Path) -> None:
    from bertkit.extensions.search.lance import TABLE, LanceStore

    place = tmp_path / "store"
    made(place)
    for file in (place / f"{TABLE}.lance" / "data").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:64])
    with pytest.raises(SearchError, match="the store is damaged"):
        LanceStore.open(str(place), None).by_vector(unit(1, 0, 0, 0), 1)


@pytest.mark.parametrize("column", ["end", "vector", "words"])
def test_store_without_a_column_is_damaged(column: str, tmp_path: Path) -> None:
    from bertkit.extensions.search.lance import LanceStore

    place = tmp_path / "store"
    made(place)
    store = LanceStore.open(str(place), SPEC)
    store.table.drop_columns([column])
    store._tag()
    store.close()

    def search() -> None:
        store = LanceStore.open(str(place), None)
        store.by_vector(unit(1, 0, 0, 0), 1)
        store.by_words("wing", 1)

    with pytest.raises(SearchError, match=r"store: (the store is damaged|expected vectors)"):
        search()


def test_two_runs_do_not_write_at_once(tmp_path: Path) -> None:
    from bertkit.extensions.search.lance import LanceStore

    place = str(tmp_path / "store")
    made(Path(place))
    writer = LanceStore.open(place, SPEC)
    with pytest.raises(SearchError, match="store: another `bertkit index` is writing to it; wait"):
        LanceStore.open(place, SPEC)
    assert len(LanceStore.open(place, None)) == 2  # searches do not wait
    writer.close()
    LanceStore.open(place, SPEC).close()


def test_a_reader_goes_on_when_its_version_is_gone(tmp_path: Path) -> None:
    from bertkit.extensions.search.lance import LanceStore

    place = str(tmp_path / "store")
    made(Path(place))
    readers = [LanceStore.open(place, None) for _ in range(2)]
    assert {hit.text for hit in readers[0].by_vector(unit(1, 0, 0, 0), 9)} == {"first", "second"}
    writer = LanceStore.open(place, SPEC)
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


def test_a_run_that_goes_on_after_weeks_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertkit.extensions.search import lance

    store = lance.LanceStore.open(str(tmp_path / "store"), SPEC)
    store.replace([passage("a", "a")], unit(1, 0, 0, 0)[None])
    store.finish()
    for id in "bc":
        store.replace([passage(id, id)], unit(1, 0, 0, 0)[None])
    store.close()  # killed before it had ended
    time.sleep(1.1)
    monkeypatch.setattr(lance, "WEEK", timedelta(seconds=1))
    again = lance.LanceStore.open(str(tmp_path / "store"), SPEC)
    again.finish()
    again.close()
    assert len(lance.LanceStore.open(str(tmp_path / "store"), None)) == 3
