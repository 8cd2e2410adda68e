"""Scoring a search, and rows mined from it that training reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bertkit.errors import ConfigError, DataError
from bertkit.extensions.search.evaluation import evaluate_retrieval, mine
from bertkit.extensions.search.index import index
from bertkit.extensions.search.searcher import Searcher
from bertkit.tasks import find
from bertkit.tasks.task import Reading

LETTERS = "abcdefghijklmnop"


@pytest.fixture(scope="module")
def world(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Searcher, Path, Path]:
    """A document of each letter, and queries that repeat one: the first is the right one."""
    folder = tmp_path_factory.mktemp("judge")
    rows = [{"id": letter, "text": f"{letter} {letter}"} for letter in LETTERS]
    (folder / "docs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    index([folder / "docs.jsonl"], model=tiny, store=str(folder / "store"), precision="fp32")
    queries, judgments = folder / "queries.tsv", folder / "judgments.tsv"
    queries.write_text("".join(f"q{x}\t{x} {x}\n" for x in LETTERS[:5]), encoding="utf-8")
    judgments.write_text("".join(f"q{x}\t{x}\t2\n" for x in LETTERS[:4]), encoding="utf-8")
    return Searcher(str(folder / "store")), queries, judgments


def test_the_right_one_first_is_everything(world: tuple[Searcher, Path, Path]) -> None:
    searcher, queries, judgments = world
    scores = evaluate_retrieval(searcher, queries=queries, judgments=judgments)
    assert scores.pop("queries") == 4
    assert set(scores.values()) == {1.0}


def test_the_wrong_one_first_is_less(world: tuple[Searcher, Path, Path], tmp_path: Path) -> None:
    searcher, queries, _ = world
    wrong = tmp_path / "j.tsv"
    wrong.write_text("qa\tb\t1\nqa\tnowhere\t1\n", encoding="utf-8")
    scores = evaluate_retrieval(searcher, queries=queries, judgments=wrong)
    assert 0 < scores["mrr"] <= 0.5
    assert scores["recall@100"] == 0.5


def test_documents_that_are_not_in_the_store_are_no_zeros(
    world: tuple[Searcher, Path, Path], tmp_path: Path
) -> None:
    searcher, queries, _ = world
    swapped = tmp_path / "j.txt"  # the third column is TREC's 0, and the second the document
    swapped.write_text("qa a 0 1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"j.txt: .* none of its relevant .* \(1, such as '0'"):
        evaluate_retrieval(searcher, queries=queries, judgments=swapped)
    with pytest.raises(DataError, match="check the ids, and that the columns are query, document"):
        mine(searcher, queries=queries, judgments=swapped, out=tmp_path / "rows.jsonl")
    assert not (tmp_path / "rows.jsonl").exists()


def test_map_sees_a_thousand_documents(tiny: Path, tmp_path: Path) -> None:
    rows = [{"id": str(n), "text": "a"} for n in range(300)] + [{"id": "far", "text": "z q"}]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    index([tmp_path / "docs.jsonl"], model=tiny, store=str(tmp_path / "store"), precision="fp32")
    (tmp_path / "q.tsv").write_text("1\ta\n", encoding="utf-8")
    (tmp_path / "j.txt").write_text("1 0 far 1\n", encoding="utf-8")
    searcher = Searcher(str(tmp_path / "store"))
    scores = evaluate_retrieval(searcher, queries=tmp_path / "q.tsv", judgments=tmp_path / "j.txt")
    assert scores["recall@100"] == 0.0
    assert scores["map"] == pytest.approx(1 / 301)
    read: list[int] = []
    searcher.rerank = lambda query, texts: read.append(len(texts)) or np.zeros(len(texts))  # type: ignore
    assert (
        evaluate_retrieval(searcher, queries=tmp_path / "q.tsv", judgments=tmp_path / "j.txt")[
            "map"
        ]
        == 0.0
    )
    assert read == [100]  # a re-ranker reads no more than it does in a search


def test_rows_are_what_training_reads(world: tuple[Searcher, Path, Path], tmp_path: Path) -> None:
    searcher, queries, judgments = world
    said = mine(
        searcher, queries=queries, judgments=judgments, out=tmp_path / "s.jsonl", negatives=3
    )
    assert said == {"queries": 4, "rows": 4}
    examples, _ = find("similarity").reader.read(tmp_path / "s.jsonl", Reading(), labelled=True)
    for letter, example in zip(LETTERS, examples, strict=False):
        anchor, positive, *negatives = example.texts
        assert anchor == positive == f"{letter} {letter}"
        assert len(set(negatives) - {positive}) == 3
    mine(
        searcher,
        queries=queries,
        judgments=judgments,
        out=tmp_path / "r.jsonl",
        learner="respond",
        negatives=2,
    )
    examples, _ = find("respond").reader.read(tmp_path / "r.jsonl", Reading(), labelled=True)
    assert [len(e.choices) for e in examples] == [3] * 4
    assert all(e.choices[e.answer] == e.text for e in examples)


def test_margins_are_the_re_rankers(
    world: tuple[Searcher, Path, Path], tiny: Path, tmp_path: Path
) -> None:
    from bertkit.checkpoint.directory import load, save

    searcher, queries, judgments = world
    loaded = load(tiny, heads=["classify"], labels=["score"])
    save(tmp_path / "cross", loaded.model, loaded.tokenizer, loaded.family, labels=["score"])
    judge = Searcher(searcher.store, rerank=tmp_path / "cross")
    said = mine(
        judge,
        queries=queries,
        judgments=judgments,
        out=tmp_path / "m.jsonl",
        negatives=2,
        margins=True,
    )
    assert said["rows"] == 8
    assert judge.rerank is not None
    for line in (tmp_path / "m.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        right, wrong = judge.rerank(row["anchor"], [row["positive"], row["negative"]])
        assert row["label"] == pytest.approx(right - wrong, abs=1e-5)


def test_what_cannot_be_mined_is_refused(
    world: tuple[Searcher, Path, Path], tmp_path: Path
) -> None:
    searcher, queries, judgments = world
    out = tmp_path / "rows.jsonl"
    with pytest.raises(ConfigError, match="margins= requires rerank="):
        mine(searcher, queries=queries, judgments=judgments, out=out, margins=True)
    with pytest.raises(ConfigError, match="negatives= must be at least 1"):
        mine(searcher, queries=queries, judgments=judgments, out=out, negatives=0)
    with pytest.raises(DataError, match="no query has a relevant document in the store and 16 neg"):
        mine(searcher, queries=queries, judgments=judgments, out=out, negatives=16)
    assert not out.exists()
    out.write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        mine(searcher, queries=queries, judgments=judgments, out=out)
    assert out.read_text() == "mine"
