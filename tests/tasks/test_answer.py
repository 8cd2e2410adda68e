"""Tests of extractive question answering: windows, targets, best spans and thresholds."""

from __future__ import annotations

import json
import string
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import hf_folder, tiny_tokenizer
from torch import nn

import bertkit
from bertkit import metrics
from bertkit.data.question_answering import Question
from bertkit.errors import ConfigError, DataError
from bertkit.objectives.loss import totals
from bertkit.tasks import find
from bertkit.tasks.answer import Answer, AnswerOptions, AnswerSpan, QuestionAnswer, best_spans
from bertkit.tasks.task import Feature, Outputs, Reading, by_example, group, make_batch
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

LETTERS = string.ascii_lowercase[:12]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer([*LETTERS, "##s", "mill", "."])


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def trained(request: pytest.FixtureRequest, english: list[str]) -> Tokenizer:
    return train(english[:30], kind=request.param, size=700, lowercase=True)


def windows(
    task: Answer,
    tokenizer: Tokenizer,
    examples: Sequence[Question],
    length: int,
    *,
    labeled: bool = False,
) -> list[Feature]:
    return task.features(examples, tokenizer, length, long="window", labeled=labeled)


def noise(features: Sequence[Feature], seed: int = 0) -> list[Outputs]:
    random = np.random.default_rng(seed)
    return [random.normal(size=(len(f.encoding), 2)).astype(np.float32) for f in features]


def oracle(features: Sequence[Feature]) -> list[Outputs]:
    """Large logits at the targets."""
    found = []
    for feature in features:
        logits = np.zeros((len(feature.encoding), 2), dtype=np.float32)
        logits[list(feature.target), [0, 1]] = 50.0
        found.append(logits)
    return found


def test_reader_rejects_unsupported_columns_and_wrong_contexts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^label_column: not supported for SQuAD"):
        Answer.reader.read(tmp_path / "a.json", Reading(label_column="x"), labeled=True)
    with pytest.raises(DataError, match=r"a\.json: no such file"):
        Answer.reader.read(tmp_path / "a.json", Reading(), labeled=True)
    for contexts in ((), ("a", "b")):
        with pytest.raises(DataError, match=f"got {len(contexts)} contexts"):
            Answer.reader.example("Who?", contexts)
    with pytest.raises(DataError, match="is empty"):
        Answer.reader.example("Who?", (" ",))


# ---- Model inputs and targets


@given(
    question=st.integers(1, 30),
    context=st.integers(1, 80),
    length=st.integers(5, 40),
    overlap=st.integers(0, 60),
    question_tokens=st.integers(1, 30),
)
def test_windows_contain_every_context_token(
    tokenizer: Tokenizer,
    question: int,
    context: int,
    length: int,
    overlap: int,
    question_tokens: int,
) -> None:
    task = Answer((), AnswerOptions(window_overlap=overlap, question_tokens=question_tokens))
    example = Question(" ".join("a" * question), " ".join(LETTERS[i % 12] for i in range(context)))
    found = [feature.encoding for feature in windows(task, tokenizer, [example], length)]
    num_question_tokens = min(question, question_tokens, (length - 3) // 2)
    capacity = length - 3 - num_question_tokens
    num_shared = min(overlap, capacity // 2)
    seen: list[int] = []
    for number, encoding in enumerate(found):
        assert len(encoding) <= length
        assert encoding.truncated == (num_question_tokens < question)
        assert tokenizer.pieces(encoding.ids[: num_question_tokens + 2]) == [
            "[CLS]",
            *"a" * num_question_tokens,
            "[SEP]",
        ]
        assert tokenizer.pieces(encoding.ids[-1:]) == ["[SEP]"]
        positions = (encoding.offsets[num_question_tokens + 2 : -1, 0] // 2).tolist()
        assert [example.context[2 * p] for p in positions] == tokenizer.pieces(
            encoding.ids[num_question_tokens + 2 : -1]
        )
        assert encoding.sequence == [
            None,
            *[0] * num_question_tokens,
            None,
            *[1] * len(positions),
            None,
        ]
        assert encoding.types.tolist() == [0] * (num_question_tokens + 2) + [1] * (
            len(positions) + 1
        )
        assert (
            positions[: num_shared if number else 0]
            == seen[len(seen) - num_shared if number else 0 :]
        )
        seen += positions[num_shared if number else 0 :]
    assert seen == list(range(context))


def test_features_reject_short_length_and_empty_context(tokenizer: Tokenizer) -> None:
    example = Question("a", "b c", where="x.json: q1")
    assert len(windows(Answer(), tokenizer, [example], 5)) == 2
    with pytest.raises(DataError, match="of 4 tokens is too short"):
        windows(Answer(), tokenizer, [example], 4)
    empty = Question("a", "\u200b", where="x.json: q1")
    with pytest.raises(DataError, match=r"x\.json: q1: the context has no tokens"):
        windows(Answer(), tokenizer, [empty], 16)


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [("b", ["b"]), ("b c", ["b", "c"]), ("ill", ["mill"]), ("l", ["mill"]), ("s", ["##s"])],
)
def test_targets_are_the_tokens_of_the_answer(
    tokenizer: Tokenizer, answer: str, tokens: list[str]
) -> None:
    context = "a b c mills."
    example = Question("d", context, ((answer, context.index(answer)),))
    [feature] = windows(Answer(), tokenizer, [example], 16, labeled=True)
    start, end = feature.target
    assert tokenizer.pieces(feature.encoding.ids[start : end + 1]) == tokens


def test_target_is_cls_in_windows_without_complete_answer(tokenizer: Tokenizer) -> None:
    context = " ".join("abcdefghijkl")
    example = Question("a", context, (("f g h", context.index("f g h")),))
    found = windows(
        Answer((), AnswerOptions(window_overlap=2)), tokenizer, [example], 9, labeled=True
    )
    shown = ["".join(tokenizer.pieces(f.encoding.ids[3:-1])) for f in found]
    assert shown == ["abcde", "defgh", "ghijk", "jkl"]
    assert [f.target for f in found] == [(0, 0), (5, 7), (0, 0), (0, 0)]
    unanswered = windows(Answer(), tokenizer, [Question("a", context)], 9, labeled=True)
    assert {f.target for f in unanswered} == {(0, 0)}


@pytest.fixture(scope="module")
def real(data_folder: Path) -> tuple[Tokenizer, list[Question]]:
    path = data_folder / "squad1" / "dev-v1.1-24articles.json"
    examples, _ = Answer.reader.read(path, Reading(), labeled=True)
    return Tokenizer.load(data_folder / "vocab" / "bert_uncased_vocab.txt"), examples[:300]


def splits_words(example: Question) -> bool:
    """Return whether the answer starts or ends within a word, such as "gold" in "golden"."""
    text, start = example.answers[0]
    context, end = f" {example.context} ", start + len(text)
    return any(context[i : i + 2].isalnum() for i in (start, end))


def test_targets_match_squad_answers(real: tuple[Tokenizer, list[Question]]) -> None:
    tokenizer, examples = real
    found = windows(Answer(), tokenizer, examples, 128, labeled=True)
    answered_examples = set()
    for feature in found:
        if feature.target != (0, 0):
            start, end = feature.target
            example = examples[feature.example]
            decoded = tokenizer.decode(feature.encoding.ids[start : end + 1])
            shown = "".join(decoded.split())
            normal = tokenizer.core.normalizer.normalize_str(example.answers[0][0])
            answer = "".join(normal.split())
            assert answer in shown if splits_words(example) else answer == shown
            answered_examples.add(feature.example)
    assert answered_examples == set(range(len(examples)))


def test_oracle_logits_answer_squad_questions(real: tuple[Tokenizer, list[Question]]) -> None:
    tokenizer, examples = real
    task = Answer()
    found = windows(task, tokenizer, examples, 128, labeled=True)
    outputs = oracle(found)
    for logits, feature in zip(outputs, found, strict=True):
        if feature.target == (0, 0):
            logits[:] = 0.0
    answers = task.answers(by_example(examples, group(found), outputs), nn.Identity())
    for answer, example in zip(answers, examples, strict=True):
        check(answer, example)
        text, start = example.answers[0]
        if splits_words(example):
            assert text in answer.answer
        else:
            assert (answer.answer, answer.start) == (text, start)
    assert sum(map(splits_words, examples)) <= 12
    assert task.score(answers, examples)["exact"] >= 0.96
    moved = [np.roll(logits, 1, axis=0) for logits in outputs]  # control
    wrong = task.answers(by_example(examples, group(found), moved), nn.Identity())
    assert task.score(wrong, examples)["exact"] < 0.1


def test_long_context_is_encoded_in_linear_time(tokenizer: Tokenizer) -> None:
    words = "mill bbbbbbbbbbbbb. " * 50_000
    context = words + "kkkk k"
    example = Question("a", context, (("k", len(context) - 1),))
    start = time.process_time()
    found = windows(Answer(), tokenizer, [example], 384, labeled=True)
    answers = Answer().answers(by_example([example], group(found), oracle(found)), nn.Identity())
    assert time.process_time() - start < 15.0
    assert len(context) > 1_000_000
    assert len(found) > 500
    assert found[-1].target[0] == len(found[-1].encoding) - 2
    assert answers[0].answer


# ---- Predictions


def check(answer: QuestionAnswer, example: Question) -> None:
    """Check the properties that every answer has."""
    assert answer.answer == example.context[answer.start : answer.end]
    spans = [(span.start, span.end) for span in answer.best]
    assert len(set(spans)) == len(spans)
    for span in answer.best:
        assert span.text == example.context[span.start : span.end]
        assert span.text
        assert span.text == span.text.strip()
    probabilities = [span.score for span in answer.best]
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0.0 < answer.score <= 1.0


@given(data=st.data())
def test_best_spans_match_brute_force(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 10))
    longest, best = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 60))
    values = st.integers(-40, 40).map(lambda n: n / 4) | st.just(-np.inf)
    logits = np.array(
        data.draw(st.lists(st.tuples(values, values), min_size=size, max_size=size)), np.float32
    )
    scores, first, last = best_spans(logits, longest, best)
    everything = [
        logits[i, 0] + logits[j, 1]
        for i in range(size)
        for j in range(i, min(i + longest, size))
        if logits[i, 0] + logits[j, 1] > -np.inf
    ]
    assert sorted(scores, reverse=True) == sorted(everything, reverse=True)[:best]
    assert len({*zip(first.tolist(), last.tolist(), strict=True)}) == len(scores)
    for score, i, j in zip(scores, first, last, strict=True):
        assert score == logits[i, 0] + logits[j, 1]
        assert i <= j < i + longest


@pytest.mark.parametrize("seed", range(5))
def test_answers_match_brute_force_over_all_windows(tokenizer: Tokenizer, seed: int) -> None:
    task = Answer((), AnswerOptions(window_overlap=4, answer_tokens=3, best=5, no_answer=True))
    context = "a b  mills c. d e f g h mills"
    example = Question("k", context)
    found = windows(task, tokenizer, [example], 12)
    assert len(found) > 1
    outputs = noise(found, seed)
    scores: dict[tuple[int, int], float] = {}
    for feature, logits in zip(found, outputs, strict=True):
        encoding = feature.encoding
        body = [i for i, sequence in enumerate(encoding.sequence) if sequence == 1]
        for i in body:
            for j in body:
                if i <= j < i + 3:
                    span = int(encoding.offsets[i, 0]), int(encoding.offsets[j, 1])
                    score = float(logits[i, 0] + logits[j, 1])
                    scores[span] = max(scores.get(span, -np.inf), score)
    expected = sorted(scores, key=lambda span: -scores[span])[:5]
    [answer] = task.answers(by_example([example], group(found), outputs), nn.Identity())
    check(answer, example)
    assert [(s.start, s.end) for s in answer.best] == expected
    null = min(float(logits[0].sum()) for logits in outputs)
    assert answer.null_score == pytest.approx(null - scores[expected[0]], abs=1e-5)
    exps = np.exp([*(scores[span] for span in expected), null])
    assert [s.score for s in answer.best] == pytest.approx((exps / exps.sum())[:-1], abs=1e-5)
    if answer.null_score > 0:
        assert answer.answer == ""
        assert answer.score == pytest.approx(exps[-1] / exps.sum(), abs=1e-5)
    else:
        assert answer.answer == answer.best[0].text


def test_no_answer_is_predicted_above_threshold(tokenizer: Tokenizer) -> None:
    example = Question("a", "b c d")
    found = windows(Answer(), tokenizer, [example], 16)
    logits = np.zeros((len(found[0].encoding), 2), dtype=np.float32)
    logits[0] = 2.0  # the score of no answer is 4
    logits[4, 0], logits[5, 1] = 1.5, 1.0  # "c d": 2.5

    def predict(**options: Any) -> QuestionAnswer:
        task = Answer((), AnswerOptions(**options))
        return task.answers(by_example([example], group(found), [logits]), nn.Identity())[0]

    assert predict(no_answer=True).answer == ""
    assert predict(no_answer=True).null_score == pytest.approx(1.5)
    assert predict(no_answer=True, null_threshold=1.6).answer == "c d"
    assert predict(no_answer=True, null_threshold=1.4).answer == ""
    prediction = predict()
    assert prediction.answer == "c d"
    assert sum(span.score for span in prediction.best) == pytest.approx(1.0)
    assert json.loads(msgspec.json.encode(prediction))["answer"] == "c d"


MARKED = st.lists(
    st.tuples(
        st.sampled_from("aeonZÅπи"), st.text(alphabet="\u0301\u0308\u0327\u0303\u0323", max_size=2)
    ).map("".join),
    min_size=1,
    max_size=4,
).map("".join)
ELSE = ["👩‍👩‍👧", "❤️", "1️⃣", "東京", "ﬁne", "İstanbul", "Zoë", "किताब", "e\u0301e\u0301 Zoe\u0308"]


def predict_certain(tokenizer: Tokenizer, answer: str) -> tuple[str, str]:
    """Return the predicted answer, and the text that its tokens cover, for certain logits."""
    before = "She is ("
    context = f"{before}{answer}), and no other."
    example = Question("Who?", context, ((answer, len(before)),))
    task = Answer()
    [feature] = windows(task, tokenizer, [example], 256, labeled=True)
    start, end = feature.target
    logits = np.zeros((len(feature.encoding), 2), dtype=np.float32)
    logits[start, 0] = logits[end, 1] = 9.0
    [found] = task.answers(by_example([example], [[feature]], [logits]), nn.Identity())
    assert context[found.start : found.end] == found.answer
    offsets = feature.encoding.offsets
    return found.answer, context[offsets[start, 0] : offsets[end, 1]]


@given(answer=st.one_of(MARKED, st.sampled_from(ELSE)))
def test_answers_keep_combining_marks(trained: Tokenizer, answer: str) -> None:
    assert predict_certain(trained, answer)[0] == answer


def test_control_token_offsets_lose_final_combining_marks(english: list[str]) -> None:
    for kind in ("wordpiece", "unigram"):
        folded = train(english[:10], kind=kind, size=400, lowercase=True)
        assert predict_certain(folded, "Zoe\u0308")[1] == "Zoe"


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_slices_with_every_tokenizer_type(
    trained: Tokenizer, english: list[str], seed: int
) -> None:
    examples = [
        Question("What   is it?", text[seed * 50 : seed * 50 + 400] + "  \n x")
        for text in english[:6]
    ]
    task = Answer((), AnswerOptions(best=50))
    found = windows(task, trained, examples, 64)
    answers = task.answers(by_example(examples, group(found), noise(found, seed)), nn.Identity())
    for answer, example in zip(answers, examples, strict=True):
        check(answer, example)
        assert len(answer.best) > 25


def test_answer_reports_truncated_question(tokenizer: Tokenizer) -> None:
    task = Answer((), AnswerOptions(question_tokens=2))
    examples = [Question("a b", "c " * 30), Question("a b c", "d")]
    found = windows(task, tokenizer, examples, 16)
    answers = task.answers(by_example(examples, group(found), noise(found)), nn.Identity())
    assert [answer.truncated for answer in answers] == [False, True]


# ---- Scores and thresholds


def answered(text: str, null_score: float) -> QuestionAnswer:
    return QuestionAnswer("", 0, 0, 1.0, [AnswerSpan(text, 0, len(text), 1.0)], null_score)


GOLDS = st.sampled_from([(), (("a mill", 0),), (("lake", 0),), (("mill pond", 0),)])
TEXTS = st.sampled_from(["mill", "lake", "pond", "the"])


@given(st.lists(st.tuples(GOLDS, TEXTS, st.integers(-3, 3)), min_size=1, max_size=9))
def test_calibrated_threshold_maximizes_f1(
    rows: list[tuple[tuple[tuple[str, int], ...], str, int]],
) -> None:
    task = Answer((), AnswerOptions(no_answer=True))
    examples = [Question("a", "b", golds) for golds, _, _ in rows]
    answers = [answered(text, float(score)) for _, text, score in rows]

    def f1(threshold: float) -> float:
        given = ["" if a.null_score > threshold else a.best[0].text for a in answers]
        return metrics.squad(given, [[t for t, _ in e.answers] for e in examples])["f1"]

    tuned = task.calibrated(answers, examples)
    if all(example.answerable for example in examples):
        assert tuned is task
        return
    threshold = tuned.options.null_threshold
    assert f1(threshold) == pytest.approx(max(f1(t) for t in np.arange(-4.5, 4.6, 0.5)))
    again = Answer.restore((), json.loads(json.dumps(tuned.settings())))
    assert again.options == tuned.options


def test_threshold_requires_unanswerable_questions() -> None:
    train = [Question("a", "b", (("b", 0),), "rows:1")]
    with pytest.raises(DataError, match="null_threshold: requires unanswerable questions"):
        Answer.from_examples(train, AnswerOptions(null_threshold=1.0))
    options = AnswerOptions(null_threshold=1.0, no_answer=True)
    assert Answer.from_examples(train, options).options == options


def test_calibration_keeps_explicit_threshold() -> None:
    examples, answers = [Question("a", "b")], [answered("b", 1.0)]
    for options in (
        AnswerOptions(no_answer=True, null_threshold=3.0),
        AnswerOptions(no_answer=False),
    ):
        task = Answer((), options)
        assert task.calibrated(answers, examples) is task
    assert (
        Answer((), AnswerOptions(no_answer=True))
        .calibrated(answers, examples)
        .options.null_threshold
        < 1
    )


def test_scores_and_error_records_match_manual_values() -> None:
    examples = [Question("Who?", "He did.", (("He", 0),)), Question("Who?", "It did.")]
    answers = [
        QuestionAnswer("He did", 0, 6, 0.5, [], 0.0),
        QuestionAnswer("", 0, 0, 0.75, [], 0.0),
    ]
    task = Answer()
    scores = task.score(answers, examples)
    assert scores["exact"] == 0.5
    assert scores[task.metric] == pytest.approx((2 / 3 + 1) / 2)
    assert scores["no_answer_f1"] == 1.0
    first, second = (task.error_record(a, e) for a, e in zip(answers, examples, strict=True))
    assert (first.shown, first.expected, first.answered) == (
        "Who? ⟷ He did.",
        "He",
        "He did (0.50)",
    )
    assert first.severity == pytest.approx(1 / 3)
    assert (second.expected, second.answered) == ("(no answer)", "(no answer) (0.75)")
    assert second.severity == 0.0


def test_no_answer_option_is_inferred_from_examples() -> None:
    have, lack = Question("a", "b", (("b", 0),)), Question("a", "c", where="x.json: q2")
    assert find("answer") is Answer
    assert Answer.from_examples([have], AnswerOptions()).options.no_answer is False
    assert Answer.from_examples([have, lack], AnswerOptions()).options.no_answer is True
    assert (
        Answer.from_examples([have, lack], AnswerOptions(no_answer=False)).options.no_answer
        is False
    )
    with pytest.raises(DataError, match=r"x\.json: q2: no question has an answer"):
        Answer.from_examples([lack], AnswerOptions())


# ---- Parity with transformers


@pytest.mark.parametrize("sizes", [[9, 9, 9], [5, 9, 9, 12]], ids=["equal", "padded"])
def test_loss_equals_transformers(sizes: list[int], tokenizer: Tokenizer, tmp_path: Path) -> None:
    hf_model = hf_folder(tmp_path / "theirs", "BertForQuestionAnswering", tokenizer)
    model = bertkit.load(tmp_path / "theirs").model
    task = Answer()
    examples = [
        Question(
            "a", (text := " ".join(LETTERS[: size - 4])), ((text[-3:], max(len(text) - 3, 0)),)
        )
        for size in sizes
    ]
    batch = make_batch(task, windows(task, tokenizer, examples, 32, labeled=True))
    assert list(batch.layout.lengths) == sizes
    indices = batch.layout.sequence_ids, batch.layout.positions
    shape = len(sizes), max(sizes)
    blank = torch.zeros(shape, dtype=torch.long)
    seen = blank.index_put(indices, torch.tensor(1))
    targets = batch.targets["answer"]
    hf_output = hf_model.train()(
        input_ids=blank.index_put(indices, batch.ids),
        token_type_ids=blank.index_put(indices, batch.types),
        attention_mask=seen,
        start_positions=targets[:, 0],
        end_positions=targets[:, 1],
    )
    logits = torch.stack([hf_output.start_logits, hf_output.end_logits], -1)
    torch.testing.assert_close(task.outputs(model, batch), logits[indices], atol=1e-5, rtol=1e-4)
    loss = task.loss(model.train(), batch, totals([batch])).total
    swapped = replace(batch, targets={"answer": targets.flip(1)})  # the control
    assert abs((task.loss(model, swapped, totals([batch])).total - loss).item()) > 1e-4
    within = logits.masked_fill((seen == 0)[..., None], -torch.inf)
    expected = nn.functional.cross_entropy(within, targets)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    # The softmax of transformers includes padding, so the losses match only without padding.
    assert (abs((loss - hf_output.loss).item()) <= 1e-5) == (len(set(sizes)) == 1)
    expected.backward()
    loss.backward()
    for layer, hf_layer in (
        (model.heads["answer"].out, hf_model.qa_outputs),
        (model.encoder.embedding.tokens, hf_model.bert.embeddings.word_embeddings),
    ):
        torch.testing.assert_close(layer.weight.grad, hf_layer.weight.grad, atol=1e-5, rtol=1e-3)
