"""Tables in several scripts, and text files with any suffix."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bertkit.errors import DataError
from bertkit.tasks.classify import Classify
from bertkit.tasks.similarity import Similarity
from bertkit.tasks.task import Reading

GERMAN = [
    ("Bewertung", "Stimmung"),
    ("Das Essen war sehr lecker", "gut"),
    ("Die Bedienung war wirklich schlecht", "schlecht"),
    ("Sehr schön hier und billig", "gut"),
    ("Ich komme nie wieder hierher", "schlecht"),
]
CHINESE = [
    ("评论", "情感"),
    ("菜的味道真的很好", "正面"),
    ("服务员的态度太差了", "负面"),
    ("环境很好而且便宜", "正面"),
    ("我再也不会来这里了", "负面"),
]
JAPANESE = [
    ("本文", "分類"),
    ("料理がとても美味しかった", "エンターテインメント"),
    ("店員の態度が本当に悪い", "スポーツ"),
    ("きれいで安い店でした", "エンターテインメント"),
    ("もう二度と来ません", "スポーツ"),
]
THAI = [
    ("ข้อความ", "ความรู้สึก"),
    ("อาหารร้านนี้อร่อยมากจริงๆ", "เชิงบวก"),
    ("พนักงานบริการแย่มากเลย", "เชิงลบ"),
    ("บรรยากาศดีและราคาถูกมาก", "เชิงบวก"),
    ("จะไม่กลับมาที่นี่อีกแล้ว", "เชิงลบ"),
]
HINDI = [
    ("समीक्षा", "भावना"),
    ("यहाँ का खाना बहुत अच्छा था", "सकारात्मक"),
    ("कर्मचारियों का व्यवहार बहुत बुरा था", "नकारात्मक"),
    ("माहौल अच्छा और दाम कम है", "सकारात्मक"),
    ("मैं यहाँ फिर कभी नहीं आऊँगा", "नकारात्मक"),
]
KOREAN = [
    ("리뷰", "감정"),
    ("음식이 정말 아주 맛있었어요", "긍정"),
    ("직원의 태도가 너무 나빴다", "부정"),
    ("여기 분위기가 좋고 저렴해요", "긍정"),
    ("다시는 여기 오지 않을게요", "부정"),
]
SCRIPTS = {
    "german": GERMAN,
    "chinese": CHINESE,
    "japanese": JAPANESE,
    "thai": THAI,
    "korean": KOREAN,
    "hindi": HINDI,
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_named_columns_work_in_each_script(script: str, tmp_path: Path) -> None:
    header, *rows = SCRIPTS[script]
    reading = Reading(text_column=header[0], label_column=header[1])
    for name, separator in (("a.tsv", "\t"), ("a.csv", ",")):
        path = tmp_path / name
        lines = [separator.join(row) for row in (header, *rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        examples, _ = Classify.reader.read(path, reading, labeled=True)
        assert [(e.text, e.label) for e in examples] == rows


@pytest.mark.parametrize("name", ["a.all", "reviews.test", "data", "a.dat.gz"])
def test_separator_option_accepts_any_suffix(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    data = "".join(f"{label} {text}\n" for text, label in GERMAN[1:]).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    reading = Reading(text_column="2", label_column="1", header=False, separator="space")
    examples, _ = Classify.reader.read(path, reading, labeled=True)
    assert [(e.text, e.label) for e in examples] == GERMAN[1:]
    with pytest.raises(DataError, match="or set separator= for a text file with another suffix"):
        Classify.reader.read(path, Reading(), labeled=True)


def test_similarity_accepts_columns_by_number(tmp_path: Path) -> None:
    path = tmp_path / "sts.tsv"
    path.write_text("x\t4.5\ta b\tc d\ny\t1\te\tf\tmore\tcells\nz\t2\tg\th\n", encoding="utf-8")
    reading = Reading(text_column="3", pair_column="4", label_column="2", header=False)
    examples, _ = Similarity.reader.read(path, reading, labeled=True)
    assert [e.texts for e in examples] == [("a b", "c d"), ("e", "f"), ("g", "h")]
    assert [e.label for e in examples] == [4.5, 1.0, 2.0]
    with pytest.raises(DataError, match="expected 4 columns"):  # control
        Similarity.reader.read(path, Reading(text_column="3", header=False), labeled=True)
