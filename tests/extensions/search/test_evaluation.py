"""Retrieval scores, and training rows with hard negatives mined from a search."""

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


Files = dict[str, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Queries that repeat a letter, and judgments."""
    folder = tmp_path_factory.mktemp("judge")
    queries, judgments = folder / "queries.tsv", folder / "judgments.tsv"
    queries.write_text("".join(f"q{x}\t{x} {x}\n" for x in LETTERS[:5]), encoding="utf-8")
    judgments.write_text("".join(f"q{x}\t{x}\t2\n" for x in LETTERS[:4]), encoding="utf-8")
    return {"queries": queries, "judgments": judgments}


@pytest.fixture(scope="module")
def searcher(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Searcher with one document per letter."""
    folder = tmp_path_factory.mktemp("search")
    rows = [{"id": letter, "text": f"{letter} {letter}"} for letter in LETTERS]
    (folder / "docs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    index([folder / "docs.jsonl"], model=tiny, store=str(folder / "store"), precision="fp32")
    return Searcher(str(folder / "store"))


def test_scores_are_one_if_relevant_document_is_first(searcher: Searcher, files: Files) -> None:
    scores = evaluate_retrieval(searcher, **files)
    assert scores.pop("queries") == 4
    assert set(scores.values()) == {1.0}


def test_scores_decrease_if_irrelevant_document_is_first(
    searcher: Searcher, files: Files, tmp_path: Path
) -> None:
    wrong = tmp_path / "j.tsv"
    wrong.write_text("qa\tb\t1\nqa\tnowhere\t1\n", encoding="utf-8")
    scores = evaluate_retrieval(searcher, **files | {"judgments": wrong})
    assert 0 < scores["mrr"] <= 0.5
    assert scores["recall@100"] == 0.5


def test_evaluation_rejects_judgments_without_stored_documents(
    searcher: Searcher, files: Files, tmp_path: Path
) -> None:
    # The third column is TREC's 0, and the second column is the document.
    swapped_columns = tmp_path / "j.txt"
    swapped_columns.write_text("qa a 0 1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"j.txt: .* none of the relevant .* \(1, such as '0'"):
        evaluate_retrieval(searcher, **files | {"judgments": swapped_columns})
    with pytest.raises(DataError, match="check the ids, and that the columns are query, document"):
        mine(searcher, **files | {"judgments": swapped_columns}, out=tmp_path / "rows.jsonl")
    assert not (tmp_path / "rows.jsonl").exists()


def test_map_includes_a_thousand_documents(tiny: Path, tmp_path: Path) -> None:
    rows = [{"id": str(n), "text": "a"} for n in range(300)] + [{"id": "far", "text": "z q"}]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    index([tmp_path / "docs.jsonl"], model=tiny, store=str(tmp_path / "store"), precision="fp32")
    (tmp_path / "q.tsv").write_text("1\ta\n", encoding="utf-8")
    (tmp_path / "j.txt").write_text("1 0 far 1\n", encoding="utf-8")
    searcher = Searcher(str(tmp_path / "store"))
    files = {"queries": tmp_path / "q.tsv", "judgments": tmp_path / "j.txt"}
    scores = evaluate_retrieval(searcher, **files)
    assert scores["recall@100"] == 0.0
    assert scores["map"] == pytest.approx(1 / 301)
    read: list[int] = []
    searcher.rerank = lambda query, texts: read.append(len(texts)) or np.zeros(len(texts))  # type: ignore
    assert evaluate_retrieval(searcher, **files)["map"] == 0.0
    # The re-ranker scores as many documents as in a search.
    assert read == [100]


def test_mined_rows_are_valid_training_data(
    searcher: Searcher, files: Files, tmp_path: Path
) -> None:
    counts = mine(searcher, **files, out=tmp_path / "s.jsonl", negatives=3)
    assert counts == {"queries": 4, "rows": 4}
    examples, _ = find("similarity").reader.read(tmp_path / "s.jsonl", Reading(), labeled=True)
    for letter, example in zip(LETTERS, examples, strict=False):
        anchor, positive, *negatives = example.texts
        assert anchor == positive == f"{letter} {letter}"
        assert len(set(negatives) - {positive}) == 3
    mine(searcher, **files, out=tmp_path / "r.jsonl", learner="respond", negatives=2)
    examples, _ = find("respond").reader.read(tmp_path / "r.jsonl", Reading(), labeled=True)
    assert [len(e.choices) for e in examples] == [3] * 4
    assert all(e.choices[e.answer] == e.text for e in examples)


def test_mined_margins_equal_reranker_scores(
    searcher: Searcher, files: Files, tiny: Path, tmp_path: Path
) -> None:
    from bertkit.checkpoint.directory import load, save

    loaded = load(tiny, heads=["classify"], labels=["score"])
    save(tmp_path / "cross", loaded.model, loaded.tokenizer, loaded.family, labels=["score"])
    judge = Searcher(searcher.store, rerank=tmp_path / "cross")
    counts = mine(judge, **files, out=tmp_path / "m.jsonl", negatives=2, margins=True)
    assert counts["rows"] == 8
    assert judge.rerank is not None
    for line in (tmp_path / "m.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        right, wrong = judge.rerank(row["anchor"], [row["positive"], row["negative"]])
        assert row["label"] == pytest.approx(right - wrong, abs=1e-5)


def test_mining_rejects_invalid_arguments(searcher: Searcher, files: Files, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    with pytest.raises(ConfigError, match="margins= requires rerank="):
        mine(searcher, **files, out=out, margins=True)
    with pytest.raises(ConfigError, match="negatives= must be at least 1"):
        mine(searcher, **files, out=out, negatives=0)
    with pytest.raises(DataError, match=r"no query has both a relevant document .* and 16 neg"):
        mine(searcher, **files, out=out, negatives=16)
    assert not out.exists()
    out.write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        mine(searcher, **files, out=out)
    assert out.read_text() == "mine"
