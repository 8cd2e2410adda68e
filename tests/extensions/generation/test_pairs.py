"""Prepared translation pairs: storage, batches, and rejected files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.extensions.generation.test_marian_tokenizer import sentences

from bertkit.data.collate import pack_by_length
from bertkit.errors import BertkitError, ConfigError, DataError
from bertkit.extensions.generation.pairs import Pairs, PairSamples, pack_pairs, split_pairs
from bertkit.extensions.generation.prepare_pairs import prepare_pairs
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def directory(english: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with texts, the same texts in uppercase, and a vocabulary."""
    directory = tmp_path_factory.mktemp("pairs")
    lines = [line for line in sentences(english) if len(line) < 120][:400]
    (directory / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    (directory / "b.txt").write_text("\n".join(line.upper() for line in lines), encoding="utf-8")
    files = [directory / "a.txt", directory / "b.txt"]
    train_vocabulary(files, out=directory / "v", kind="unigram", use="translate", size=500)
    return directory


def prepare(directory: Path, out: Path, **files: Any) -> Pairs:
    return prepare_pairs(tokenizer=directory / "v", out=out, **files)


@pytest.fixture(scope="module")
def pairs(directory: Path) -> Pairs:
    texts = {"source": directory / "a.txt", "target": directory / "b.txt"}
    return prepare(directory, directory / "pairs", **texts)


def test_samples_match_encoded_texts(directory: Path, pairs: Pairs) -> None:
    tokenizer = pairs.tokenizer()
    lines = (directory / "a.txt").read_text(encoding="utf-8").split("\n")
    samples = PairSamples(pairs, tokenizer, start=tokenizer.pad, length=1000)
    assert len(samples) == len(lines) == pairs.manifest.pairs
    for number, line in enumerate(lines[:50]):
        pair = samples.sample(0, number)
        assert pair.source.tolist() == tokenizer.encode(line).ids.tolist()
        assert pair.labels.tolist() == tokenizer.encode(line.upper()).ids.tolist()
        assert pair.ids.tolist() == [tokenizer.pad, *pair.labels[:-1]]
        assert len({*pair.source.tolist()}) > 2


def test_batches_contain_each_pair_once_with_its_source(pairs: Pairs) -> None:
    tokenizer = pairs.tokenizer()
    samples = PairSamples(pairs, tokenizer, start=tokenizer.pad, length=1000)
    sampled = samples.batch(0, 120)
    batched = []
    for batch in pack_by_length(sampled, pack_pairs, 900):
        assert batch.source is not None
        assert batch.source_order is not None
        assert batch.tokens <= 900
        sources = batch.source.ids.split(list(batch.source.layout.lengths))
        sizes = list(batch.layout.lengths)
        sides = batch.ids.split(sizes), batch.targets["lm"].split(sizes)
        for order, ids, labels in zip(batch.source_order.tolist(), *sides, strict=True):
            batched.append((*sources[order].tolist(), -1, *ids.tolist(), -1, *labels.tolist()))
    expected = [(*p.source.tolist(), -1, *p.ids.tolist(), -1, *p.labels.tolist()) for p in sampled]
    assert sorted(batched) == sorted(expected)


def test_split_is_disjoint_and_long_pairs_are_skipped(pairs: Pairs) -> None:
    train_rows, held_out = split_pairs(pairs, 0.1)
    assert len(held_out) == 40
    assert sorted([*train_rows, *held_out]) == list(range(400))
    tokenizer = pairs.tokenizer()
    short = PairSamples(pairs, tokenizer, start=0, length=20, documents=train_rows)
    assert len(short) + short.skipped == 360
    assert 0 < short.skipped < 360
    assert max(len(short.sample(0, i).source) for i in range(len(short))) <= 20
    with pytest.raises(DataError, match="every pair has a text of more than 2 tokens"):
        PairSamples(pairs, tokenizer, start=0, length=2)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a\nb\nc\n", "x\ny\n", r"s:3: .*t ends before this line \(3 and 2 lines\)"),
        ("a\n", "x\ny\n", r"t:2: .*s ends before this line"),
        ("a\n\nc", "x\ny\nz", "s:2: the text is empty"),
        ("a\nb\nc", "x\ny\n \n", "t:3: the text is empty"),
    ],
)
def test_prepare_pairs_rejects_files_that_do_not_match(
    directory: Path, tmp_path: Path, source: str, target: str, message: str
) -> None:
    (tmp_path / "s").write_text(source, encoding="utf-8")
    (tmp_path / "t").write_text(target, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        prepare(directory, tmp_path / "p", source=tmp_path / "s", target=tmp_path / "t")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("rows.tsv", "source\ttarget\na b\tA B\nc\tC\n", {}),
        ("rows.csv", "en,id,de\nA B,1,a b\nC,2,c\n",
         {"source_column": "de", "target_column": "en"}),
        ("rows.jsonl", '{"target": "A B", "source": "a b"}\n{"target": "C", "source": "c"}\n', {}),
    ],
)  # fmt: skip
def test_table_gives_same_pairs_as_two_files(
    directory: Path, tmp_path: Path, name: str, content: str, columns: dict[str, str]
) -> None:
    (tmp_path / "s").write_text("a b\nc\n", encoding="utf-8")
    (tmp_path / "t").write_text("A B\nC\n", encoding="utf-8")
    (tmp_path / name).write_text(content, encoding="utf-8")
    texts = {"source": tmp_path / "s", "target": tmp_path / "t"}
    expected = prepare(directory, tmp_path / "one", **texts)
    rows = prepare(directory, tmp_path / "two", file=tmp_path / name, **columns)
    assert rows.manifest.sha256 == expected.manifest.sha256


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("source\ttarget\na\tA\nb\t \n", {}, r"rows\.tsv:3: the text is empty"),
        ("de\ten\tfr\na\tA\tx\n", {"source_column": "de"}, r"for the target; set target_column= "),
        ("de\ten\na\tA\n", {}, "for the source and the target; set source_column= and"),
        ("de\ten\na\tA\n", {"source_column": "nl"}, "no column 'nl'"),
    ],
)
def test_prepare_pairs_rejects_invalid_rows(
    directory: Path, tmp_path: Path, content: str, options: dict[str, str], message: str
) -> None:
    file = tmp_path / "rows.tsv"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        prepare(directory, tmp_path / "p", file=file, **options)
    assert not (tmp_path / "p").exists()


def test_prepare_pairs_rejects_missing_or_conflicting_inputs(
    directory: Path, tmp_path: Path
) -> None:
    a, b = directory / "a.txt", directory / "b.txt"
    for files in ({"source": a}, {"source": a, "target": b, "file": a}):
        with pytest.raises(ConfigError, match="pass either source= and target=, or file="):
            prepare(directory, tmp_path / "p", **files)
    with pytest.raises(ConfigError, match="require file="):
        prepare(directory, tmp_path / "p", source=a, target=b, source_column="de")


def test_open_rejects_damaged_directory(pairs: Pairs, directory: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a directory of pairs"):
        Pairs.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"not a valid manifest .*; run `bertkit prepare"):
        Pairs.open(tmp_path)
    manifest = json.loads((pairs.folder / "manifest.json").read_text(encoding="utf-8"))
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(DataError, match=r"source\.tokens: missing or truncated"):
        Pairs.open(tmp_path)
    tokenizer = Tokenizer.load(directory / "v")
    assert tokenizer.fingerprint == manifest["tokenizer"]
    with pytest.raises(BertkitError, match="already exists"):
        prepare(directory, pairs.folder, source=directory / "a.txt", target=directory / "b.txt")
    assert np.array_equal(Pairs.open(pairs.folder).text("source", 3), pairs.text("source", 3))
