"""Keyword search in each script, conditions on hits, and positions of sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.extensions.search.conftest import SPEC, passage, unit
from tests.factories import pdf

from bertkit.extensions.search.index import index
from bertkit.extensions.search.keywords import passage_keywords, query_keywords
from bertkit.extensions.search.searcher import Searcher
from bertkit.extensions.search.store import Store

Opened = Callable[..., Store]

TEXTS = {
    "refund": "我们公司的退款政策规定客户可以在七天内申请退款",
    "database": "数据库连接超时的时候请检查网络设置",
    "sakura": "春になると公園でさくらが咲いた。ﾃｽﾄです",
    "seoul": "서울의 학교에서 학생들을 가르친다",
    "thai": "ร้านอาหารนี้เปิดทุกวันตั้งแต่เช้า",
    "khmer": "ខ្ញុំចូលចិត្តរៀនភាសាខ្មែរ",
    "russian": "Съешь ещё этих мягких булок",
    "hindi": "मुझे हिन्दी में पढ़ना पसंद है",
    "band": "The Who played in Leeds",
    "shakespeare": "To be, or not to be",
    "café": "Un café très serré",
    "code": "call open_store(place) first",
    "arabic": "قال مُحَمَّد",
    "hebrew": "שָׁלוֹם עולם",
    "georgian": "აქ საქართველოსთვის",
    "hash": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 ok",
}
QUERIES = {
    "退款政策": "refund",
    "数据库": "database",
    "网": "database",
    "公園": "sakura",
    "さくら": "sakura",
    "テスト": "sakura",
    "학교": "seoul",
    "ร้านอาหาร": "thai",
    "ភាសា": "khmer",
    "БУЛОК": "russian",
    "हिन्दी": "hindi",
    "The Who": "band",
    "to be or not to be": "shakespeare",
    "CAFE": "café",
    "open_store": "code",
    "محمد": "arabic",
    "שלום": "hebrew",
    "საქართველოსთვის": "georgian",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": "hash",
}


@pytest.fixture
def store(opened: Opened) -> Store:
    made = opened(SPEC)
    passages = [passage(name, text) for name, text in TEXTS.items()]
    made.replace(passages, np.stack([unit(1, 0, 0, 0)] * len(passages)))
    made.finish()
    made.close()
    return opened()


def test_search_by_words_finds_substrings_in_each_script(store: Store) -> None:
    first_ids = {query: [hit.id for hit in store.by_words(query, 3)][:1] for query in QUERIES}
    assert first_ids == {query: [id] for query, id in QUERIES.items()}


def test_search_by_words_returns_nothing_without_common_words(store: Store) -> None:
    for query in ("天气", "Bern", "?!", "…", " ", "日本語"):
        assert store.by_words(query, 3) == []


@pytest.mark.parametrize("text", TEXTS.values())
def test_query_keywords_are_in_passage_keywords(text: str) -> None:
    assert set(query_keywords(text)) <= set(passage_keywords(text))
    assert all(word == word.strip() and " " not in word for word in passage_keywords(text))


def test_keywords_of_text_in_two_scripts() -> None:
    assert passage_keywords("Pythonで書く v2") == ["python", "で", "書", "く", "で書", "書く", "v2"]
    assert query_keywords("Pythonで書く 猫") == ["python", "で書", "書く", "猫"]


# ---- Fields of conditions


@pytest.fixture
def indexed(tiny: Path, tmp_path: Path) -> Searcher:
    docs = tmp_path / "docs"
    (docs / "it").mkdir(parents=True)
    (docs / "it" / "a.md").write_text("# a b\n\nc d e\n\n# f\n\ng h", encoding="utf-8")
    (docs / "b.txt").write_text("b c", encoding="utf-8")
    rows = [{"id": f"row {i}", "text": f"{x} {x}", "n": i} for i, x in enumerate("xyz")]
    (docs / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    index([docs], model=tiny, store=str(tmp_path / "store"))
    return Searcher(str(tmp_path / "store"))


def test_condition_filters_by_each_field_of_hit(indexed: Searcher) -> None:
    hits = indexed("b c", top=9)
    assert len(hits) == 5
    for hit in hits:
        values = msgspec.to_builtins(hit)
        for name in values.keys() - {"score", "fields"}:
            if values[name] == "":
                continue
            matching = indexed("b c", top=9, where=[f"{name}={values[name]}"], hybrid=True)
            assert hit.id in {other.id for other in matching}
            opposite = indexed("b c", top=9, where=[f"{name}!={values[name]}"])
            assert hit.passage not in {o.passage for o in opposite if o.id == hit.id}


def test_conditions_filter_by_path_type_and_date(indexed: Searcher, tmp_path: Path) -> None:
    def ids(*filters: str) -> set[str]:
        return {hit.id for hit in indexed("b c", top=9, where=filters)}

    assert ids(f"source={tmp_path}/docs/it/a.md") == {"it/a.md"}
    assert ids("suffix=.txt") == {"b.txt"}
    assert ids("suffix=.jsonl", "id!=row 1") == {"row 0", "row 2"}
    today = datetime.now(UTC).date()
    assert len(ids("modified>=2020-01-01")) == 5
    assert ids(f"modified>={today.replace(year=today.year + 2, day=1)}") == set()
    assert ids("modified<2020-01-01T12:00:00") == set()


# ---- Positions


def test_hit_contains_page_of_each_sentence(tiny: Path, tmp_path: Path) -> None:
    pages = ["a b c.\nd e f.", "g h i.", "j k l.\nm n o.\np q r."]
    (tmp_path / "a.pdf").write_bytes(pdf(pages))
    index([tmp_path / "a.pdf"], model=tiny, store=str(tmp_path / "store"))
    searcher = Searcher(str(tmp_path / "store"))
    text = "\n\n".join(pages)
    for number, page in enumerate(pages, 1):
        for sentence in page.splitlines():
            (hit,) = searcher(sentence, sentences=True, hybrid=True)
            assert hit.heading == f"page {number}"
            assert sentence in hit.text
            assert text[hit.sentence_start : hit.sentence_end].split() == hit.sentence.split()
