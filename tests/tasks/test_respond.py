"""Tests of response selection: dialogues, sampled wrong responses and ranks."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import tiny_model, tiny_tokenizer

from bertkit.data.multiple_choice import ChoiceQuestion
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError, DataError
from bertkit.models.model import Model
from bertkit.tasks import find
from bertkit.tasks.respond import Respond, RespondOptions, ResponseAnswer
from bertkit.tasks.task import Reading, by_example, group, run_head
from bertkit.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer(string.ascii_lowercase)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def dialogues(folder: Path, *pairs: Sequence[tuple[str, str]]) -> Path:
    return written(folder, "talk.json", json.dumps([{"meta": [], "dialogue": p} for p in pairs]))


def examples_of(path: Path, *, labeled: bool = True) -> list[ChoiceQuestion]:
    return Respond.reader.read(path, Reading(), labeled=labeled)[0]


def answered(
    model: Model, tokenizer: Tokenizer, examples: Sequence[ChoiceQuestion]
) -> list[ResponseAnswer]:
    task = Respond()
    features = task.features(examples, tokenizer, 32, long="truncate", labeled=False)
    outputs = run_head(task, Engine(model, precision=None, max_batch_tokens=10**6), features)
    return task.answers(by_example(examples, group(features), outputs), model.heads["choose"])


# ---- Readers


def test_responses_follow_all_previous_turns(tmp_path: Path) -> None:
    path = dialogues(
        tmp_path,
        [("How are\nyou ?", "Well ."), ("And now ?", "Still well ."), ("Bye .", "")],
        [("Rain ?", "Sun .")],
    )
    found, message = Respond.reader.read(path, Reading(), labeled=True)
    assert [e.text for e in found] == [
        "How are you ?",
        "How are you ?\nWell .\nAnd now ?",
        "Rain ?",
    ]
    assert [e.choices[e.answer] for e in found if e.answer is not None] == [
        "Well .",
        "Still well .",
        "Sun .",
    ]
    assert found[1].where == f"{path}: dialogue 1, pair 2"
    # Wrong responses come from other dialogues: all of them if there are few.
    assert set(found[0].choices) == {"Well .", "Sun ."}
    assert set(found[2].choices) == {"Well .", "Still well .", "Sun ."}
    assert message.endswith("talk.json: 2 dialogues; 3 responses, 2 to 3 candidates each")


WORD = st.sampled_from("abcdefghijkl")
TALK = st.lists(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=4), min_size=2, max_size=12)


@settings(max_examples=60, deadline=None)
@given(talk=TALK)
def test_wrong_responses_are_distinct_and_deterministic(
    talk: list[list[tuple[str, str]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = dialogues(tmp_path_factory.mktemp("talk"), *talk)
    owner = [number for number, pairs in enumerate(talk) for _ in pairs]
    right = [response for pairs in talk for _, response in pairs]
    wrong_responses = [
        {r for r, n in zip(right, owner, strict=True) if n != number} - {response}
        for number, response in zip(owner, right, strict=True)
    ]
    if not all(wrong_responses):
        with pytest.raises(DataError, match="no other dialogue to sample wrong responses from"):
            examples_of(path)
        return
    found = examples_of(path)
    assert found == examples_of(path)
    for example, response, possible in zip(found, right, wrong_responses, strict=True):
        assert example.answer is not None
        assert example.choices[example.answer] == response
        wrong = set(example.choices) - {response}
        assert len(example.choices) == len(wrong) + 1 == min(len(possible), 9) + 1
        assert wrong <= possible


def test_position_of_right_response_is_random(tmp_path: Path) -> None:
    path = dialogues(tmp_path, *([(f"a{i}", f"b{i}")] for i in range(300)))
    found = examples_of(path)
    assert all(len(set(e.choices)) == 10 for e in found)
    counts = np.bincount([e.answer for e in found if e.answer is not None], minlength=10)
    assert counts.min() > 10
    assert len({e.choices for e in found}) == 300
    blind = examples_of(path, labeled=False)
    assert [e.choices for e in blind] == [e.choices for e in found]
    assert {e.answer for e in blind} == {None}


def test_rows_can_list_candidates(tmp_path: Path) -> None:
    rows = [
        {"context": ["A day .", "So ?"], "response": "Fine .", "candidates": ["No .", "Fine ."]},
        {"context": "One .\nTwo .\n", "response": "Three ."},
    ]
    path = written(tmp_path, "r.jsonl", "\n".join(map(json.dumps, rows)))
    found = examples_of(path)
    assert found[0] == ChoiceQuestion("A day .\nSo ?", ("No .", "Fine ."), 1, where=f"{path}:1")
    assert found[1].text == "One .\nTwo ."
    assert set(found[1].choices) == {"Three .", "Fine ."}
    bare = [{"context": "Hello .", "candidates": ["Hi .", "Bye ."]}]
    path = written(tmp_path, "bare.jsonl", json.dumps(bare[0]))
    assert examples_of(path, labeled=False)[0].choices == ("Hi .", "Bye .")
    with pytest.raises(DataError, match=r"bare\.jsonl:1: no response; add a response"):
        examples_of(path)


NO_LIST = r"not a JSON list of .*"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 100_000, NO_LIST),
        ({}, NO_LIST + "Expected `array`"),
        ([{}], NO_LIST + "missing required field `dialogue`"),
        ([{"dialogue": [["a"]]}], NO_LIST + r"\$\[0\]\.dialogue\[0\]"),
        ([{"dialogue": [["a", ""], ["b", "c"]]}], "dialogue 1, pair 1: a turn is empty"),
        ([{"dialogue": [[" ", "c"]]}], "dialogue 1, pair 1: a turn is empty"),
        ([{"dialogue": [["a", "c"]]}], "dialogue 1, pair 1: no other dialogue"),
        ([{"dialogue": [["a", ""]]}], "the file contains no response"),
    ],
)
def test_reader_rejects_invalid_dialogues(content: Any, message: str, tmp_path: Path) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(DataError, match=rf"t\.json: .*{message}"):
        examples_of(written(tmp_path, "t.json", text))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"response": "a"}, ".*missing required field `context`"),
        ({"context": " ", "response": "a"}, "the context is empty"),
        ({"context": [], "response": "a"}, "the context is empty"),
        ({"context": "a", "response": ""}, "the response is empty"),
        ({"context": "a"}, "no response"),
        ({"candidates": ["c", "d"]}, "'b' is not among the choices"),
        ({"candidates": ["b"]}, "only one choice"),
        ({"candidates": ["b", "b"]}, "the correct choice 'b' occurs twice"),
        ({"candidates": ["b", ""]}, "choice 2 of 2 is empty"),
    ],
)
def test_reader_rejects_invalid_rows(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    if "candidates" in row:
        row = {"context": "a", "response": "b", **row}
    with pytest.raises(DataError, match=rf"t\.jsonl:1: {message}"):
        examples_of(written(tmp_path, "t.jsonl", json.dumps(row)))


@pytest.mark.parametrize(("name", "message"), [("json", "is empty"), ("txt", "unknown file type")])
def test_reader_rejects_empty_and_unknown_files(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"t\.{name}: .*{message}"):
        examples_of(written(tmp_path, f"t.{name}", ""))


def test_reader_rejects_columns_and_restore_keeps_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^text_column: not supported by respond"):
        Respond.reader.read(tmp_path / "t.json", Reading(text_column="x"), labeled=True)
    task = Respond.restore((), Respond((), RespondOptions(turns=7)).settings())
    assert task.options == RespondOptions(turns=7)
    assert find("respond") is Respond


# ---- Model inputs and targets


def test_last_turns_are_joined_by_sep(tokenizer: Tokenizer) -> None:
    example = ChoiceQuestion("a b\nc\nd\ne", ("f", "g"), 1)
    task = Respond((), RespondOptions(turns=3))
    features = task.features([example], tokenizer, 32, long="error", labeled=False)
    tokens = tokenizer.pieces(features[0].encoding.ids)
    assert tokens == ["[CLS]", "c", "[SEP]", "d", "[SEP]", "e", "[SEP]", "f", "[SEP]"]
    assert features[0].encoding.types.tolist() == [0] * 7 + [1] * 2
    # Truncation removes the oldest tokens and keeps the response.
    with pytest.raises(DataError, match="9 tokens with choice 1, but the maximum is 7"):
        task.features([example], tokenizer, 7, long="error", labeled=False)
    [cut, _] = task.features([example], tokenizer, 7, long="truncate", labeled=False)
    assert tokenizer.pieces(cut.encoding.ids) == ["[CLS]", "d", "[SEP]", "e", "[SEP]", "f", "[SEP]"]
    assert cut.encoding.truncated


def test_training_uses_first_wrong_responses(tokenizer: Tokenizer) -> None:
    example = ChoiceQuestion("a", tuple("bcdefghijk"), 2)
    for negatives in (1, 3, 9):
        task = Respond((), RespondOptions(negatives=negatives))
        features = task.features([example], tokenizer, 32, long="error", labeled=True)
        responses = [tokenizer.pieces(f.encoding.ids)[3] for f in features]
        assert responses == ["d", *"bcefghijk"[:negatives]]
        assert [f.target for f in features] == [True] + [False] * negatives
        everything = task.features([example], tokenizer, 32, long="error", labeled=False)
        assert len(everything) == 10


# ---- Predictions

LINE = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6).map(" ".join)


@settings(max_examples=12, deadline=None)
@given(
    context=st.lists(LINE, min_size=1, max_size=6).map("\n".join),
    candidates=st.lists(LINE, min_size=2, max_size=5),
    data=st.data(),
)
def test_scores_do_not_depend_on_candidate_order(
    context: str, candidates: list[str], data: st.DataObject, tokenizer: Tokenizer
) -> None:
    model = tiny_model(tokenizer, "choose", hidden=32, dropout=0.0, spread=0.1).eval()
    order = data.draw(st.permutations(range(len(candidates))))
    mixed = [candidates[i] for i in order]
    first, moved, _ = answered(
        model,
        tokenizer,
        [
            Respond.reader.example(context, candidates),
            Respond.reader.example(context, mixed),
            Respond.reader.example("a", ["b", "c d e f"]),
        ],
    )
    assert moved.scores == pytest.approx([first.scores[i] for i in order], abs=1e-5)
    assert sorted(first.order) == list(range(len(candidates)))
    assert [first.scores[i] for i in first.order] == sorted(first.scores, reverse=True)
    assert first.index == first.order[0]
    assert first.best == candidates[first.index]
    assert first.score == first.scores[first.index]


def test_scores_use_ranks_and_penalize_ties() -> None:
    examples = [ChoiceQuestion("a", ("b", "c", "d"), n) for n in (0, 1, 2)]
    task = Respond()
    ranked = [ResponseAnswer("b", 0, 0.5, [0.5, 0.3, 0.2], [0, 1, 2])] * 3
    scores = task.score(ranked, examples)
    assert scores == pytest.approx(
        {"recall@1": 1 / 3, "recall@2": 2 / 3, "mrr": (1 + 1 / 2 + 1 / 3) / 3}
    )
    same = [ResponseAnswer("b", 0, 1 / 3, [1 / 3] * 3, [0, 1, 2])] * 3
    assert task.score(same, examples) == pytest.approx({"recall@1": 0, "recall@2": 0, "mrr": 1 / 3})
    record = task.error_record(ranked[2], examples[2])
    assert (record.expected, record.answered) == ("d", "b (0.50)")
    assert record.severity == pytest.approx(0.8)
    assert task.metric in scores


@pytest.mark.parametrize(("name", "count"), [("dailydialog", 3851), ("personachat", 7316)])
def test_public_dialogues_are_parsed(
    name: str, count: int, data_folder: Path, tokenizer: Tokenizer
) -> None:
    path = data_folder / name / "valid.json"
    found, message = Respond.reader.read(path, Reading(), labeled=True)
    assert f"1,000 dialogues; {count:,} responses, 10 candidates each" in message
    assert len(found) == count
    assert all(len(set(e.choices)) == 10 for e in found)
    features = Respond().features(found[:40], tokenizer, 48, long="truncate", labeled=True)
    assert len(features) == 160
    assert max(len(f.encoding) for f in features) <= 48
