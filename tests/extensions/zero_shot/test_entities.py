"""Options, long texts, and batches of zero-shot entity recognition."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.extensions.zero_shot.gliner_models import LABELS, MANY, TEXTS, write_gliner

import bertkit
from bertkit.errors import ConfigError, DataError
from bertkit.extensions.zero_shot.entities import window_ranges
from bertkit.tasks.tag import TaggedEntity

LOW = {"threshold": 0.2, "flat": False}
LONG = TEXTS[3]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of two models: one limits words, the other limits tokens."""
    root = tmp_path_factory.mktemp("gliner")
    write_gliner(root / "words", "spans", changes={"max_len": 12})
    write_gliner(root / "tokens", "spans without LSTM")
    return root


def is_close(actual: list[TaggedEntity], expected: list[TaggedEntity], shift: int = 0) -> bool:
    spans = [(e.start + shift, e.end + shift, e.type) for e in expected]
    scores = pytest.approx([e.score for e in expected], abs=1e-5)
    found = [(e.start, e.end, e.type) for e in actual], [e.score for e in actual]
    return bool(found == (spans, scores))


def test_text_alone_equals_text_in_batch(folders: Path) -> None:
    find = bertkit.pipeline("zero-shot-entities", folders / "words")
    together = find(TEXTS, LABELS, **LOW)
    assert sum(map(len, together)) > 20
    for text, entities in zip(TEXTS, together, strict=True):
        assert is_close(find(text, LABELS, **LOW), entities)


def test_requests_with_other_options_share_a_batch(folders: Path) -> None:
    """A server combines the items of several requests."""
    find = bertkit.pipeline("zero-shot-entities", folders / "words")
    requests = [(TEXTS[1], LABELS[:1], 0.1), (TEXTS[0], MANY, 0.6), (TEXTS[2], LABELS, 0.2)]
    works = [find.prepare([t], labels=labels, threshold=low)[0] for t, labels, low in requests]
    for (text, labels, low), entities in zip(requests, find.run(works), strict=True):
        assert entities
        assert is_close(entities, find(text, labels, threshold=low))


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("multi_label", [True, False])
def test_entities_have_no_conflicts(flat: bool, multi_label: bool, folders: Path) -> None:
    find = bertkit.pipeline("zero-shot-entities", folders / "tokens")
    entities = find(LONG, LABELS, threshold=0.015, flat=flat, multi_label=multi_label)
    spans = [(e.start, e.end) for e in entities]
    assert spans == sorted(spans, key=lambda span: span[0])
    assert len({(e.start, e.end, e.type) for e in entities}) == len(entities)
    assert (len(set(spans)) < len(spans)) == multi_label
    overlaps = [(a, b) for a in spans for b in spans if a[0] < b[0] < a[1]]
    assert bool(overlaps) != flat
    assert all(b[1] <= a[1] for a, b in overlaps)


@pytest.mark.parametrize("name", ["words", "tokens"])
def test_long_text_is_split_truncated_or_rejected(name: str, folders: Path) -> None:
    text, labels = LONG * 3, LABELS
    find = bertkit.pipeline("zero-shot-entities", folders / name)
    windows = find(text, labels, **LOW)
    (cut,) = find.prepare([text], labels=labels, long="truncate")
    assert cut.truncated
    assert len(cut.features) == 1
    first = find(text, labels, long="truncate", **LOW)
    last = cut.item.words[cut.item.windows[1]][0]
    assert max(entity.end for entity in first) < len(text) * 0.8
    assert max(entity.end for entity in windows) > len(text) * 0.9
    assert {(e.start, e.type) for e in first if e.end < last} & {(e.start, e.type) for e in windows}
    assert not any(work.truncated for work in find.prepare([text], labels=labels))
    with pytest.raises(DataError, match="words, but the model reads"):
        find(text, labels, long="error")


def test_windows_do_not_change_short_texts(folders: Path) -> None:
    find = bertkit.pipeline("zero-shot-entities", folders / "words")
    assert find(TEXTS[1], LABELS, **LOW) == find(TEXTS[1], LABELS, long="error", **LOW)


@given(
    st.lists(st.integers(1, 9), max_size=60).map(np.array), st.integers(1, 20), st.integers(1, 20)
)
def test_window_ranges_contain_all_words(
    tokens: np.ndarray[Any, Any], most: int, room: int
) -> None:
    windows = window_ranges(tokens.astype(np.int64), most, room)
    assert {word for start, end in windows for word in range(start, end)} == {*range(len(tokens))}
    for start, end in windows:
        assert 1 <= end - start <= most
        assert end - start == 1 or tokens[start:end].sum() <= room
    for (start, end), (following, _) in pairwise(windows):
        assert following == end - (end - start) // 4


def test_word_longer_than_the_model_is_cut(folders: Path) -> None:
    find = bertkit.pipeline("zero-shot-entities", folders / "tokens")
    text = f"was {'-'.join(['ab'] * 300)} city"
    (work,) = find.prepare([text], labels=LABELS)
    assert max(len(feature.encoding) for feature in work.features) == find.length
    assert [len(feature.token_indices) - len(LABELS) for feature in work.features] == [1, 1, 1]
    assert {entity.end for entity in find(text, LABELS, threshold=0.01)} == {903, len(text)}
    (work,) = find.prepare([text.split()[1]], labels=LABELS, long="truncate")
    assert work.truncated


def test_word_without_token_is_skipped(folders: Path) -> None:
    find = bertkit.pipeline("zero-shot-entities", folders / "tokens")
    entities = find("was city of person", LABELS, **LOW)
    assert entities
    assert is_close(find("\x00 was city of person", LABELS, **LOW), entities, shift=2)
    assert find("", LABELS) == find(" \x00", LABELS) == []


def test_other_types_than_texts_are_rejected(folders: Path) -> None:
    find = bertkit.pipeline("zero-shot-entities", folders / "tokens")
    with pytest.raises(DataError, match="texts: expected strings, got int; pass strings"):
        find(["a b", 3], LABELS)


def test_bf16_is_close_to_fp32(folders: Path) -> None:
    scores: list[dict[Any, float]] = []
    for precision in ("fp32", "bf16"):
        find = bertkit.pipeline("zero-shot-entities", folders / "words", precision=precision)
        entities = find(TEXTS[0], LABELS, threshold=0.01, flat=False)
        scores.append({(e.start, e.end, e.type): e.score for e in entities})
    common = scores[0].keys() & scores[1].keys()
    assert len(common) > 10
    assert all(abs(scores[0][span] - scores[1][span]) < 0.1 for span in common)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": []}, "labels: there are no labels"),
        ({"labels": ["a", "a"]}, "must not contain"),
        ({"labels": [str(number) for number in range(201)]}, "length <= 200"),
        ({"labels": "a"}, "labels: expected `array`, got `str`"),
        ({"labels": ["a", ""]}, "labels"),
        ({"labels": ["a"], "threshold": 1.5}, "threshold"),
        ({"labels": ["a"], "threshold": 0.0}, "threshold"),
        ({"labels": ["a"], "long": "cut"}, "long"),
        ({"labels": [f"long label {i}" for i in range(99)]}, "the labels have .*, .* is 400"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str, folders: Path) -> None:
    find = bertkit.pipeline("zero-shot-entities", folders / "tokens")
    with pytest.raises(ConfigError, match=message):
        find("a b", **options)
