"""Searches: ranking of documents, hybrid search, prompts, and rejected queries and models."""

from __future__ import annotations

import copy
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import ConfigError, DataError, SearchError
from bertkit.extensions.search.documents import DocumentColumns
from bertkit.extensions.search.index import index
from bertkit.extensions.search.searcher import Searcher, best_documents, by_document, fuse_ranks
from bertkit.extensions.search.store import Hit

TEXTS = {
    "loop": "The break statement ends the nearest enclosing loop early.",
    "cats": "Cats sleep most of the day, and hunt at dusk.",
    "wing": "A wing lifts because air flows faster above it.",
    "tea": "Tea is made of leaves in hot water.",
}


def hit(id: str, passage: int = 0, score: float = 0.0) -> Hit:
    return Hit(id, score, f"{id} {passage}", 0, 0, passage, "", {})


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3)), max_size=40),
    st.integers(1, 7),
)
def test_best_documents_returns_every_document(keys: list[tuple[str, int]], top: int) -> None:
    ranked = [hit(*key) for key in dict.fromkeys(keys)]
    counts: list[int] = []

    def search(count: int) -> list[Hit]:
        counts.append(count)
        return ranked[:count]

    assert best_documents(search, top) == by_document(ranked)[:top]
    assert len(set(counts)) == len(counts)


def test_best_documents_returns_equal_texts_once() -> None:
    same = msgspec.structs.replace(hit("b"), text=" a\n0")
    hits = [hit("a"), same, hit("b", 1), hit("c"), hit("a", 1)]
    assert [h.id for h in by_document(hits)] == ["a", "c"]
    assert [h.id for h in by_document(hits, distinct=False)] == ["a", "b", "c"]
    copies = [msgspec.structs.replace(hit(f"copy{i}"), text="a 0") for i in range(50)]
    hits = [hit("a"), *copies, hit("c"), hit("d")]
    assert [h.id for h in best_documents(lambda count: hits[:count], 3)] == ["a", "c", "d"]


@pytest.mark.parametrize("hybrid", [False, True])
def test_search_returns_one_copy_of_equal_documents(
    hybrid: bool, minilm: Path, tmp_path: Path
) -> None:
    copies = {f"tea{i}.txt": TEXTS["tea"] for i in range(5)} | {"tea.md": f"{TEXTS['tea']}\n"}
    others = {f"{id}.txt": text for id, text in TEXTS.items() if id != "tea"}
    for name, text in (copies | others).items():
        (tmp_path / "docs" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
    store_path = str(tmp_path / "store")
    index([tmp_path / "docs"], model=minilm, store=store_path)
    searcher = Searcher(store_path)
    hits = searcher("a hot drink of tea leaves", top=4, hybrid=hybrid)
    assert len({h.text.strip() for h in hits}) == len(hits) == 4
    assert hits[0].id in copies
    assert len(searcher.many(["tea"], top=9, hybrid=hybrid, distinct=False)[0]) == 9


def test_fuse_ranks_adds_reciprocal_ranks() -> None:
    first, second = [hit("a"), hit("b"), hit("c")], [hit("c"), hit("d")]
    hits = fuse_ranks([first, second])
    assert [h.id for h in hits] == ["c", "a", "b", "d"]
    assert hits[0].score == pytest.approx(1 / 63 + 1 / 61)


@pytest.fixture(scope="module")
def store(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("search")
    table = folder / "docs.csv"
    lines = [f'{id},"{text}",{len(text)}' for id, text in TEXTS.items()]
    table.write_text("\n".join(["id,text,size", *lines]), encoding="utf-8")
    store_path = str(folder / "store")
    index([table], model=minilm, store=store_path, columns=DocumentColumns(keep=("size:number",)))
    return store_path


@pytest.fixture(scope="module")
def searcher(store: str) -> Searcher:
    return Searcher(store)


def test_search_returns_documents_of_similar_meaning(searcher: Searcher) -> None:
    hits = searcher("How do I get out of a for loop?", top=2)
    assert hits[0].id == "loop"
    assert hits[0].text == TEXTS["loop"]
    assert len(hits) == 2
    assert 1.0 >= hits[0].score > hits[1].score
    several = searcher.many(["a hot drink", "pets"], top=1)
    assert [hits[0].id for hits in several] == ["tea", "cats"]


def test_hit_contains_its_best_sentence(minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# Work\n\nCats sleep. You have thirty days of holiday a year. Dogs bark.\n\n"
        "| drink | price |\n|---|---|\n| tea | 2 |\n- Bread costs 5.\n",
        encoding="utf-8",
    )
    store_path = str(tmp_path / "store")
    index([tmp_path / "a.md"], model=minilm, store=store_path)
    searcher = Searcher(store_path)
    for query, sentence in (
        ("vacation", "You have thirty days of holiday a year."),
        ("price of tea", "| tea | 2 |"),
        ("price of bread", "- Bread costs 5."),
    ):
        (best,) = searcher(query, sentences=True)
        assert (best.sentence, best.heading) == (sentence, "Work")
    assert searcher("vacation")[0].sentence == ""
    assert searcher("vacation", where=["id=b"], sentences=True) == []


def test_hybrid_search_finds_rare_words(searcher: Searcher) -> None:
    assert searcher("dusk", hybrid=True)[0].id == "cats"
    assert {h.id for h in searcher("dusk", hybrid=True)} == set(TEXTS)


def test_search_applies_conditions(searcher: Searcher) -> None:
    size = len(TEXTS["tea"])
    assert [h.id for h in searcher("a loop", where=[f"size<={size}"])] == ["tea"]
    with pytest.raises(ConfigError, match="did you mean 'size'"):
        searcher("a loop", where=["sise>3"])


def test_cross_encoder_sorts_hits(store: str, tiny: Path, tmp_path: Path, minilm: Path) -> None:
    from bertkit.checkpoint.directory import load, save

    loaded = load(minilm, heads=["classify"], labels=["score"])
    save(tmp_path / "cross", loaded.model, loaded.tokenizer, loaded.family, labels=["score"])
    searcher = Searcher(store, rerank=tmp_path / "cross")
    hits = searcher("a loop")
    assert {h.id for h in hits} == set(TEXTS)
    assert searcher.rerank is not None
    scores = searcher.rerank("a loop", [h.text for h in hits])
    np.testing.assert_allclose([h.score for h in hits], scores, atol=1e-6)
    assert sorted(scores, reverse=True) == list(scores)


def test_search_returns_other_documents_besides_long_document(searcher: Searcher) -> None:
    """A hundred passages of one document have higher scores than all other documents."""
    ranked = [hit("long", i) for i in range(150)] + [hit(f"short{i}") for i in range(9)]

    class Stub:
        spec = searcher.store.spec

        def by_vector(self, vector: object, count: int, filters: object) -> list[Hit]:
            return ranked[:count]

        def by_words(self, query: str, count: int, filters: object) -> list[Hit]:
            return ranked[:count]

    stubbed = copy.copy(searcher)
    stubbed.store = Stub()  # type: ignore[assignment]
    plain = [h.id for h in stubbed("a", top=10)]
    assert len(plain) == 10
    assert [h.id for h in stubbed("a", top=10, hybrid=True)] == plain
    stubbed.rerank = lambda query, texts: np.arange(len(texts), 0.0, -1.0)  # type: ignore
    assert [h.id for h in stubbed("a", top=10)] == plain


@pytest.mark.parametrize("query", ["", " \n"])
def test_search_rejects_empty_query(query: str, searcher: Searcher) -> None:
    with pytest.raises(DataError, match="the query is empty"):
        searcher(query)


def test_search_rejects_or_truncates_long_query(searcher: Searcher) -> None:
    query = "break loop " * 10_000
    with pytest.raises(DataError, match="20002 tokens, but the limit is 256"):
        searcher(query)
    assert searcher(query, long="truncate")[0].id == "loop"
    with pytest.raises(ConfigError, match="queries do not support"):
        searcher(query, long="window")
    with pytest.raises(ConfigError, match="top must be at least 1, got 0"):
        searcher("loop", top=0)


def test_searcher_rejects_other_model(store: str, tiny: Path) -> None:
    with pytest.raises(SearchError, match=r"was made with the model .* differ"):
        Searcher(store, model=tiny)


@pytest.fixture(scope="module")
def asymmetric(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained model with the prompts of E5."""
    folder = tmp_path_factory.mktemp("asymmetric") / "model"
    shutil.copytree(minilm, folder)
    settings = {"prompts": {"query": "query: ", "document": "passage: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [json.dumps({"id": id, "text": text}) for id, text in TEXTS.items()]
    path = tmp_path / "docs.jsonl"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def reference(model: Path) -> Any:
    """Load a model with sentence-transformers."""
    library = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    return library.SentenceTransformer(str(model), device="cpu")


def test_prompts_match_sentence_transformers(
    asymmetric: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    st_model = reference(asymmetric)
    query = "a hot drink"
    expected = st_model.encode_document(list(TEXTS.values())) @ st_model.encode_query(query)
    bare = st_model.encode(list(TEXTS.values())) @ st_model.encode(query)
    store_path = str(tmp_path / "store")
    index([table], model=asymmetric, store=store_path, precision="fp32")
    log_line = "prompts: 'passage: ' before each passage, 'query: ' before each query"
    assert log_line in capsys.readouterr().err
    scores = {hit.id: hit.score for hit in Searcher(store_path)(query)}
    assert "prompt: 'query: '" in capsys.readouterr().err
    np.testing.assert_allclose([scores[id] for id in TEXTS], expected, atol=1e-6)
    assert abs(expected - bare).max() > 1e-2
    again = partial(index, [table], model=asymmetric, store=store_path)
    with pytest.raises(SearchError, match="made with query_prompt='query: ', not ''"):
        again(query_prompt="")
    with pytest.raises(SearchError, match="made with prompt='passage: ', not 'text: '"):
        again(prompt="text: ")
    assert again(prompt="document", query_prompt="query")["unchanged"] == len(TEXTS)


def test_search_uses_prompts_of_store(
    asymmetric: Path, minilm: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The prompts of the model at search time are ignored, even if the store has no prompts."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    index([table], model=minilm, store=first, precision="fp32")
    index(
        [table], model=minilm, store=second, prompt="passage: ", query_prompt="query: ",
        precision="fp32",
    )  # fmt: skip
    capsys.readouterr()
    scores = [
        [hit.score for hit in Searcher(store_path, model=model)("pets")]
        for store_path in (first, second)
        for model in (minilm, asymmetric)
    ]
    log = capsys.readouterr().err.splitlines()
    assert log == ["prompt: none (the model has query, document)", *["prompt: 'query: '"] * 2]
    assert scores[0] == scores[1]
    assert scores[2] == scores[3]
    assert np.abs(np.subtract(scores[0], scores[2])).max() > 1e-2


def test_search_uses_similarity_function_of_model(
    minilm: Path, table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "dot"
    shutil.copytree(minilm, folder)
    parts = json.loads((folder / "modules.json").read_text())
    # The third module is Normalize.
    (folder / "modules.json").write_text(json.dumps(parts[:2]))
    settings = folder / "config_sentence_transformers.json"
    settings.write_text(json.dumps({"similarity_fn_name": "dot"}))
    st_model = reference(folder)
    vectors = st_model.encode(list(TEXTS.values()))
    expected = st_model.similarity(st_model.encode("pets"), vectors)[0]
    store_path = str(tmp_path / "store")
    index([table], model=folder, store=store_path, precision="fp32")
    scores = {hit.id: hit.score for hit in Searcher(store_path)("pets")}
    np.testing.assert_allclose([scores[id] for id in TEXTS], expected, atol=1e-4)
    # Cosine similarities are at most 1.
    assert max(scores.values()) > 2
    settings.write_text(json.dumps({"similarity_fn_name": "manhattan"}))
    with pytest.raises(ConfigError, match="manhattan similarity is not supported"):
        index([table], model=folder, store=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_index_rejects_prompt_longer_than_passages(
    minilm: Path, table: Path, tmp_path: Path
) -> None:
    store_path = str(tmp_path / "store")
    prompt = "one two three four five six: "
    with pytest.raises(ConfigError, match="length = 16 is too short, because the prompt"):
        index([table], model=minilm, store=store_path, length=16, prompt=prompt)
    assert not Path(store_path).exists()


def test_searcher_reports_path_of_missing_model(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "a.txt").write_text("a b c")
    store_path = str(tmp_path / "store")
    index([tmp_path / "a.txt"], model=tmp_path / "model", store=store_path)
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(SearchError, match=r"cannot load the model of the store .* model="):
        Searcher(store_path)
    assert Searcher(store_path, model=tmp_path / "moved")("b")[0].id == "a.txt"
