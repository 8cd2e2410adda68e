"""Tests that copies of the right answer are not counted as wrong answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import tiny_folder, tiny_tokenizer
from tests.tasks.test_similarity import compute_embeddings, ready
from torch.nn import functional as F

import bertkit
from bertkit.data.multiple_choice import ChoiceQuestion
from bertkit.objectives.loss import totals
from bertkit.tasks.choose import ChoiceAnswer, Choose
from bertkit.tasks.respond import Respond, ResponseAnswer
from bertkit.tasks.similarity import (
    Similarity,
    SimilarityAnswer,
    SimilarityExample,
    SimilarityOptions,
)
from bertkit.tasks.task import by_example, group

FAQ = [("a", "d e"), ("b", "f g"), ("c", "h i")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("base"), tiny_tokenizer("abcdefghij"))


def answers_of(
    base: Path, examples: list[SimilarityExample], first: np.ndarray
) -> list[SimilarityAnswer]:
    """Return the answers if equal second texts share a unit vector."""
    task = Similarity.from_examples(examples, SimilarityOptions())
    tokenizer = bertkit.load(base).tokenizer
    features = task.features(examples, tokenizer, 32, long="error", labeled=False)
    units = {"d": 0, "f": 1, "h": 2}
    second = np.eye(3, dtype=np.float32)[[units[e.texts[1].strip().lower()[0]] for e in examples]]
    outputs = [*np.stack([first, second], 1).reshape(-1, 3)]
    return task.answers(by_example(examples, group(features), outputs), torch.nn.Identity())


def examples_of(rows: list[tuple[str, str]]) -> list[SimilarityExample]:
    return [SimilarityExample(row, None, f"row {i}") for i, row in enumerate(rows)]


NEAR = np.array([[0.9, 0.3, 0.1], [0.2, 0.9, 0.3], [0.9, 0.3, 0.5]], np.float32)


@pytest.mark.parametrize("copy", ["d e", "D  e", " d e "])
def test_similarity_ranks_distinct_texts(base: Path, copy: str) -> None:
    examples = examples_of(FAQ)
    before = answers_of(base, examples, NEAR)
    assert [answer.rank for answer in before] == [1, 1, 2]
    more = examples_of([*FAQ, ("a b", copy), ("j", copy)])
    answers = answers_of(base, more, NEAR[[0, 1, 2, 0, 0]])
    assert [answer.rank for answer in answers] == [1, 1, 2, 1, 1]
    distinct = examples_of([*FAQ, ("a b", "d"), ("j", "d")])  # control: distinct texts that tie
    assert answers_of(base, distinct, NEAR[[0, 1, 2, 0, 0]])[0].rank == 2


def test_similarity_scores_ignore_repeated_rows(base: Path) -> None:
    task = Similarity.from_examples(examples_of(FAQ), SimilarityOptions())
    scores = task.score(answers_of(base, examples_of(FAQ), NEAR), examples_of(FAQ))
    assert scores == pytest.approx({"recall@1": 2 / 3, "recall@2": 1.0, "mrr": 5 / 6})
    for rows in ([0, 1, 2, 2], [0, 0, 1, 2, 2, 2, 2]):
        more = examples_of([FAQ[i] for i in rows])
        assert task.score(answers_of(base, more, NEAR[rows]), more) == pytest.approx(scores)


def ranking_loss(base: Path, examples: list[SimilarityExample], keep: torch.Tensor) -> torch.Tensor:
    """Compute the loss over the candidates in the mask `keep` of shape (examples, candidates)."""
    task, model, _ = ready(examples, base, loss="ranking")
    first, *others = F.normalize(
        compute_embeddings(task, model.eval(), examples, base), dim=-1
    ).unbind(1)
    scores = (20 * first @ torch.cat(others).T).masked_fill(~keep, -torch.inf)
    return F.cross_entropy(scores, torch.arange(len(first)))


def test_similarity_loss_ignores_copies_of_target(base: Path) -> None:
    rows = [("a", "d e", "j"), ("b", "D e", "d  e"), ("c", "f", "h")]
    examples = [SimilarityExample(texts, None, str(i)) for i, texts in enumerate(rows)]
    task, model, batch = ready(examples, base, loss="ranking")
    loss = task.loss(model.eval(), batch, totals([batch])).total
    keep = torch.ones(3, 6, dtype=torch.bool)
    keep[0, [1, 4]] = keep[1, [0, 4]] = False
    torch.testing.assert_close(loss, ranking_loss(base, examples, keep), atol=1e-5, rtol=1e-4)
    naive = ranking_loss(base, examples, torch.ones(3, 6, dtype=torch.bool))
    assert naive - loss > 0.1  # control


def test_similarity_logs_duplicates(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ready(examples_of([*FAQ, ("j", "D e")]), base, loss="ranking")
    assert "1 of 4 second texts are duplicates" in capsys.readouterr().err
    ready(examples_of(FAQ), base, loss="ranking")
    assert "duplicates" not in capsys.readouterr().err


QUESTION = ChoiceQuestion("a", ("Yes.", "no", "yes.", "YES. "), 2)


def test_choose_accepts_copy_of_right_choice() -> None:
    answers = [ChoiceAnswer(i, QUESTION.choices[i], 0.5, [0.25] * 4) for i in range(4)]
    scores = [Choose.score(Choose(), [answer], [QUESTION])["accuracy"] for answer in answers]
    assert scores == [1.0, 0.0, 1.0, 1.0]
    assert [Choose().error_record(a, QUESTION).severity > 0 for a in answers] == [
        False, True, False, False
    ]  # fmt: skip


def test_respond_ranks_distinct_responses() -> None:
    def mrr(question: ChoiceQuestion) -> float:
        answer = ResponseAnswer("Yes.", 0, 0.4, [0.4, 0.1, 0.4, 0.1], [0, 2, 1, 3])
        return Respond().score([answer], [question])["mrr"]

    assert mrr(QUESTION) == 1.0
    assert mrr(replace(QUESTION, answer=1)) == 0.25
    assert mrr(ChoiceQuestion("a", ("other", "no", "yes.", "b"), 2)) == 0.5  # control: a tie
