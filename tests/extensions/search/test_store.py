"""Both stores keep the same promises: what is found, in which order, and what replaces what."""

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

WINGS = passage("wings", "a wing lifts in a stream of air", year=1958.0, author="O'Neil")
HEAT = passage("heat", "heat flows through a slab", year=1961.0)
BOTH = passage("both", "heat of a wing at high speed", author="Li")


@pytest.fixture
def store(opened: Opened) -> Store:
    store = opened(SPEC)
    vectors = np.stack([unit(1, 0, 0, 0), unit(0, 1, 0, 0), unit(1, 1, 0, 0)])
    store.replace([WINGS, HEAT, BOTH], vectors)
    store.finish()
    store.close()
    return store


def ids(hits: list[Any]) -> list[str]:
    return [hit.id for hit in hits]


def test_the_nearest_come_first_whole(store: Store, opened: Opened) -> None:
    hits = opened().by_vector(unit(2, 1, 0, 0), 2)
    assert ids(hits) == ["both", "wings"]
    assert [hit.score for hit in hits] == pytest.approx([3 / 10**0.5, 2 / 5**0.5], abs=1e-6)
    assert hits[1].text == WINGS.text
    assert (hits[1].start, hits[1].end, hits[1].passage) == (0, len(WINGS.text), 0)
    assert hits[1].source == "docs:wings"
    assert hits[1].fields == {"year": 1958.0, "the author": "O'Neil"}
    assert len(opened()) == 3


def test_a_text_that_moves_to_another_document_is_not_found_under_the_old(store: Store) -> None:
    """As where a row is put before rows that are named by their lines."""
    moved = [passage("wings", "new"), passage("heat", WINGS.text), passage("both", HEAT.text)]
    store.replace(moved, np.stack([unit(1, 0, 0, 0)] * 3))
    store.finish()
    hits = store.by_vector(unit(1, 0, 0, 0), 10)
    assert sorted((hit.id, hit.text) for hit in hits) == sorted((p.id, p.text) for p in moved)
    assert store.digests([p.id for p in moved]) == {p.id: p.digest for p in moved}


def test_words_are_found(store: Store) -> None:
    assert ids(store.by_words("a stream", 3)[:1]) == ["wings"]
    assert ids(store.by_words("Slab", 3)) == ["heat"]
    assert set(ids(store.by_words("the wing", 3))) == {"wings", "both"}
    assert store.by_words('quotes " AND (', 3) == []
    assert store.by_words("...", 3) == []


@pytest.mark.parametrize(
    ("where", "found"),
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
def test_conditions_are_met_by_all_that_is_found(
    where: list[str], found: set[str], store: Store
) -> None:
    met = conditions(where, SPEC.fields)
    assert set(ids(store.by_vector(unit(1, 1, 1, 1), 3, met))) == found
    assert set(ids(store.by_words("heat wing", 3, met))) == found


def test_a_document_replaces_the_one_of_its_id(store: Store, opened: Opened) -> None:
    again = opened(SPEC)
    parts = [passage("wings", f"part {i}", i, digest="parts") for i in range(3)]
    again.replace(parts, np.stack([unit(0, 0, 1, 0)] * 3))
    again.finish()
    assert len(again) == 5
    one = [passage("wings", "whole", digest="whole")]
    again.replace(one, unit(0, 0, 1, 0)[None])
    again.replace(one, unit(0, 0, 1, 0)[None])
    again.finish()
    now = opened()
    assert len(now) == 3
    assert [h.text for h in now.by_vector(unit(0, 0, 1, 0), 1)] == ["whole"]
    assert ids(now.by_words("lifts stream", 3)) == []


def test_what_is_there_is_known_by_its_digest(store: Store, opened: Opened) -> None:
    ids = ["heat", "nowhere", "it's", "both"]
    assert opened(SPEC).digests(ids) == {"heat": HEAT.digest, "both": BOTH.digest}


def test_documents_are_said_to_stand_elsewhere(store: Store, opened: Opened) -> None:
    again = opened(SPEC)
    again.move({"wings": "it's:1", "heat": "new:2", "nowhere": "x"})
    again.finish()
    again.close()
    now = opened()
    assert now.sources() == {"wings": "it's:1", "heat": "new:2", "both": "docs:both"}
    assert [h.source for h in now.by_vector(unit(1, 0, 0, 0), 1)] == ["it's:1"]
    assert len(now) == 3


def test_documents_are_taken_out(store: Store, opened: Opened) -> None:
    again = opened(SPEC)
    assert again.sources() == {id: f"docs:{id}" for id in ("wings", "heat", "both")}
    again.remove(["heat", "it's nowhere", "both"])
    again.finish()
    assert set(again.sources()) == {"wings"}
    assert ids(opened().by_vector(unit(1, 1, 1, 1), 9)) == ["wings"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint": "other", "model": "n"}, "the store uses the model m, not n"),
        ({"length": 16}, "passages of 32 tokens, not 16"),
        ({"long": "truncate"}, 'long="window", not truncate'),
        ({"fields": {}}, "keep= year:number, the author:text, not nothing"),
    ],
)
def test_a_store_is_added_to_as_it_was_made(
    change: dict[str, Any], said: str, store: Store, opened: Opened
) -> None:
    with pytest.raises(SearchError, match=said):
        opened(msgspec.structs.replace(SPEC, **change))
    assert opened(msgspec.structs.replace(SPEC, model="moved")).spec == SPEC


def test_there_is_no_store_before_one_is_made(opened: Opened) -> None:
    with pytest.raises(SearchError, match="bertkit index"):
        opened()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yaer>1", "where: field 'yaer' not found in this store; did you mean 'year'"),
        ("year", "where: invalid 'year'; use FIELD=VALUE"),
        ("year=new", "where: year must be a number, got 'new'"),
        ("the author<B", "where: the author is text, which < does not support"),
    ],
)
def test_conditions_that_cannot_be_met_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        conditions([text], SPEC.fields)


def test_a_condition_may_hold_anything() -> None:
    assert conditions(["the author = a=b>c "], SPEC.fields) == [
        Condition("the author", "=", "a=b>c")
    ]


def test_a_spec_is_read_or_refused() -> None:
    assert read_spec("x", msgspec.json.encode(SPEC)) == SPEC
    with pytest.raises(SearchError, match="x: invalid spec of the store"):
        read_spec("x", b'{"model": 3}')
    for version in (3, 5):
        other: Spec = msgspec.structs.replace(SPEC, version=version)
        with pytest.raises(SearchError, match=f"version 4, got {version}"):
            read_spec("x", msgspec.json.encode(other))


def test_a_spec_nested_too_deep_is_refused() -> None:
    with pytest.raises(SearchError, match="x: invalid spec of the store"):
        read_spec("x", '{"a": ' + "[" * 100_000)
