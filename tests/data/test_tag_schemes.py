"""Tag schemes: spans match seqeval, round trips, errors, and transitions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.tag_schemes import (
    BIOES,
    IOB1,
    IOB2,
    Entity,
    Masks,
    Scheme,
    neighbors,
    scheme_of,
    scheme_of_labels,
    spans,
)
from bertkit.errors import DataError

SCHEMES = (IOB1, IOB2, BIOES)
TYPES = ("A", "B", "work-of-art")
NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def masks(names: Sequence[str]) -> Masks:
    scheme = scheme_of_labels(names)
    assert scheme is not None
    return scheme.masks(names)


@st.composite
def sentence(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Generate sorted, disjoint entities and the length of their sentence."""
    entities, at = [], 0
    for gap, size, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(TYPES)))
    ):
        entities.append(Entity(at + gap, at + gap + size, kind))
        at += gap + size
    return entities, at + draw(st.integers(0, 2))


@given(st.lists(st.sampled_from(["O", *(f"{p}-{t}" for p in "BIES" for t in TYPES)]), max_size=12))
def test_spans_match_seqeval(tags: list[str]) -> None:
    seqeval = pytest.importorskip(
        "seqeval.metrics.sequence_labeling", reason="pip install 'bertkit[dev]'"
    )
    expected = [(start, end + 1, kind) for kind, start, end in seqeval.get_entities(tags)]
    assert spans(tags) == expected


@given(sentence(), st.sampled_from(SCHEMES), st.sampled_from(SCHEMES))
def test_encode_and_spans_round_trip(
    given: tuple[list[Entity], int], scheme: Scheme, other: Scheme
) -> None:
    entities, length = given
    tags = scheme.encode(entities, length)
    assert len(tags) == length
    assert spans(tags) == entities
    assert spans(other.encode(spans(tags), length)) == entities
    if entities:
        assert scheme_of([["O"], tags]) == scheme


@given(
    st.lists(st.lists(st.sampled_from([*NAMES, "E-LOC", "S-PER", "", "X"]), max_size=4)),
    st.sampled_from(SCHEMES),
)
def test_fits_agrees_with_faults(sentences: list[list[str]], scheme: Scheme) -> None:
    pairs = {pair for tags in sentences for pair in neighbors(tags)}
    assert scheme.fits(pairs) != any(list(scheme.faults(tags)) for tags in sentences)


def test_encode_matches_hand_written_tags() -> None:
    entities = [Entity(0, 1, "A"), Entity(1, 3, "A"), Entity(3, 4, "B"), Entity(5, 8, "A")]
    written = [" ".join(scheme.encode(entities, 8)) for scheme in SCHEMES]
    assert written == [
        "I-A B-A I-A I-B O I-A I-A I-A",
        "B-A B-A I-A B-B O B-A I-A I-A",
        "S-A B-A E-A S-B O B-A I-A E-A",
    ]


@pytest.mark.parametrize("entity", [Entity(1, 3, "A"), Entity(3, 6, "A"), Entity(4, 4, "A")])
def test_encode_rejects_invalid_entities(entity: Entity) -> None:
    with pytest.raises(DataError, match="sentence of 5 words"):
        IOB2.encode([Entity(0, 2, "A"), entity], 5)


def test_scheme_of_other_tags_is_none() -> None:
    assert scheme_of([["NN", "-LRB-", "PRP$"], ["UH"]]) is None
    assert scheme_of([]) is scheme_of([[]]) is None
    assert scheme_of([["O", "O"]]) is IOB2


@pytest.mark.parametrize(
    ("tags", "position", "expected"),
    [("B-A I-A|O X-A", "sentence 2, word 2", "'X-A' is not valid in .*O, or B- or I- before"),
     ("B-A I-A|B-", "sentence 2, word 1", "'B-' is not valid in IOB2"),
     ("B-A I-A|O b-a", "sentence 2, word 2", "'b-a' is not valid in IOB2"),
     ("B-A|B-A O I-B", "sentence 2, word 3", "'I-B' is not valid in IOB2.*expected B-B"),
     ("B-A|B-A I-B", "sentence 2, word 2", "'I-B' is not valid in IOB2.*expected B-B"),
     ("I-A|I-A O B-B|I-A", "sentence 2, word 3", "'B-B' is not valid in IOB1.*expected I-B"),
     ("I-A B-A|B-A|I-B", "sentence 2, word 1", "'B-A' is not valid in IOB1.*expected I-A"),
     ("B-A|B-B|S-A|B-A", "sentence 3, word 1", "'S-A' is not valid in IOB2.*expected B-A or I-A"),
     ("B-A E-A|S-A|B-A O|S-B", "sentence 3, word 2", "'O' .*BIOES.*expected I-A or E-A after"),
     ("B-A E-A|S-A|B-A E-B|S-B", "sentence 3, word 2", "'E-B' .*expected I-A or E-A after B-A"),
     ("S-A|O I-A E-A|S-B", "sentence 2, word 2", "'I-A' .*expected B-A or S-A at"),
     ("S-A|O B-A|S-B|S-A", "sentence 2, word 2", "'B-A' .*expected E-A or S-A at the end")],
)  # fmt: skip
def test_scheme_of_reports_first_invalid_tag(tags: str, position: str, expected: str) -> None:
    with pytest.raises(DataError, match=f"^{position}: .*{expected}"):
        scheme_of([part.split() for part in tags.split("|")])


def test_iob2_masks_forbid_invalid_transitions() -> None:
    allowed, starts, ends = masks(NAMES)
    forbidden = {(NAMES[a], NAMES[b]) for a, b in np.argwhere(~allowed).tolist()}
    assert forbidden == {
        *(("O", "I-PER"), ("O", "I-LOC")),
        *(("B-PER", "I-LOC"), ("I-PER", "I-LOC"), ("B-LOC", "I-PER"), ("I-LOC", "I-PER")),
    }
    assert starts.tolist() == [True, True, False, True, False]
    assert ends.all()


def test_bioes_masks_allow_only_valid_transitions() -> None:
    names = ("O", "B-X", "I-X", "E-X", "S-X", "S-Y", "B-Y", "E-Y")
    allowed, starts, ends = masks(names)
    outside, ended = {"O", "B-X", "S-X", "S-Y", "B-Y"}, {"O", "E-X", "S-X", "S-Y", "E-Y"}
    for i, name in enumerate(names):
        inside = {"I-X", "E-X"} if name in ("B-X", "I-X") else {"E-Y"}
        expected = outside if name in ended else inside
        assert set(itertools.compress(names, allowed[i])) == expected, name
    assert set(itertools.compress(names, starts)) == outside
    assert set(itertools.compress(names, ends)) == ended


@pytest.mark.parametrize("mark", ["E-X", "S-X"])
def test_scheme_is_bioes_with_either_prefix(mark: str) -> None:
    allowed, _, ends = masks(("O", "B-Y", mark))
    assert ends.tolist() == [True, False, True]
    assert not allowed[1].any()


@pytest.mark.parametrize("names", [("NN", "VB", "."), ("O", "B-X", "I-X", "[CLS]"), ("O", "I-")])
def test_other_labels_have_no_scheme(names: tuple[str, ...]) -> None:
    assert scheme_of_labels(names) is None


def test_entity_type_may_contain_hyphen() -> None:
    allowed, _, _ = masks(("B-a-b", "I-a-b", "I-a"))
    assert allowed.tolist() == [[True, True, False], [True, True, False], [True, False, True]]
