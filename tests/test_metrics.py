"""Metrics, compared with hand-computed values and reference libraries."""

import math
import statistics
import string

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bertkit import metrics
from bertkit.data.tag_schemes import spans


def test_classification_matches_hand_computed_scores() -> None:
    # Two of three "1" are predicted, and one "0" is predicted as "1": precision 2/3, recall 2/3.
    scores = metrics.classification(["1", "1", "1", "0", "0"], ["1", "1", "0", "1", "0"], "01")
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["f1"] == pytest.approx(2 / 3)
    # (tp·tn - fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)) = (2·1 - 1·1) / √(3·3·2·2)
    assert scores["matthews"] == pytest.approx(1 / 6)


def test_f1_averages_several_labels() -> None:
    scores = metrics.classification(["a", "b", "c", "c"], ["a", "b", "c", "b"], "abc")
    # f1: a 1, b 2/3, c 2/3
    assert scores["f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


def test_classification_accepts_a_single_label() -> None:
    assert metrics.classification(["a", "a"], ["a", "a"], "ab")["accuracy"] == 1.0


def test_regression_matches_hand_computed_scores() -> None:
    scores = metrics.regression([1.0, 2.0, 3.0], [1.0, 2.0, 9.0])
    assert scores["spearman"] == pytest.approx(1.0)
    # covariance 8, standard deviations √2 and √38
    assert scores["pearson"] == pytest.approx(8 / math.sqrt(2 * 38))


def test_correlation_of_constants_is_zero() -> None:
    assert metrics.regression([1, 1, 1], [1, 2, 3]) == {"pearson": 0.0, "spearman": 0.0}


def test_multi_label_matches_hand_computed_scores() -> None:
    # a: 1 of 1 correct. b: predicted once, wrongly, and missed once. c: missed once.
    scores = metrics.multi_label([{"a"}, {"b"}, set()], [{"a"}, {"c"}, {"b"}])
    assert scores["f1_micro"] == pytest.approx(2 * 1 / (2 + 3))
    assert scores["f1_macro"] == pytest.approx((1 + 0 + 0) / 3)
    assert scores["exact"] == pytest.approx(1 / 3)


def test_multi_label_accepts_a_single_label() -> None:
    scores = metrics.multi_label([["a"], ["a"], []], [["a"], [], []])
    assert scores["f1_micro"] == scores["f1_macro"] == pytest.approx(2 / 3)
    assert scores["exact"] == pytest.approx(2 / 3)


def test_multi_label_without_labels_is_exact() -> None:
    scores = metrics.multi_label([[], []], [[], []])
    assert scores == {"f1_micro": 0.0, "f1_macro": 0.0, "exact": 1.0}


@st.composite
def labeled(draw: st.DrawFn) -> tuple[list[str], list[str], list[str]]:
    """Generate labels and two lists of them, often with a single or an unused label."""
    labels = ["no", "yes", "a\0", "a"][: draw(st.integers(2, 4))]
    rows = draw(st.lists(st.tuples(*[st.sampled_from(labels)] * 2), min_size=1, max_size=12))
    predicted, actual = map(list, zip(*rows, strict=True))
    return labels, predicted, actual


@given(labeled())
def test_classification_equals_scikit_learn(drawn: tuple[list[str], list[str], list[str]]) -> None:
    labels, predicted, actual = drawn
    codes = [[labels.index(name) for name in names] for names in (predicted, actual)]
    scores = metrics.classification(predicted, actual, labels)
    assert scores["accuracy"] == sklearn.metrics.accuracy_score(codes[1], codes[0])
    average = {"labels": [1], "average": "macro"} if len(labels) == 2 else {"average": "macro"}
    f1 = sklearn.metrics.f1_score(codes[1], codes[0], **average, zero_division=0.0)
    assert scores["f1"] == pytest.approx(f1, abs=1e-15)
    # scikit-learn warns if there is only one label.
    several = len({*predicted, *actual}) > 1
    matthews = sklearn.metrics.matthews_corrcoef(codes[1], codes[0]) if several else 0.0
    assert scores["matthews"] == pytest.approx(matthews, abs=1e-12)


NUMBERS = st.sampled_from([-1.0, 0.0, 0.5, 2.0]) | st.floats(-1e3, 1e3).map(lambda x: round(x, 3))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12), st.sampled_from([1e-200, 1.0, 1e200]))
def test_regression_equals_scipy(pairs: list[tuple[float, float]], scale: float) -> None:
    x, y = np.array(pairs).reshape(-1, 2).T * [[scale], [1.0]]
    scores = metrics.regression(x, y)
    if len({*x}) < 2 or len({*y}) < 2:
        assert scores == {"pearson": 0.0, "spearman": 0.0}
        return
    assert scores["pearson"] == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-9)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-9)


SETS = st.sets(st.sampled_from("abc"))


@given(st.lists(st.tuples(SETS, SETS), min_size=1, max_size=8))
def test_multi_label_equals_scikit_learn(pairs: list[tuple[set[str], set[str]]]) -> None:
    predicted, actual = map(list, zip(*pairs, strict=True))
    scores = metrics.multi_label(predicted, actual)
    names = sorted(set().union(*predicted, *actual))
    y, x = (np.array([[n in s for n in names] for s in sets]) for sets in (actual, predicted))
    assert scores["exact"] == pytest.approx((x == y).all(1).mean())
    if not names:
        assert scores["f1_micro"] == scores["f1_macro"] == 0.0
        return
    micro = sklearn.metrics.f1_score(y.ravel(), x.ravel(), zero_division=0.0)
    each = [
        sklearn.metrics.f1_score(a, b, zero_division=0.0) for a, b in zip(y.T, x.T, strict=True)
    ]
    assert scores["f1_micro"] == pytest.approx(micro)
    assert scores["f1_macro"] == pytest.approx(np.mean(each))


def test_entities_match_hand_computed_scores() -> None:
    found = [[(0, 2, "PER"), (3, 4, "LOC")], [(0, 1, "PER")]]
    expected = [[(0, 2, "PER"), (3, 5, "LOC")], []]
    scores = metrics.entities(found, expected)
    assert scores["precision"] == pytest.approx(1 / 3)
    assert scores["recall"] == pytest.approx(1 / 2)
    assert scores["f1"] == pytest.approx(2 / 5)
    assert metrics.entities([[]], [[]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


TAGS = st.sampled_from(["O", "O", "B-A", "I-A", "B-B", "I-B", "E-A", "S-B"])


@given(st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=8), min_size=1, max_size=4))
def test_entities_equal_seqeval(sentences: list[list[tuple[str, str]]]) -> None:
    seqeval = pytest.importorskip(
        "seqeval.metrics.sequence_labeling", reason="pip install 'bertkit[dev]'"
    )
    found, expected = ([[pair[i] for pair in pairs] for pairs in sentences] for i in (0, 1))
    scores = metrics.entities([spans(tags) for tags in found], [spans(tags) for tags in expected])
    reference = seqeval.precision_recall_fscore_support(
        expected, found, average="micro", zero_division=0
    )
    assert [scores["precision"], scores["recall"], scores["f1"]] == pytest.approx(
        list(reference[:3])
    )


@pytest.mark.parametrize(
    ("predicted", "golds", "exact", "f1"),
    [
        ("The  Broncos!", ["Denver Broncos", "broncos"], 1, 1),
        ("Denver Broncos won", ["the Denver Broncos", "Broncos"], 0, 4 / 5),
        ("to be to be", ["to be or not"], 0, 2 * 2 / (4 + 4)),
        ("U.S.", ["us"], 1, 1),
        ("theatre an-other", ["theatre another"], 1, 1),
        # Only ASCII marks are punctuation.
        ("a “b”", ["b"], 0, 0),
        ("", [], 1, 1),
        ("", [""], 1, 1),
        ("x", [], 0, 0),
        ("", ["x"], 0, 0),
        ("x", ["", "x"], 1, 1),
        ("", ["", "x"], 0, 0),
    ],
)
def test_squad_matches_hand_computed_scores(
    predicted: str, golds: list[str], exact: float, f1: float
) -> None:
    assert metrics.squad_f1(predicted, golds) == (exact, pytest.approx(f1))


WORDS = st.lists(
    st.sampled_from(["a", "The", "an", "cat", "Cat,", "cats", "U.S.", "é", "«x»", "\u00a0", "-"]),
    max_size=6,
)
ANSWER = WORDS.map(" ".join) | st.text(max_size=12)


def slow_squad(predicted: str, gold: str) -> tuple[float, float]:
    """Score one gold answer by the definitions, character by character and word by word."""

    def words(answer: str) -> list[str]:
        letters_only = "".join(
            c for c in answer.lower() if not (c.isascii() and c in string.punctuation)
        )
        parts, letters = [], ""
        # A word of a regular expression ends where \w ends.
        for c in [*letters_only, " "]:
            if c.isalnum() or c == "_":
                letters += c
                continue
            parts += ["" if letters in ("a", "an", "the") else letters, c]
            letters = ""
        return "".join(part or " " for part in parts).split()

    found, expected = words(predicted), words(gold)
    if not found or not expected:
        return float(found == expected), float(found == expected)
    left, same = list(expected), 0
    for word in found:
        if word in left:
            left.remove(word)
            same += 1
    precision, recall = same / len(found), same / len(expected)
    f1 = 2 * precision * recall / (precision + recall) if same else 0.0
    return float(" ".join(found) == " ".join(expected)), f1


@given(ANSWER, ANSWER)
def test_squad_equals_its_definition(predicted: str, gold: str) -> None:
    assert metrics.squad_f1(predicted, [gold]) == pytest.approx(slow_squad(predicted, gold))


@given(ANSWER, st.lists(ANSWER, min_size=1, max_size=3))
def test_squad_uses_best_answer(predicted: str, golds: list[str]) -> None:
    each = [
        metrics.squad_f1(predicted, [gold]) for gold in golds if metrics.squad_f1("", [gold])[0] < 1
    ]
    if each:
        best = max(exact for exact, _ in each), max(f1 for _, f1 in each)
        assert metrics.squad_f1(predicted, golds) == best


def test_squad_reports_groups_only_if_both_exist() -> None:
    found, golds = ["x y", "", "z"], [["x"], [], [""]]
    assert metrics.squad(found, golds) == pytest.approx(
        {
            "exact": 1 / 3,
            "f1": (2 / 3 + 1) / 3,
            "has_answer_exact": 0,
            "has_answer_f1": 2 / 3,
            "no_answer_f1": 1 / 2,
        }
    )
    assert metrics.squad(found[:1], golds[:1]) == pytest.approx({"exact": 0, "f1": 2 / 3})
    assert metrics.squad(found[1:], golds[1:]) == {"exact": 0.5, "f1": 0.5}


def test_rouge_matches_hand_computed_scores() -> None:
    scores = metrics.rouge(["The cat sat down"], [["down sat the cat", "a dog"]])
    assert scores == pytest.approx({"rouge1": 1, "rouge2": 1 / 3, "rougeL": 1 / 2})
    none = metrics.rouge(["", "b"], [["a"], ["…"]])
    assert none == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}


SUMMARY = st.lists(
    st.sampled_from(["a", "b", "A", "cat's", "3.5", "über", "-", "x_y"]), max_size=80
).map(" ".join) | st.text(max_size=30)


@given(
    st.lists(st.tuples(SUMMARY, st.lists(SUMMARY, min_size=1, max_size=3)), min_size=1, max_size=3)
)
def test_rouge_equals_rouge_score(texts: list[tuple[str, list[str]]]) -> None:
    reference = pytest.importorskip("rouge_score.rouge_scorer", reason="pip install 'bertkit[dev]'")
    names = ["rouge1", "rouge2", "rougeL"]
    scorer = reference.RougeScorer(names, use_stemmer=False)
    each = [scorer.score_multi(references, text) for text, references in texts]
    scores = metrics.rouge([text for text, _ in texts], [references for _, references in texts])
    assert list(scores) == names
    for name in names:
        mean = sum(score[name].fmeasure for score in each) / len(each)
        assert scores[name] == pytest.approx(mean), name


def test_ranking_matches_hand_computed_scores() -> None:
    assert metrics.ranking([1, 2, 4, 10], of=10) == pytest.approx(
        {
            "recall@1": 1 / 4,
            "recall@2": 2 / 4,
            "recall@5": 3 / 4,
            "mrr": (1 + 1 / 2 + 1 / 4 + 0.1) / 4,
        }
    )
    assert metrics.ranking([1, 2], of=2) == {"recall@1": 0.5, "mrr": 0.75}
    assert list(metrics.ranking([3], of=5)) == ["recall@1", "recall@2", "mrr"]


def test_standard_deviation_of_one_value_is_zero() -> None:
    assert metrics.mean_and_sd([0.5]) == {"mean": 0.5, "sd": 0.0, "each": [0.5]}
    found = metrics.mean_and_sd([1.0, 2.0, 4.0])
    assert found["mean"] == pytest.approx(7 / 3)
    assert found["sd"] == pytest.approx(statistics.stdev([1.0, 2.0, 4.0]))


def test_f1_depends_on_number_of_known_labels() -> None:
    three = metrics.classification(["a", "b"], ["a", "a"], "abc")["f1"]
    # Macro average over the two labels that occur.
    assert three == pytest.approx((2 / 3 + 0) / 2)
    # The F1 of b.
    assert metrics.classification(["a", "b"], ["a", "a"], "ab")["f1"] == 0.0
