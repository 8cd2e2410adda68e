"""Tests of extractive summarization: sentences, oracle targets, selection and files."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tests.factories import SPECIALS, tiny_model, tiny_tokenizer

import bertkit
from bertkit import metrics
from bertkit.checkpoint.directory import save
from bertkit.engine.engine import Engine
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.families import BERT
from bertkit.models.model import Model
from bertkit.objectives.loss import totals
from bertkit.tasks import find
from bertkit.tasks.summarize import (
    Summarize,
    SummarizeOptions,
    SummaryAnswer,
    SummaryExample,
    oracle,
)
from bertkit.tasks.task import Feature, Outputs, Reading, by_example, group, make_batch, run_head
from bertkit.text.tokenizer import Tokenizer

LENGTH = 24
WORDS = [*("the", "a", "cat", "dog", "bird", "fish", "home"), *("ran", "sat", "ate")]
WORDS += ["quickly", "today", ".", "!", "?"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer(WORDS)


def model() -> Model:
    labels, shape = ("summary",), {"hidden": 32, "heads": 4, "intermediate": 64, "length": LENGTH}
    vocab = len(SPECIALS) + len(WORDS)
    return tiny_model(vocab, "tag", labels=labels, dropout=0.0, spread=0.1, **shape).eval()


def task(sentences: int = 3, *, block_trigrams: bool = True) -> Summarize:
    options = SummarizeOptions(sentences=sentences, block_trigrams=block_trigrams)
    return Summarize(("summary",), options)


def windows(
    task: Summarize, examples: list[SummaryExample], tokenizer: Tokenizer, *, labeled: bool = False
) -> list[Feature]:
    return task.features(examples, tokenizer, LENGTH, long="window", labeled=labeled)


def logits_of(task: Summarize, net: Model, features: list[Feature]) -> list[Outputs]:
    return run_head(task, Engine(net, precision=None, max_batch_tokens=10_000), features)


def lines(folder: Path, *rows: object) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path, *, labeled: bool = True, **columns: str) -> list[SummaryExample]:
    return Summarize.reader.read(path, Reading(**columns), labeled=labeled)[0]


DOCUMENT = "The cat sat today.  A dog\nran home quickly!\n\nThe bird ate a fish. The dog ate."

SENTENCE = st.builds(
    lambda words, end: " ".join(words).capitalize() + end,
    st.lists(st.sampled_from(WORDS[:12]), min_size=1, max_size=30),
    st.sampled_from(".!?"),
)
DOCUMENTS = st.lists(
    st.tuples(SENTENCE, st.sampled_from([" ", "\n", "  ", "\n\n"])), min_size=1, max_size=12
).map(lambda parts: "".join(sentence + space for sentence, space in parts))


# ---- Sentences and model inputs


@given(st.text(min_size=1).filter(str.strip) | DOCUMENTS)
@example("x" * 9_000)
@example("\u200b\x1c\n\x85a. “B!” she said. C")
@example("字字。" * 3_000)
def test_sentence_spans_are_ordered_and_skip_whitespace(document: str) -> None:
    spans = SummaryExample(document).spans
    rest, end = "", 0
    for start, stop in spans:
        assert end <= start < stop
        assert document[start:stop] == document[start:stop].strip()
        rest += document[end:start]
        end = stop
    assert not (rest + document[end:]).strip()


def test_sentences_match_manual_split() -> None:
    assert SummaryExample(DOCUMENT).sentences == [
        "The cat sat today.",
        "A dog\nran home quickly!",
        "The bird ate a fish.",
        "The dog ate.",
    ]


@given(st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_each_sentence_is_in_exactly_one_window(tokenizer: Tokenizer, documents: list[str]) -> None:
    examples = [SummaryExample(document) for document in documents]
    features = windows(task(), examples, tokenizer)
    assert [f.example for f in features] == sorted(f.example for f in features)
    for number, document in enumerate(examples):
        found = [f for f in features if f.example == number]
        assert sum(len(f.token_indices) for f in found) == len(document.sentences)
        sentences = iter(zip(document.spans, document.sentences, strict=True))
        for window in found:
            encoding = window.encoding
            assert len(encoding) <= LENGTH
            assert (
                np.flatnonzero(encoding.ids == tokenizer.cls).tolist()
                == window.token_indices.tolist()
            )
            parts = np.split(np.arange(len(encoding)), window.token_indices[1:])
            for order, (part, ((start, end), text)) in enumerate(
                zip(parts, sentences, strict=False)
            ):
                assert encoding.types[part].tolist() == [order % 2] * len(part)
                assert encoding.ids[part[-1]] == tokenizer.sep
                alone = tokenizer.encode(text, max_length=LENGTH, truncate="first")
                assert encoding.ids[part].tolist() == alone.ids.tolist()
                for position in part[1:-1]:
                    first, last = encoding.offsets[position]
                    assert start <= first < last <= end
                    token = tokenizer.pieces([encoding.ids[position]])[0]
                    assert document.document[first:last].lower() == token
                assert (encoding.offsets[part[[0, -1]]] == 0).all()
                assert encoding.truncated or not alone.truncated
        assert next(sentences, None) is None


def test_windows_contain_complete_sentences(tokenizer: Tokenizer) -> None:
    features = windows(task(), [SummaryExample("The cat sat. " * 10)], tokenizer)
    assert [len(f.token_indices) for f in features] == [4, 4, 2]  # six tokens each
    assert [len(f.encoding) for f in features] == [24, 24, 12]


def test_answer_reports_truncated_sentence(tokenizer: Tokenizer) -> None:
    document = "The cat sat. " + "a dog " * 40 + "ran. The bird ate."
    features = windows(task(), [SummaryExample(document)], tokenizer)
    assert [f.encoding.truncated for f in features] == [False, True, False]
    assert len(features[1].encoding) == LENGTH
    outputs = [np.zeros((len(f.token_indices), 1), np.float32) for f in features]
    [answer] = task().answers(
        by_example([SummaryExample(document)], group(features), outputs), model()
    )
    assert answer.truncated


def test_special_token_in_text_starts_no_sentence(tokenizer: Tokenizer) -> None:
    [feature] = windows(task(), [SummaryExample("A cat [CLS] sat.")], tokenizer)
    assert feature.token_indices.tolist() == [0]


# ---- Training targets


def brute_force(sentences: Sequence[str], references: Sequence[str], most: int) -> list[int]:
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < most:
        scores = {}
        for index in set(range(len(sentences))) - set(chosen):
            text = " ".join(sentences[i] for i in sorted([*chosen, index]))
            rouge = metrics.rouge([text], [references])
            scores[index] = rouge["rouge1"] + rouge["rouge2"]
        index = min(scores, key=lambda i: (-scores[i], i), default=None)
        if index is None or scores[index] <= best:
            break
        best = scores[index]
        chosen.append(index)
    return sorted(chosen)


TEXTS = st.lists(st.sampled_from([*"abcde", "!"]), max_size=7).map(" ".join)


@given(st.lists(TEXTS, max_size=6), st.lists(TEXTS, min_size=1, max_size=3), st.integers(1, 4))
def test_oracle_matches_greedy_choice_by_rouge(
    sentences: list[str], references: list[str], most: int
) -> None:
    assert oracle(sentences, references, most) == brute_force(sentences, references, most)


def test_oracle_matches_manual_choice() -> None:
    sentences = ["A cat sat.", "A dog ran home.", "It rained.", "The dog was a dog."]
    assert oracle(sentences, ["the dog ran home as it rained"], 3) == [1, 2]
    assert oracle(sentences, ["the dog ran home as it rained"], 1) == [1]
    assert oracle(sentences, ["the dog ran home", "a cat sat"], 1) == [
        0
    ]  # both sentences are optimal
    assert oracle(sentences, ["nothing of that"], 3) == []
    # The bigram "a c" spans two chosen sentences, and choosing "b" would split it.
    assert oracle(["a", "b", "c"], ["a c b"], 3) == [0, 2]


def test_targets_match_oracle_across_windows(tokenizer: Tokenizer) -> None:
    long_example = SummaryExample(
        "The cat sat. " * 5 + "A dog ran home. " + "The cat sat. " * 4, ("dog ran home",)
    )
    short_example = SummaryExample("A fish.", ("a bird",))
    features = windows(task(1), [long_example, short_example], tokenizer, labeled=True)
    assert (
        np.concatenate([f.target for f in features[:-1]]).tolist() == [0.0] * 5 + [1.0] + [0.0] * 4
    )
    assert features[-1].target.tolist() == [1.0]
    batch = make_batch(task(1), sorted(features, key=lambda f: len(f.encoding)))
    assert batch.targets["tag"].dtype == torch.float32
    assert len(batch.targets["tag"]) == len(batch.token_indices) == 11
    assert (batch.ids[batch.token_indices] == tokenizer.cls).all()
    assert batch.types.max() == 1


def test_loss_equals_mean_over_sentences(tokenizer: Tokenizer) -> None:
    examples = [
        SummaryExample(DOCUMENT, ("the bird ate",)),
        SummaryExample("The dog ran. A cat sat.", ("cat",)),
        SummaryExample("A fish ate.", ("fish",)),
    ]
    summarize, net = task(1), model()
    features = windows(summarize, examples, tokenizer, labeled=True)
    features.sort(key=lambda f: len(f.encoding))
    loss = summarize.loss(
        net, make_batch(summarize, features), totals([make_batch(summarize, features)])
    )
    rows = np.concatenate(logits_of(summarize, net, features))[:, 0]
    probabilities = 1 / (1 + np.exp(-rows.astype(np.float64)))
    targets = np.concatenate([f.target for f in features])
    expected = -np.log(np.where(targets == 1, probabilities, 1 - probabilities)).mean()
    assert loss.total.item() == pytest.approx(expected, abs=1e-6)


def test_cls_scores_match_transformers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    summarize, net = task(), model()
    save(tmp_path, net, tokenizer, BERT, labels=summarize.labels, settings=summarize.settings())
    hf_model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    for feature in windows(summarize, [SummaryExample(DOCUMENT)], tokenizer):
        ids, types = (
            torch.from_numpy(a)[None] for a in (feature.encoding.ids, feature.encoding.types)
        )
        with torch.no_grad():
            logits = hf_model(ids, token_type_ids=types).logits[0, feature.token_indices]
        np.testing.assert_allclose(
            logits_of(summarize, net, [feature])[0], logits.numpy(), atol=1e-5
        )


# ---- Predictions


def trigrams(text: str) -> set[tuple[str, ...]]:
    words = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


@given(DOCUMENTS, st.integers(1, 5), st.booleans(), st.data())
def test_chosen_sentences_share_no_trigram(
    document: str, most: int, block: bool, data: st.DataObject
) -> None:
    document_example = SummaryExample(document)
    count = len(document_example.sentences)
    scores = np.array(data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)))
    chosen = task(most, block_trigrams=block).choose(document_example.sentences, scores)
    assert chosen == sorted(set(chosen))
    assert 1 <= len(chosen) <= most
    assert int(np.argmax(scores)) in chosen
    if not block:
        assert len(chosen) == min(most, count)
        assert sorted(scores)[-len(chosen) :] == sorted(scores[chosen])
        return
    for index in chosen:
        for other in chosen:
            shared = trigrams(document_example.sentences[index]) & trigrams(
                document_example.sentences[other]
            )
            assert index == other or not shared
    if len(chosen) < most:  # only blocked sentences are skipped
        chosen_trigrams = set().union(
            *(trigrams(document_example.sentences[index]) for index in chosen)
        )
        for index in set(range(count)) - set(chosen):
            assert trigrams(document_example.sentences[index]) & chosen_trigrams


def test_trigram_blocking_supports_any_script() -> None:
    texts = ["Кот ел рыбу дома.", "Кот ел рыбу.", "Пёс спал."]
    scores = np.array([0.9, 0.8, 0.1])
    assert task(2).choose(texts, scores) == [0, 2]
    assert task(2, block_trigrams=False).choose(texts, scores) == [0, 1]


def test_choose_prefers_first_sentences_with_equal_scores() -> None:
    assert task(3).choose(["One."] * 200, np.tile([0.1, 0.5], 100)) == [1, 3, 5]


def test_answers_are_slices_of_document(tokenizer: Tokenizer) -> None:
    document, summarize = SummaryExample(DOCUMENT), task(2)
    features = windows(summarize, [document], tokenizer)
    assert len(features) == 2
    outputs = [np.array([[-1.0], [2.0], [0.0]], np.float32), np.array([[1.0]], np.float32)]
    [answer] = summarize.answers(by_example([document], group(features), outputs), model())
    assert answer.text == "A dog\nran home quickly! The dog ate."
    assert [DOCUMENT[c.start : c.end] for c in answer.sentences] == [
        c.text for c in answer.sentences
    ]
    assert [c.score for c in answer.sentences] == pytest.approx([0.880797, 0.731059], abs=1e-6)
    assert not answer.truncated
    assert json.loads(msgspec.json.encode(answer))["sentences"][0]["start"] == 20


def test_pipeline_summarizes_with_saved_model(tmp_path: Path, tokenizer: Tokenizer) -> None:
    saved_task = task(1, block_trigrams=False)
    save(
        tmp_path, model(), tokenizer, BERT, labels=saved_task.labels, settings=saved_task.settings()
    )
    summarize = bertkit.pipeline("summarize", tmp_path)
    assert summarize.task.options == saved_task.options
    single = summarize("The cat sat.")
    assert single.text == "The cat sat."
    several = summarize([DOCUMENT, "The cat sat.", DOCUMENT * 5])
    assert len(several) == 3
    assert several[1].sentences[0].score == pytest.approx(single.sentences[0].score, abs=1e-5)
    assert [len(answer.sentences) for answer in several] == [1, 1, 1]
    with pytest.raises(DataError, match="the document is empty"):
        summarize([" \n"])
    with pytest.raises(DataError, match="expected one document"):
        summarize([("The cat sat.", "A dog ran.")])
    with pytest.raises(ConfigError, match="summarize supports window"):
        summarize(DOCUMENT, long="truncate")


def test_scores_include_the_first_sentences() -> None:
    example = SummaryExample(DOCUMENT, ("the bird ate a fish",))
    scores = task(1).score([_summary("The bird ate a fish.")], [example])
    assert scores[task().metric] == scores["rouge1"] == scores["rouge2"] == 1.0
    lead = metrics.rouge(["The cat sat today."], [example.references])
    assert {name: scores[f"lead_{name}"] for name in lead} == lead
    assert scores["lead_rouge1"] < 0.8


def test_restore_rejects_labels_of_other_tasks() -> None:
    with pytest.raises(CheckpointError, match="its labels are B-PER, O; run"):
        Summarize.restore(("B-PER", "O"), {})


def test_error_severity_grows_with_wrong_words() -> None:
    document = SummaryExample(DOCUMENT, ("the bird ate a fish", "a dog ran"))
    record = task().error_record(_summary("The bird ate a fish."), document)
    assert (record.severity, record.expected) == (0.0, "the bird ate a fish | a dog ran")
    assert record.answered == "The bird ate a fish."
    assert task().error_record(_summary("It rained."), document).severity == 1.0
    assert 0.0 < task().error_record(_summary("A cat ran."), document).severity < 1.0


def _summary(text: str) -> SummaryAnswer:
    return SummaryAnswer(text, [])


# ---- Files


def test_columns_are_inferred_or_set_by_name(tmp_path: Path) -> None:
    assert find("summarize") is Summarize
    path = lines(
        tmp_path,
        {"id": 1, "body": "A mail. More.", "subject": "mail", "annotated_subjects": ["a mail"]},
        {"id": 2, "body": "Two.", "subject": "[Fwd: two]", "annotated_subjects": []},
    )
    assert read(path) == [
        SummaryExample("A mail. More.", ("mail", "a mail"), f"{path}:1"),
        SummaryExample("Two.", ("[Fwd: two]",), f"{path}:2"),
    ]
    assert [e.references for e in read(path, label_column="subject")] == [
        ("mail",),
        ("[Fwd: two]",),
    ]
    assert read(path, labeled=False)[1] == SummaryExample("Two.", (), f"{path}:2")
    message = Summarize.reader.read(path, Reading(), labeled=True)[1]
    assert message.endswith(
        "2 rows; text = 'body', summary = 'subject', summary = 'annotated_subjects'"
    )
    path = lines(tmp_path, {"text": "One. Two.", "summary": ["one", "two"]})
    assert read(path)[0].references == ("one", "two")
    path = lines(tmp_path, {"document": "One.", "summary": "one", "title": "two"})
    assert read(path, label_column="title") == [SummaryExample("One.", ("two",), f"{path}:1")]
    assert read(path, text_column="title")[0].document == "two"


@pytest.mark.parametrize(
    ("rows", "message"),
    [([{"text": "A.", "summary": "a"}, {"text": " \n", "summary": "a"}], ":2: the document is e"),
     ([{"text": "A.", "summary": "a"}, {"text": "A.", "summary": " "}], ":2: no summary"),
     ([{"text": "A.", "summary": None}], ":1: no summary; add a summary or remove the row"),
     ([{"text": "A.", "summary": []}], ":1: no summary"),
     ([{"text": "A.", "summary": ["a", ""]}], ":1: no summary"),
     ([{"text": "A.", "summary": "a"}, {"text": "A."}], ":2: no field 'summary'"),
     ([{"text": "A.", "words": "a"}], "a known name for the summary; set label_column="),
     ([{"words": "A.", "summary": "a"}], "a known name for the document; set text_column=")],
)  # fmt: skip
def test_reader_rejects_invalid_rows(rows: list[object], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl.*" + message):
        read(lines(tmp_path, *rows))


def test_invalid_columns_and_missing_summaries_are_rejected(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    path = lines(tmp_path, {"text": "A cat.", "summary": "zebra"})
    with pytest.raises(DataError, match="no column 'sumary'; did you mean 'summary'"):
        read(path, label_column="sumary")
    with pytest.raises(ConfigError, match=r"^pair_column: not supported for documents"):
        read(path, pair_column="summary")
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no document contains a word"):
        Summarize.from_examples(read(path), SummarizeOptions())
    unlabeled = read(path, labeled=False)
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no summary"):
        task().check(unlabeled)
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no summary"):
        windows(task(), unlabeled, tokenizer, labeled=True)


def test_reader_accepts_compressed_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv.gz"
    path.write_bytes(gzip.compress(b"document\tsummary\nA cat sat. It ate.\tcat\n"))
    assert read(path) == [SummaryExample("A cat sat. It ate.", ("cat",), f"{path}:2")]


def test_long_document_is_summarized_in_seconds(tokenizer: Tokenizer) -> None:
    document = SummaryExample(
        "The cat sat and a dog ran home today. " * 27_000, ("the cat ran home",)
    )
    began = time.monotonic()
    summarize = task()
    features = summarize.features([document], tokenizer, 512, long="window", labeled=True)
    outputs = [np.zeros((len(f.token_indices), 1), np.float32) for f in features]
    [answer] = summarize.answers(by_example([document], group(features), outputs), model())
    assert time.monotonic() - began < 30
    assert sum(len(f.token_indices) for f in features) == 27_000
    assert len(answer.sentences) == 1  # all others share its trigrams


def test_public_mails_are_parsed_and_summarized(data_folder: Path) -> None:
    examples, message = Summarize.reader.read(
        data_folder / "aeslc" / "dev.jsonl", Reading(), labeled=True
    )
    assert len(examples) == 1960
    assert "1,960 rows; text = 'body', summary = 'subject'" in message
    assert {len(mail.references) for mail in examples} == {4}
    assert len(read(data_folder / "aeslc" / "train_every3rd.jsonl")) == 4812
    subset = examples[:150]
    began = time.monotonic()
    best = [oracle(mail.sentences, mail.references, 1) for mail in subset]
    assert time.monotonic() - began < 5
    for mail, chosen in zip(subset[:40], best, strict=False):
        assert chosen == brute_force(mail.sentences, mail.references, 1)
    vocabulary = Tokenizer.load(data_folder / "vocab" / "bert_uncased_vocab.txt")
    summarize = task(1)
    features = summarize.features(subset, vocabulary, 512, long="window", labeled=True)
    assert max(len(f.encoding) for f in features) <= 512
    assert sum(len(f.token_indices) for f in features) == sum(
        len(mail.sentences) for mail in subset
    )
    assert sum(f.target.sum() for f in features) == sum(map(len, best))
    outputs = [np.where(f.target == 1, 9.0, -9.0).astype(np.float32)[:, None] for f in features]
    scores = summarize.score(
        summarize.answers(by_example(subset, group(features), outputs), model()), subset
    )
    assert scores["rouge1"] > scores["lead_rouge1"] + 0.05  # the oracle is better than the lead
