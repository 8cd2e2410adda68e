"""Sentence windows: each sentence once, filled windows, and mirrored documents."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.factories import tiny_tokenizer

from bertkit.data.corpus import Corpus
from bertkit.data.sentence_windows import windows
from bertkit.recipes.prepare import prepare

SIZES = [[1 + (7 * s + 3 * d) % 19 for s in range(2 + 5 * d)] for d in range(9)]
CAPACITY = 40


def prepare_corpus(folder: Path, sizes: list[list[int]]) -> Corpus:
    """Return a corpus whose sentences have these sizes plus one token."""
    with (folder / "text.jsonl").open("w", encoding="utf-8") as file:
        for document in sizes:
            lines = [" ".join(["a"] * size) + "." for size in document]
            file.write(json.dumps({"text": "\n\n".join(lines)}) + "\n")
    tokens = tiny_tokenizer(".a")
    return prepare([folder / "text.jsonl"], tokenizer=tokens, out=folder / "out", processes=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"), SIZES)


def make_windows(corpus: Corpus, *, across: bool = False, fill: bool = False, mirror: bool = False):  # type: ignore[no-untyped-def]
    everything = np.arange(corpus.documents)
    return windows(corpus, everything, CAPACITY, across=across, fill=fill, mirror=mirror)


@pytest.mark.parametrize(
    "options", [{}, {"across": True}, {"fill": True}, {"fill": True, "mirror": True}]
)
def test_sentences_are_in_exactly_one_window(corpus: Corpus, options: dict[str, bool]) -> None:
    found = make_windows(corpus, **options)
    assert found[0, 0] == 0
    assert found[-1, 1] == corpus.sentences
    assert np.array_equal(found[1:, 0], found[:-1, 1])


def tokens(corpus: Corpus, found: np.ndarray) -> np.ndarray:
    return np.diff(corpus.starts[found], axis=1)[:, 0]


def test_windows_fit_capacity_or_fill_it(corpus: Corpus) -> None:
    assert (tokens(corpus, make_windows(corpus)) <= CAPACITY).all()
    filled = make_windows(corpus, fill=True)
    ends = np.isin(filled[:, 1], corpus.document_starts)
    assert (tokens(corpus, filled)[~ends] >= CAPACITY).all()
    without = np.stack([filled[:, 0], filled[:, 1] - 1], axis=1)
    assert (tokens(corpus, without) < CAPACITY).all()


def test_mirror_option_mirrors_every_second_document(corpus: Corpus, tmp_path: Path) -> None:
    turned = prepare_corpus(tmp_path, [document[::-1] for document in SIZES])
    limits, forward = corpus.document_starts, make_windows(turned, fill=True)
    for document in range(corpus.documents):
        selected = slice(
            *np.searchsorted(
                make_windows(corpus, fill=True, mirror=True)[:, 0], limits[document : document + 2]
            )
        )
        found = make_windows(corpus, fill=True, mirror=True)[selected] - limits[document]
        length = limits[document + 1] - limits[document]
        forward_windows = forward[
            slice(*np.searchsorted(forward[:, 0], limits[document : document + 2]))
        ]
        image = length - (forward_windows - limits[document])[::-1, ::-1]
        straight = make_windows(corpus, fill=True)
        straight = straight[
            slice(*np.searchsorted(straight[:, 0], limits[document : document + 2]))
        ]
        expected = image if document % 2 else straight - limits[document]
        assert found.tolist() == expected.tolist()


def test_windows_reserve_space_for_separators(corpus: Corpus) -> None:
    found = make_windows(corpus, across=True)
    inside = [((corpus.document_starts > a) & (corpus.document_starts < b)).sum() for a, b in found]
    sizes = tokens(corpus, found) + np.array(inside)
    assert sum(inside) > 0
    assert (sizes <= CAPACITY).all()
    extended = sizes[:-1] + tokens(corpus, np.stack([found[:-1, 1], found[:-1, 1] + 1], axis=1))
    after = np.isin(found[:-1, 1], corpus.document_starts)
    # No further sentence fits.
    assert (extended + after > CAPACITY).all()
