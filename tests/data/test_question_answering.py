"""Question answering files: parsing and error positions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bertkit.data.question_answering import Question, read_questions
from bertkit.errors import DataError


def squad(*questions: dict[str, Any], context: str = "a mill by the lake") -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [*questions]}]}]})


def question(id: str = "q1", **more: Any) -> dict[str, Any]:
    return {"id": id, "question": "Which building?", **more}


MILL = [{"text": "mill", "answer_start": 2}]


def read(path: Path, text: str, *, labeled: bool = True) -> list[Question]:
    path.write_text(text, encoding="utf-8")
    return read_questions(path, labeled=labeled)[0]


def test_read_questions_parses_squad(tmp_path: Path) -> None:
    text = squad(
        question("q1", answers=[*MILL, {"text": "a mill", "answer_start": 0}]),
        question("q2", answers=[], is_impossible=True, plausible_answers=MILL),
        question("q3", answers=MILL, is_impossible=False),
    )
    path = tmp_path / "dev.json"
    first, second, third = read(path, text)
    assert first == Question(
        "Which building?", "a mill by the lake", (("mill", 2), ("a mill", 0)), "q1", f"{path}: q1"
    )
    assert not second.answerable
    assert third.answerable
    with gzip.open(tmp_path / "dev.json.gz", "wt", encoding="utf-8") as stream:
        stream.write("\ufeff" + text)
    packed, summary = read_questions(tmp_path / "dev.json.gz", labeled=True)
    assert [e.answers for e in packed] == [e.answers for e in (first, second, third)]
    assert summary == f"{tmp_path / 'dev.json.gz'}: 3 questions, 1 of them without an answer"


HE, NONE = {"text": ["He"], "answer_start": [0]}, {"text": [], "answer_start": []}


def test_read_questions_parses_jsonl(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "question": "Who?", "context": "He.", "answers": HE},
        {"question": "Who?", "context": "She.", "answers": NONE},
    ]
    path = tmp_path / "rows.jsonl"
    found = read(path, "\n\n".join(map(json.dumps, rows)))
    assert found == [
        Question("Who?", "He.", (("He", 0),), "7", f"{path}:1"),
        Question("Who?", "She.", (), f"{path}:3", f"{path}:3"),
    ]


def test_unlabeled_questions_need_no_answers(tmp_path: Path) -> None:
    assert not read(tmp_path / "a.json", squad(question()), labeled=False)[0].answers
    row = '{"question": "Who?", "context": "He."}'
    assert read(tmp_path / "a.jsonl", row, labeled=False)[0].context == "He."


ROW = '{"question": "Who?", "context": "It is he.", "answers": %s}'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("a.json", "{", r"a\.json: invalid JSON"),
     ("a.json", '{"data": ' + "[" * 100_000, r"a\.json: invalid JSON"),
     ("a.json", "[]", r"a\.json: top level: expected `object`, got `array`"),
     ("a.json", '{"data": [{"paragraphs": [{}]}]}', r"data\[0\]\.paragraphs\[0\]: .*`context`"),
     ("a.json",
      squad(question(answers=MILL), question("q2", answers=[{"text": 1, "answer_start": 0}])),
      r"a\.json: data\[0\]\.paragraphs\[0\]\.qas\[1\]\.answers.*\.text: expected `str`"),
     ("a.json", squad(question(answers=3)), r"qas\[0\]\.answers: expected `array \| null`"),
     ("a.json", squad(question()), r"a\.json: q1: answers are missing"),
     ("a.json", squad(question(answers=[{"text": "mill", "answer_start": 4}])),
      r"a\.json: q1: expected the answer 'mill' at character 4.* got 'll b'"),
     ("a.json", squad(question(answers=[{"text": "mill", "answer_start": -17}])),
      r"answer_start: expected `int` >= 0"),
     ("a.json", squad(question(answers=MILL, is_impossible=True)),
      r"q1: is_impossible is true, but the question has 1 answers"),
     ("a.json", squad(question(answers=[], is_impossible=False)),
      r"q1: is_impossible is false, but the question has 0 answers"),
     ("a.json", squad(question(answers=MILL), question(answers=MILL)), r"duplicate id 'q1'"),
     ("a.json", squad(question(answers=[]), context=" "), r"a\.json: q1: the context is empty"),
     ("a.json", '{"data": []}', r"a\.json: the file contains no questions"),
     ("a.jsonl", ROW % json.dumps(NONE) + "\n{", r"a\.jsonl:2: invalid JSON"),
     ("a.jsonl", ROW % '{"text": ["It"], "answer_start": []}',
      r":1: answers has 1 values in text and 0"),
     ("a.jsonl", ROW % '{"text": ["he"]}', r"a\.jsonl:1: answers.*missing required field"),
     ("a.jsonl", ROW % '{"text": ["he"], "answer_start": [0]}',
      r"a\.jsonl:1: expected the answer 'he' .* 'It'"),
     ("a.jsonl", ROW % '{"text": [""], "answer_start": [0]}', r"a\.jsonl:1: an answer is empty"),
     ("a.jsonl", '\n{"question": "", "context": "a"}', r":2: answers are missing"),
     ("a.jsonl", ROW.replace("Who?", "") % json.dumps(NONE), r":1: the question is empty"),
     ("a.jsonl", '{"question": "\\ud800", "context": "a"}', r"a\.jsonl:1: lone surrogate"),
     ("a.jsonl", ROW % "[]", r"a\.jsonl:1: answers: expected `object \| null`, got `array`"),
     ("a.csv", "question,context\na,b\n", r"a\.csv: unknown file type; pass a \.json")],
)  # fmt: skip
def test_read_questions_reports_position_of_errors(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, text)


@pytest.mark.parametrize(
    ("name", "questions", "without"),
    [("squad1/dev-v1.1-24articles.json", 4961, 0), ("squad1/train-v1.1-44articles.json", 11877, 0)],
)
def test_read_questions_parses_public_data_sets(
    data_folder: Path, name: str, questions: int, without: int
) -> None:
    found, _ = read_questions(data_folder / name, labeled=True)
    assert len(found) == questions
    assert sum(not example.answerable for example in found) == without
    for example in found:
        for text, start in example.answers:
            assert example.context[start : start + len(text)] == text
