"""Corpus files: writing, reading, and detection of damage."""

from __future__ import annotations

import json
import string
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import tiny_tokenizer

from bertkit.data.corpus import (
    FORMAT,
    PARTS,
    SENTENCE_LIMIT,
    Corpus,
    CorpusSource,
    Made,
    Manifest,
    Shards,
    cut_sentences,
    shard_name,
    write_manifest,
)
from bertkit.errors import DataError

Documents = list[list[list[int]]]
"""Token ids of each sentence of each document."""

DOCUMENTS: Documents = [
    [[5, 6, 7], [8]],
    [[9] * 300, [10, 11]],
    [[], []],
    [[12, 13], [], [14]],
    [[15]],
]


def write(folder: Path, documents: Documents, *, limit: int = 1000, batch: int = 2) -> Made:
    """Write documents in batches as one set of shards."""
    folder.mkdir(parents=True)
    shards = Shards(folder / "a", np.dtype("<u2"), limit)
    for i in range(0, len(documents), batch):
        add(shards, documents[i : i + batch], continues=False)
    return shards.close()


def add(shards: Shards, documents: Documents, *, continues: bool) -> None:
    sentences = [s for d in documents for s in d]
    tokens = np.array([t for s in sentences for t in s], np.uint16)
    counts = np.array([len(s) for s in sentences], np.int64)
    shards.add(tokens, counts, [len(d) for d in documents], continues)


def finish(folder: Path, made: Made) -> Corpus:
    for number in range(len(made.shards)):
        for part in PARTS:
            (folder / f"a-{number:03d}.{part}").rename(folder / shard_name(number, part))
    tokens = tiny_tokenizer(string.ascii_lowercase)
    tokens.save(folder / "tokenizer")
    manifest = Manifest(
        format=FORMAT,
        tokenizer=tokens.fingerprint,
        # The tests use any id that fits.
        vocab_size=1 << 16,
        dtype="uint16",
        shards=made.shards,
        sources=[CorpusSource("a.txt", 1)],
        left_out=made.left_out,
        cut=made.cut,
    )
    write_manifest(folder, manifest)
    return Corpus.open(folder)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return finish(tmp_path / "corpus", write(tmp_path / "corpus", DOCUMENTS, limit=3))


def read_back(corpus: Corpus) -> list[list[int]]:
    """Return the tokens of each document, read sentence by sentence."""
    bounds = corpus.document_starts
    return [
        [int(t) for i in range(first, last) for t in corpus.slice(i, i + 1)]
        for first, last in pairwise(bounds)
    ]


SENTENCES = st.lists(st.lists(st.integers(0, 65535), max_size=300), max_size=4)


@given(
    documents=st.lists(SENTENCES, min_size=1, max_size=8),
    limit=st.integers(1, 400),
    batch=st.integers(1, 5),
)
@settings(max_examples=50)
def test_read_documents_equal_written_documents(
    tmp_path_factory: pytest.TempPathFactory, documents: Documents, limit: int, batch: int
) -> None:
    folder = tmp_path_factory.mktemp("c") / "corpus"
    made = write(folder, documents, limit=limit, batch=batch)
    corpus = finish(folder, made)
    tokens = [[t for s in d for t in s] for d in documents]
    assert read_back(corpus) == [t for t in tokens if t]
    assert made.left_out == sum(not t for t in tokens)
    assert made.cut == 0
    assert corpus.tokens == sum(map(len, tokens)) == corpus.starts[-1]
    assert corpus.sentences == len(corpus.starts) - 1 == corpus.document_starts[-1]
    assert corpus.documents == len(corpus.document_starts) - 1
    corpus.verify()


def test_indices_count_across_shards(corpus: Corpus) -> None:
    assert len(corpus.manifest.shards) > 1
    assert corpus.document_starts.tolist() == [0, 2, 6, 8, 9]
    assert np.diff(corpus.starts).tolist() == [3, 1, 100, 100, 100, 2, 2, 1, 1]
    assert corpus.slice(0, 2).tolist() == [5, 6, 7, 8]
    assert corpus.slice(2, 6).tolist() == [9] * 300 + [10, 11]
    assert corpus.slice(8, 9).tolist() == [15]
    assert corpus.slice(3, 3).tolist() == []
    assert corpus.slice(0, 1).dtype == np.uint16
    assert not corpus.slice(0, 1).flags.writeable
    for first, last in ((0, 9), (9, 10), (-1, 1), (2, 1)):
        with pytest.raises(ValueError, match="not in one shard"):
            corpus.slice(first, last)


def test_document_continues_across_batches_within_a_shard(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    shards = Shards(tmp_path / "c" / "a", np.dtype("<u2"), 10)
    add(shards, [[[1, 2]], [[3]]], continues=False)
    add(shards, [[[4] * 4]], continues=True)
    # Tokens 3, 4, and 5 are one document.
    add(shards, [[[5] * 6], [[6]]], continues=True)
    add(shards, [[[7] * 20]], continues=True)
    # The document has 21 tokens by now, so it is split here.
    add(shards, [[[8]]], continues=True)
    corpus = finish(tmp_path / "c", shards.close())
    expected = [[1, 2], [3] + [4] * 4 + [5] * 6, [6] + [7] * 20, [8]]
    assert read_back(corpus) == expected
    assert corpus.manifest.cut == 1
    assert [s.documents for s in corpus.manifest.shards] == [3, 1]


def test_document_without_start_is_counted_as_cut(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    shards = Shards(tmp_path / "c" / "a", np.dtype("<u2"), 10)
    add(shards, [[[1]], [[2]]], continues=True)
    made = shards.close()
    assert (made.cut, made.shards[0].documents) == (1, 2)


@given(st.lists(st.integers(0, 3000), max_size=20))
def test_long_sentences_are_split_evenly(lengths: list[int]) -> None:
    counts, num_parts = cut_sentences(np.array(lengths, np.int64))
    assert len(counts) == num_parts.sum()
    parts = np.split(counts, np.cumsum(num_parts)[:-1]) if lengths else []
    for length, part in zip(lengths, parts, strict=True):
        assert part.sum() == length
        assert len(part) == -(-length // SENTENCE_LIMIT)
        assert not len(part) or (part.min() > 0 and part.max() - part.min() <= 1)


def test_corpus_uses_two_bytes_per_token(tmp_path: Path) -> None:
    documents = [[[7] * 22] * 20] * 50
    made = write(tmp_path / "c", documents)
    size = sum(f.stat().st_size for f in (tmp_path / "c").iterdir())
    assert size / sum(s.tokens for s in made.shards) < 2.06


# ---- Damaged files


def test_open_rejects_directory_without_manifest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a corpus.*bertkit prepare"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize("part", PARTS)
def test_open_reports_missing_and_truncated_files(corpus: Corpus, part: str) -> None:
    path = corpus.folder / shard_name(1, part)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(
        DataError, match=rf"shard-00001\.{part}: expected {len(data)} bytes, got {len(data) - 1}"
    ):
        Corpus.open(corpus.folder)
    path.unlink()
    with pytest.raises(DataError, match=rf"shard-00001\.{part}: file not found"):
        Corpus.open(corpus.folder)


@pytest.mark.parametrize("part", PARTS)
def test_verify_reports_damaged_file(corpus: Corpus, part: str) -> None:
    path = corpus.folder / shard_name(1, part)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"shard-00001\.{part}: damaged"):
        Corpus.open(corpus.folder).verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2, expected 1; prepare the corpus again"),
        ({"colour": 1}, "unknown field `colour`"),
        ({"vocab_size": "x"}, r"Expected `int`, got `str` - at `\$.vocab_size`"),
        ({"dtype": "int8"}, "Invalid enum value 'int8'"),
    ],
)
def test_open_rejects_invalid_manifests(
    corpus: Corpus, change: dict[str, object], message: str
) -> None:
    path = corpus.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        Corpus.open(corpus.folder)
    path.write_bytes(b'{"format": \xff')
    with pytest.raises(DataError, match="not a valid manifest"):
        Corpus.open(corpus.folder)
    path.write_text("{}")
    with pytest.raises(DataError, match="not a valid manifest"):
        Corpus.open(corpus.folder)


def test_open_rejects_missing_hashes(corpus: Corpus) -> None:
    path = corpus.folder / "manifest.json"
    data = json.loads(path.read_text())
    del data["shards"][0]["sha256"]["tokens"]
    path.write_text(json.dumps(data))
    with pytest.raises(DataError, match=r"shards\[0\].sha256"):
        Corpus.open(corpus.folder)


def test_tokenizer_rejects_changed_vocabulary(corpus: Corpus, tmp_path: Path) -> None:
    assert corpus.tokenizer().fingerprint == corpus.manifest.tokenizer
    vocab = corpus.folder / "tokenizer" / "tokenizer.json"
    vocab.write_text(vocab.read_text().replace('"z"', '"zz"'))
    with pytest.raises(DataError, match="differs from the tokenizer in the manifest"):
        corpus.tokenizer()
