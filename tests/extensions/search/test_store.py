"""LanceDB and Qdrant stores return, replace, move and remove documents in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.extensions.search.conftest import SPEC, passage, unit

from bertkit.errors import ConfigError, SearchError
from bertkit.extensions.search.store import Condition, Spec, Store, conditions, read_spec

Opened = Callable[..., Store]

WING = passage("wings", "a wing lifts in a stream of air", year=1958.0, author="O'Neil")
HEAT = passage("heat", "heat flows through a slab", year=1961.0)
WING_AND_HEAT = passage("both", "heat of a wing at high speed", author="Li")


@pytest.fixture
def store(opened: Opened) -> Store:
    store = opened(SPEC)
    vectors = np.stack([unit(1, 0, 0, 0), unit(0, 1, 0, 0), unit(1, 1, 0, 0)])
    store.replace([WING, HEAT, WING_AND_HEAT], vectors)
    store.finish()
    store.close()
    return store


def ids(hits: list[Any]) -> list[str]:
    return [hit.id for hit in hits]


def test_vector_search_returns_nearest_passages_with_fields(store: Store, opened: Opened) -> None:
    hits = opened().by_vector(unit(2, 1, 0, 0), 2)
    assert ids(hits) == ["both", "wings"]
    assert [hit.score for hit in hits] == pytest.approx([3 / 10**0.5, 2 / 5**0.5], abs=1e-6)
    assert hits[1].text == WING.text
    assert (hits[1].start, hits[1].end, hits[1].passage) == (0, len(WING.text), 0)
    assert hits[1].source == "docs:wings"
    assert hits[1].fields == {"year": 1958.0, "the author": "O'Neil"}
    assert len(opened()) == 3


def test_text_moved_to_other_document_has_new_id(store: Store) -> None:
    """A row inserted before others changes ids that are line numbers."""
    moved = [passage("wings", "new"), passage("heat", WING.text), passage("both", HEAT.text)]
    store.replace(moved, np.stack([unit(1, 0, 0, 0)] * 3))
    store.finish()
    hits = store.by_vector(unit(1, 0, 0, 0), 10)
    assert sorted((hit.id, hit.text) for hit in hits) == sorted((p.id, p.text) for p in moved)
    assert store.digests([p.id for p in moved]) == {p.id: p.digest for p in moved}


def test_keyword_search_returns_matching_documents(store: Store) -> None:
    assert ids(store.by_words("a stream", 3)[:1]) == ["wings"]
    assert ids(store.by_words("Slab", 3)) == ["heat"]
    assert set(ids(store.by_words("the wing", 3))) == {"wings", "both"}
    assert store.by_words('quotes " AND (', 3) == []
    assert store.by_words("...", 3) == []


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["year>=1960"], {"heat"}),
        (["year<1960"], {"wings"}),
        (["year = 1958"], {"wings"}),
        (["year!=1958"], {"heat"}),
        (["the author=O'Neil"], {"wings"}),
        (["the author!=O'Neil"], {"both"}),
        (["year>1900", "the author=Li"], set()),
        (["id=both"], {"both"}),
    ],
)
def test_searches_return_only_documents_that_match_conditions(
    filters: list[str], expected: set[str], store: Store
) -> None:
    parsed = conditions(filters, SPEC.fields)
    assert set(ids(store.by_vector(unit(1, 1, 1, 1), 3, parsed))) == expected
    assert set(ids(store.by_words("heat wing", 3, parsed))) == expected


def test_replace_removes_old_passages_of_same_id(store: Store, opened: Opened) -> None:
    reopened = opened(SPEC)
    parts = [passage("wings", f"part {i}", i, digest="parts") for i in range(3)]
    reopened.replace(parts, np.stack([unit(0, 0, 1, 0)] * 3))
    reopened.finish()
    assert len(reopened) == 5
    complete = [passage("wings", "whole", digest="whole")]
    reopened.replace(complete, unit(0, 0, 1, 0)[None])
    reopened.replace(complete, unit(0, 0, 1, 0)[None])
    reopened.finish()
    reader = opened()
    assert len(reader) == 3
    assert [h.text for h in reader.by_vector(unit(0, 0, 1, 0), 1)] == ["whole"]
    assert ids(reader.by_words("lifts stream", 3)) == []


def test_digests_contain_only_stored_documents(store: Store, opened: Opened) -> None:
    ids = ["heat", "nowhere", "it's", "both"]
    assert opened(SPEC).digests(ids) == {"heat": HEAT.digest, "both": WING_AND_HEAT.digest}


def test_move_updates_sources(store: Store, opened: Opened) -> None:
    reopened = opened(SPEC)
    reopened.move({"wings": "it's:1", "heat": "new:2", "nowhere": "x"})
    reopened.finish()
    reopened.close()
    reader = opened()
    assert reader.sources() == {"wings": "it's:1", "heat": "new:2", "both": "docs:both"}
    assert [h.source for h in reader.by_vector(unit(1, 0, 0, 0), 1)] == ["it's:1"]
    assert len(reader) == 3


def test_remove_deletes_documents(store: Store, opened: Opened) -> None:
    reopened = opened(SPEC)
    assert reopened.sources() == {id: f"docs:{id}" for id in ("wings", "heat", "both")}
    reopened.remove(["heat", "it's nowhere", "both"])
    reopened.finish()
    assert set(reopened.sources()) == {"wings"}
    assert ids(opened().by_vector(unit(1, 1, 1, 1), 9)) == ["wings"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": "other", "model": "n"}, "the store was made with the model m, not n"),
        ({"length": 16}, "passages of 32 tokens, not 16"),
        ({"long": "truncate"}, 'long="window", not truncate'),
        ({"fields": {}}, "keep= year:number, the author:text, not nothing"),
    ],
)
def test_open_rejects_changed_settings(
    change: dict[str, Any], message: str, store: Store, opened: Opened
) -> None:
    with pytest.raises(SearchError, match=message):
        opened(msgspec.structs.replace(SPEC, **change))
    assert opened(msgspec.structs.replace(SPEC, model="moved")).spec == SPEC


def test_open_raises_if_store_does_not_exist(opened: Opened) -> None:
    with pytest.raises(SearchError, match="bertkit index"):
        opened()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yaer>1", "where: field 'yaer' not found in this store; did you mean 'year'"),
        ("sufix=.md", "field 'sufix' not found in this store; did you mean 'suffix'"),
        ("year", "where: cannot parse 'year'; use FIELD=VALUE"),
        ("year=new", "where: year must be a number, got 'new'"),
        ("the author<B", "where: the author contains text, which < cannot compare"),
        ("source>a", "source contains text, which > cannot compare; use = or !="),
        ("score>=0.4", "score depends on the query; use .?.?min.score"),
        ("sentence=a", "sentence depends on the query; use text"),
        ("modified=a", "modified must be a number, got 'a'"),
        ("modified>=2020-13-01", "modified must be a number"),
    ],
)
def test_conditions_rejects_invalid_conditions(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        conditions([text], SPEC.fields)


def test_condition_value_may_contain_operators() -> None:
    assert conditions(["the author = a=b>c "], SPEC.fields) == [
        Condition("the author", "=", "a=b>c")
    ]


def test_condition_prefers_kept_column_to_stored_field() -> None:
    (condition,) = conditions(["source>=2"], {"source": "number"})
    assert condition.value == 2.0


def test_read_spec_rejects_other_fields_and_versions() -> None:
    assert read_spec("x", msgspec.json.encode(SPEC)) == SPEC
    with pytest.raises(SearchError, match="x: the settings of the store are invalid"):
        read_spec("x", b'{"model": 3}')
    for version in (3, 5):
        other: Spec = msgspec.structs.replace(SPEC, version=version)
        with pytest.raises(SearchError, match=f"version 4, got {version}"):
            read_spec("x", msgspec.json.encode(other))


def test_read_spec_rejects_deeply_nested_json() -> None:
    with pytest.raises(SearchError, match="x: the settings of the store are invalid"):
        read_spec("x", '{"a": ' + "[" * 100_000)
