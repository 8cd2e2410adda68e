"""Queries: documents by their best passage, lists joined by rank, and what a store refuses."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

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
def test_asking_for_more_finds_every_document(keys: list[tuple[str, int]], top: int) -> None:
    hits = [hit(*key) for key in dict.fromkeys(keys)]
    asked: list[int] = []

    def ask(count: int) -> list[Hit]:
        asked.append(count)
        return hits[:count]

    assert best_documents(ask, top) == by_document(hits)[:top]
    assert len(set(asked)) == len(asked)


def test_documents_with_the_same_text_count_once() -> None:
    same = msgspec.structs.replace(hit("b"), text=" a\n0")
    hits = [hit("a"), same, hit("b", 1), hit("c"), hit("a", 1)]
    assert [h.id for h in by_document(hits)] == ["a", "c"]
    assert [h.id for h in by_document(hits, distinct=False)] == ["a", "b", "c"]
    copies = [msgspec.structs.replace(hit(f"copy{i}"), text="a 0") for i in range(50)]
    hits = [hit("a"), *copies, hit("c"), hit("d")]
    assert [h.id for h in best_documents(lambda count: hits[:count], 3)] == ["a", "c", "d"]


@pytest.mark.parametrize("hybrid", [False, True])
def test_copies_of_a_document_take_one_place(hybrid: bool, minilm: Path, tmp_path: Path) -> None:
    copies = {f"tea{i}.txt": TEXTS["tea"] for i in range(5)} | {"tea.md": f"{TEXTS['tea']}\n"}
    others = {f"{id}.txt": text for id, text in TEXTS.items() if id != "tea"}
    for name, text in (copies | others).items():
        (tmp_path / "docs" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
    place = str(tmp_path / "store")
    index([tmp_path / "docs"], model=minilm, store=place)
    searcher = Searcher(place)
    found = searcher("a hot drink of tea leaves", top=4, hybrid=hybrid)
    assert len({h.text.strip() for h in found}) == len(found) == 4
    assert found[0].id in copies
    assert len(searcher.many(["tea"], top=9, hybrid=hybrid, distinct=False)[0]) == 9


def test_ranks_are_joined() -> None:
    one, two = [hit("a"), hit("b"), hit("c")], [hit("c"), hit("d")]
    found = fuse_ranks([one, two])
    assert [h.id for h in found] == ["c", "a", "b", "d"]
    assert found[0].score == pytest.approx(1 / 63 + 1 / 61)


@pytest.fixture(scope="module")
def store(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("search")
    table = folder / "docs.csv"
    lines = [f'{id},"{text}",{len(text)}' for id, text in TEXTS.items()]
    table.write_text("\n".join(["id,text,size", *lines]), encoding="utf-8")
    place = str(folder / "store")
    index([table], model=minilm, store=place, columns=DocumentColumns(keep=("size:number",)))
    return place


@pytest.fixture(scope="module")
def searcher(store: str) -> Searcher:
    return Searcher(store)


def test_what_means_the_same_is_found(searcher: Searcher) -> None:
    found = searcher("How do I get out of a for loop?", top=2)
    assert found[0].id == "loop"
    assert found[0].text == TEXTS["loop"]
    assert len(found) == 2
    assert 1.0 >= found[0].score > found[1].score
    several = searcher.many(["a hot drink", "pets"], top=1)
    assert [hits[0].id for hits in several] == ["tea", "cats"]


def test_a_hit_shows_its_best_sentence(minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# Work\n\nCats sleep. You have thirty days of holiday a year. Dogs bark.\n\n"
        "| drink | price |\n|---|---|\n| tea | 2 |\n- Bread costs 5.\n",
        encoding="utf-8",
    )
    place = str(tmp_path / "store")
    index([tmp_path / "a.md"], model=minilm, store=place)
    searcher = Searcher(place)
    for query, sentence in (
        ("vacation", "You have thirty days of holiday a year."),
        ("price of tea", "| tea | 2 |"),
        ("price of bread", "- Bread costs 5."),
    ):
        (found,) = searcher(query, sentences=True)
        assert (found.sentence, found.heading) == (sentence, "Work")
    assert searcher("vacation")[0].sentence == ""
    assert searcher("vacation", where=["id=b"], sentences=True) == []


def test_words_help_where_meaning_does_not(searcher: Searcher) -> None:
    assert searcher("dusk", hybrid=True)[0].id == "cats"
    assert {h.id for h in searcher("dusk", hybrid=True)} == set(TEXTS)


def test_conditions_leave_documents_out(searcher: Searcher) -> None:
    size = len(TEXTS["tea"])
    assert [h.id for h in searcher("a loop", where=[f"size<={size}"])] == ["tea"]
    with pytest.raises(ConfigError, match="did you mean 'size'"):
        searcher("a loop", where=["sise>3"])


def test_a_cross_encoder_orders_what_is_found(
    store: str, tiny: Path, tmp_path: Path, minilm: Path
) -> None:
    from bertkit.checkpoint.directory import load, save

    loaded = load(minilm, heads=["classify"], labels=["score"])
    save(tmp_path / "cross", loaded.model, loaded.tokenizer, loaded.family, labels=["score"])
    searcher = Searcher(store, rerank=tmp_path / "cross")
    found = searcher("a loop")
    assert {h.id for h in found} == set(TEXTS)
    assert searcher.rerank is not None
    scores = searcher.rerank("a loop", [h.text for h in found])
    np.testing.assert_allclose([h.score for h in found], scores, atol=1e-6)
    assert sorted(scores, reverse=True) == list(scores)


def test_a_long_document_leaves_room_for_others(searcher: Searcher) -> None:
    """A hundred of its passages are nearer than any of another document."""
    hits = [hit("long", i) for i in range(150)] + [hit(f"short{i}") for i in range(9)]

    class Stub:
        spec = searcher.store.spec

        def by_vector(self, vector: object, count: int, filters: object) -> list[Hit]:
            return hits[:count]

        def by_words(self, query: str, count: int, filters: object) -> list[Hit]:
            return hits[:count]

    stubbed = copy.copy(searcher)
    stubbed.store = Stub()  # type: ignore[assignment]
    plain = [h.id for h in stubbed("a", top=10)]
    assert len(plain) == 10
    assert [h.id for h in stubbed("a", top=10, hybrid=True)] == plain
    stubbed.rerank = lambda query, texts: np.arange(len(texts), 0.0, -1.0)  # type: ignore
    assert [h.id for h in stubbed("a", top=10)] == plain


@pytest.mark.parametrize("query", ["", " \n"])
def test_an_empty_query_is_refused(query: str, searcher: Searcher) -> None:
    with pytest.raises(DataError, match="the query is empty"):
        searcher(query)


def test_a_long_query_is_refused_or_cut(searcher: Searcher) -> None:
    query = "break loop " * 10_000
    with pytest.raises(DataError, match="20002 tokens, but the limit is 256"):
        searcher(query)
    assert searcher(query, long="truncate")[0].id == "loop"
    with pytest.raises(ConfigError, match="not supported by queries"):
        searcher(query, long="window")
    with pytest.raises(ConfigError, match="top must be at least 1, got 0"):
        searcher("loop", top=0)


def test_another_model_is_refused(store: str, tiny: Path) -> None:
    with pytest.raises(SearchError, match=r"was made with the model .* differ"):
        Searcher(store, model=tiny)


@pytest.fixture(scope="module")
def asymmetric(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model with prompts like those of E5."""
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


def test_documents_and_queries_have_their_prompts(
    asymmetric: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    theirs, query = peer.SentenceTransformer(str(asymmetric), device="cpu"), "a hot drink"
    wanted = theirs.encode_document(list(TEXTS.values())) @ theirs.encode_query(query)
    bare = theirs.encode(list(TEXTS.values())) @ theirs.encode(query)
    place = str(tmp_path / "store")
    index([table], model=asymmetric, store=place, precision="fp32")
    said = "prompts: 'passage: ' before each passage, 'query: ' before each query"
    assert said in capsys.readouterr().err
    scores = {hit.id: hit.score for hit in Searcher(place)(query)}
    assert "prompt: 'query: '" in capsys.readouterr().err
    np.testing.assert_allclose([scores[id] for id in TEXTS], wanted, atol=1e-6)
    assert abs(wanted - bare).max() > 1e-2
    with pytest.raises(SearchError, match=r"the store uses query_prompt='query: ', not ''"):
        index([table], model=asymmetric, store=place, query_prompt="")
    with pytest.raises(SearchError, match=r"the store uses prompt='passage: ', not 'text: '"):
        index([table], model=asymmetric, store=place, prompt="text: ")
    again = index([table], model=asymmetric, store=place, prompt="document", query_prompt="query")
    assert again["unchanged"] == len(TEXTS)


def test_a_store_goes_by_its_own_prompts(
    asymmetric: Path,
    minilm: Path,
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Stores keep the prompts of their index, also none, whatever the model has at the search."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    index([table], model=minilm, store=first, precision="fp32")
    index(
        [table], model=minilm, store=second, prompt="passage: ", query_prompt="query: ",
        precision="fp32",
    )  # fmt: skip
    capsys.readouterr()
    found = [
        [hit.score for hit in Searcher(place, model=model)("pets")]
        for place in (first, second)
        for model in (minilm, asymmetric)
    ]
    said = capsys.readouterr().err.splitlines()
    assert said == ["prompt: none (the model has query, document)", *["prompt: 'query: '"] * 2]
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert np.abs(np.subtract(found[0], found[2])).max() > 1e-2


def test_vectors_are_compared_as_the_model_says(minilm: Path, table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dot"
    shutil.copytree(minilm, folder)
    parts = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(parts[:2]))  # without Normalize
    settings = folder / "config_sentence_transformers.json"
    settings.write_text(json.dumps({"similarity_fn_name": "dot"}))
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    theirs = peer.SentenceTransformer(str(folder), device="cpu")
    wanted = theirs.similarity(theirs.encode("pets"), theirs.encode(list(TEXTS.values())))[0]
    place = str(tmp_path / "store")
    index([table], model=folder, store=place, precision="fp32")
    scores = {hit.id: hit.score for hit in Searcher(place)("pets")}
    np.testing.assert_allclose([scores[id] for id in TEXTS], wanted, atol=1e-4)
    assert max(scores.values()) > 2  # no cosine
    settings.write_text(json.dumps({"similarity_fn_name": "manhattan"}))
    with pytest.raises(ConfigError, match="manhattan similarity is not supported"):
        index([table], model=folder, store=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_prompt_that_fills_passages_is_refused(minilm: Path, table: Path, tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    with pytest.raises(ConfigError, match="length = 16 is too short: the prompt"):
        index([table], model=minilm, store=place, length=16, prompt="one two three four five six: ")
    assert not Path(place).exists()


def test_a_model_that_moved_is_named(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "a.txt").write_text("a b c")
    place = str(tmp_path / "store")
    index([tmp_path / "a.txt"], model=tmp_path / "model", store=place)
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(SearchError, match=r"cannot load its model .* model="):
        Searcher(place)
    assert Searcher(place, model=tmp_path / "moved")("b")[0].id == "a.txt"
