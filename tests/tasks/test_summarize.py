"""Summaries of a document's own sentences: where they are, which are learned, which are chosen."""

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
from bertkit.tasks.summarize import Summarize, SummarizeOptions, SummaryExample, oracle
from bertkit.tasks.task import Reading, by_example, group, make_batch, run_head
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


def lines(folder: Path, *rows: object) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path, *, labelled: bool = True, **columns: str) -> list[SummaryExample]:
    return Summarize.reader.read(path, Reading(**columns), labelled=labelled)[0]


DOCUMENT = "The cat sat today.  A dog\nran home quickly!\n\nThe bird ate a fish. The dog ate."

SENTENCE = st.builds(
    lambda words, end: " ".join(words).capitalize() + end,
    st.lists(st.sampled_from(WORDS[:12]), min_size=1, max_size=30),
    st.sampled_from(".!?"),
)
DOCUMENTS = st.lists(
    st.tuples(SENTENCE, st.sampled_from([" ", "\n", "  ", "\n\n"])), min_size=1, max_size=12
).map(lambda parts: "".join(sentence + space for sentence, space in parts))


# ---- sentences and what the model reads


@given(st.text(min_size=1).filter(str.strip) | DOCUMENTS)
@example("x" * 9_000)
@example("\u200b\x1c\n\x85a. “B!” she said. C")
@example("字字。" * 3_000)
def test_sentences_lie_in_order_and_leave_out_white_space_alone(document: str) -> None:
    places = SummaryExample(document).spans
    rest, end = "", 0
    for start, stop in places:
        assert end <= start < stop
        assert document[start:stop] == document[start:stop].strip()
        rest += document[end:start]
        end = stop
    assert not (rest + document[end:]).strip()


def test_sentences_by_hand() -> None:
    assert SummaryExample(DOCUMENT).sentences == [
        "The cat sat today.",
        "A dog\nran home quickly!",
        "The bird ate a fish.",
        "The dog ate.",
    ]


@given(st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_each_sentence_has_one_place_and_stands_in_one_window(
    tokenizer: Tokenizer, documents: list[str]
) -> None:
    examples = [SummaryExample(document) for document in documents]
    features = task().features(examples, tokenizer, LENGTH, long="window", labelled=False)
    assert [f.example for f in features] == sorted(f.example for f in features)
    for number, one in enumerate(examples):
        windows = [f for f in features if f.example == number]
        assert sum(len(f.token_indices) for f in windows) == len(one.sentences)
        sentences = iter(zip(one.spans, one.sentences, strict=True))
        for window in windows:
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
                for place in part[1:-1]:
                    first, last = encoding.offsets[place]
                    assert start <= first < last <= end
                    piece = tokenizer.pieces([encoding.ids[place]])[0]
                    assert one.document[first:last].lower() == piece
                assert (encoding.offsets[part[[0, -1]]] == 0).all()
                assert encoding.truncated or not alone.truncated
        assert next(sentences, None) is None


def test_windows_are_filled_with_whole_sentences(tokenizer: Tokenizer) -> None:
    features = task().features(
        [SummaryExample("The cat sat. " * 10)], tokenizer, LENGTH, long="window", labelled=False
    )
    assert [len(f.token_indices) for f in features] == [4, 4, 2]  # six tokens each
    assert [len(f.encoding) for f in features] == [24, 24, 12]


def test_a_sentence_longer_than_the_model_is_cut_and_said(tokenizer: Tokenizer) -> None:
    document = "The cat sat. " + "a dog " * 40 + "ran. The bird ate."
    features = task().features(
        [SummaryExample(document)], tokenizer, LENGTH, long="window", labelled=False
    )
    assert [f.encoding.truncated for f in features] == [False, True, False]
    assert len(features[1].encoding) == LENGTH
    outputs = [np.zeros((len(f.token_indices), 1), np.float32) for f in features]
    [answer] = task().answers(
        by_example([SummaryExample(document)], group(features), outputs), model()
    )
    assert answer.truncated


def test_a_special_token_spelled_out_is_no_sentence(tokenizer: Tokenizer) -> None:
    [feature] = task().features(
        [SummaryExample("A cat [CLS] sat.")], tokenizer, LENGTH, long="window", labelled=False
    )
    assert feature.token_indices.tolist() == [0]


# ---- what is learned


def brute_force(sentences: Sequence[str], references: Sequence[str], most: int) -> list[int]:
    chosen: list[int] = []
    best = 0.0
    while len(chosen) < most:
        scores = {}
        for place in set(range(len(sentences))) - set(chosen):
            text = " ".join(sentences[i] for i in sorted([*chosen, place]))
            rouge = metrics.rouge([text], [references])
            scores[place] = rouge["rouge1"] + rouge["rouge2"]
        place = min(scores, key=lambda i: (-scores[i], i), default=None)
        if place is None or scores[place] <= best:
            break
        best = scores[place]
        chosen.append(place)
    return sorted(chosen)


TEXTS = st.lists(st.sampled_from([*"abcde", "!"]), max_size=7).map(" ".join)


@given(
    st.lists(TEXTS, max_size=6),
    st.lists(TEXTS, min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_the_oracle_is_the_greedy_choice_by_rouge(
    sentences: list[str], references: list[str], most: int
) -> None:
    assert oracle(sentences, references, most) == brute_force(sentences, references, most)


def test_the_oracle_by_hand() -> None:
    sentences = ["A cat sat.", "A dog ran home.", "It rained.", "The dog was a dog."]
    assert oracle(sentences, ["the dog ran home as it rained"], 3) == [1, 2]
    assert oracle(sentences, ["the dog ran home as it rained"], 1) == [1]
    assert oracle(sentences, ["the dog ran home", "a cat sat"], 1) == [0]  # either is right
    assert oracle(sentences, ["nothing of that"], 3) == []
    # a c is a pair although two sentences make it, and b between them would break it
    assert oracle(["a", "b", "c"], ["a c b"], 3) == [0, 2]


def test_targets_are_the_oracle_across_windows(tokenizer: Tokenizer) -> None:
    one = SummaryExample(
        "The cat sat. " * 5 + "A dog ran home. " + "The cat sat. " * 4, ("dog ran home",)
    )
    two = SummaryExample("A fish.", ("a bird",))
    features = task(1).features([one, two], tokenizer, LENGTH, long="window", labelled=True)
    assert (
        np.concatenate([f.target for f in features[:-1]]).tolist() == [0.0] * 5 + [1.0] + [0.0] * 4
    )
    assert features[-1].target.tolist() == [1.0]
    batch = make_batch(task(1), sorted(features, key=lambda f: len(f.encoding)))
    assert batch.targets["tag"].dtype == torch.float32
    assert len(batch.targets["tag"]) == len(batch.token_indices) == 11
    assert (batch.ids[batch.token_indices] == tokenizer.cls).all()
    assert batch.types.max() == 1


def test_loss_is_the_mean_over_the_sentences_of_the_step(tokenizer: Tokenizer) -> None:
    examples = [
        SummaryExample(DOCUMENT, ("the bird ate",)),
        SummaryExample("The dog ran. A cat sat.", ("cat",)),
        SummaryExample("A fish ate.", ("fish",)),
    ]
    ours, net = task(1), model()
    features = ours.features(examples, tokenizer, LENGTH, long="window", labelled=True)
    features.sort(key=lambda f: len(f.encoding))
    whole = ours.loss(net, make_batch(ours, features), totals([make_batch(ours, features)]))
    rows = np.concatenate(
        run_head(ours, Engine(net, precision=None, max_batch_tokens=10_000), features)
    )[:, 0]
    chances = 1 / (1 + np.exp(-rows.astype(np.float64)))
    wanted = np.concatenate([f.target for f in features])
    expected = -np.log(np.where(wanted == 1, chances, 1 - chances)).mean()
    assert whole.total.item() == pytest.approx(expected, abs=1e-6)


def test_segments_matter(tokenizer: Tokenizer) -> None:
    ours, net = task(), model()
    [feature, *_] = ours.features(
        [SummaryExample("The cat sat. The cat sat.")],
        tokenizer,
        LENGTH,
        long="window",
        labelled=False,
    )
    before = run_head(ours, Engine(net, precision=None, max_batch_tokens=100), [feature])[0]
    feature.encoding.types[:] = 0
    assert (
        abs(
            run_head(ours, Engine(net, precision=None, max_batch_tokens=100), [feature])[0] - before
        ).max()
        > 1e-3
    )


def test_a_handful_of_documents_is_learned_by_heart(tokenizer: Tokenizer) -> None:
    about = ["A dog ran home.", "The cat ate a fish.", "The bird sat today."]
    rest = ["The cat sat.", "A bird ran quickly.", "The dog ate.", "A cat ran."]
    examples = [
        SummaryExample(" ".join([*rest[:place], text, *rest[place:]]), (text,), f"rows:{place}")
        for place, text in enumerate(about)
    ]
    ours, net = Summarize.from_examples(examples, SummarizeOptions(sentences=1)), model().train()
    features = ours.features(examples, tokenizer, LENGTH, long="window", labelled=True)
    batch = make_batch(ours, sorted(features, key=lambda f: len(f.encoding)))
    losses = []
    for _ in range(150):
        loss = ours.loss(net, batch, totals([batch])).total
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter -= 0.3 * gradient
        losses.append(loss.item())
    assert losses[-1] < 0.05 < losses[0]
    outputs = run_head(ours, Engine(net.eval(), precision=None, max_batch_tokens=1_000), features)
    answers = ours.answers(by_example(examples, group(features), outputs), net.heads["tag"])
    assert [answer.text for answer in answers] == about
    scores = ours.score(answers, examples)
    assert scores[ours.metric] == scores["rouge1"] == scores["rouge2"] == 1.0
    lead = metrics.rouge([about[0], rest[0], rest[0]], [e.references for e in examples])
    assert {name: scores[f"lead_{name}"] for name in lead} == lead
    assert scores["lead_rouge1"] < 0.8


def test_scores_at_the_cls_are_those_of_transformers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    ours, net = task(), model()
    save(tmp_path, net, tokenizer, BERT, labels=ours.labels, settings=ours.settings())
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    for feature in ours.features(
        [SummaryExample(DOCUMENT)], tokenizer, LENGTH, long="window", labelled=False
    ):
        ids, types = (
            torch.from_numpy(a)[None] for a in (feature.encoding.ids, feature.encoding.types)
        )
        with torch.no_grad():
            logits = theirs(ids, token_type_ids=types).logits[0, feature.token_indices]
        np.testing.assert_allclose(
            run_head(ours, Engine(net, precision=None, max_batch_tokens=100), [feature])[0],
            logits.numpy(),
            atol=1e-5,
        )


# ---- what is answered


def trigrams(text: str) -> set[tuple[str, ...]]:
    words = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


@given(DOCUMENTS, st.integers(1, 5), st.booleans(), st.data())
def test_chosen_sentences_share_no_trigram(
    document: str, most: int, block: bool, data: st.DataObject
) -> None:
    one = SummaryExample(document)
    count = len(one.sentences)
    scores = np.array(data.draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)))
    chosen = task(most, block_trigrams=block).choose(one.sentences, scores)
    assert chosen == sorted(set(chosen))
    assert 1 <= len(chosen) <= most
    assert int(np.argmax(scores)) in chosen
    if not block:
        assert len(chosen) == min(most, count)
        assert sorted(scores)[-len(chosen) :] == sorted(scores[chosen])
        return
    for place in chosen:
        for other in chosen:
            shared = trigrams(one.sentences[place]) & trigrams(one.sentences[other])
            assert place == other or not shared
    if len(chosen) < most:  # only what is blocked may be left out
        taken = set().union(*(trigrams(one.sentences[place]) for place in chosen))
        for place in set(range(count)) - set(chosen):
            assert trigrams(one.sentences[place]) & taken


def test_trigrams_of_any_script_are_blocked() -> None:
    texts = ["Кот ел рыбу дома.", "Кот ел рыбу.", "Пёс спал."]
    scores = np.array([0.9, 0.8, 0.1])
    assert task(2).choose(texts, scores) == [0, 2]
    assert task(2, block_trigrams=False).choose(texts, scores) == [0, 1]


def test_of_equally_likely_sentences_the_first_are_chosen() -> None:
    assert task(3).choose(["One."] * 200, np.tile([0.1, 0.5], 100)) == [1, 3, 5]


def test_answers_slice_the_document(tokenizer: Tokenizer) -> None:
    one, ours = SummaryExample(DOCUMENT), task(2)
    features = ours.features([one], tokenizer, LENGTH, long="window", labelled=False)
    assert len(features) == 2
    outputs = [np.array([[-1.0], [2.0], [0.0]], np.float32), np.array([[1.0]], np.float32)]
    [answer] = ours.answers(by_example([one], group(features), outputs), model())
    assert answer.text == "A dog\nran home quickly! The dog ate."
    assert [DOCUMENT[c.start : c.end] for c in answer.sentences] == [
        c.text for c in answer.sentences
    ]
    assert [c.score for c in answer.sentences] == pytest.approx([0.880797, 0.731059], abs=1e-6)
    assert not answer.truncated
    assert json.loads(msgspec.json.encode(answer))["sentences"][0]["start"] == 20


def test_a_folder_answers_through_the_pipeline(tmp_path: Path, tokenizer: Tokenizer) -> None:
    ours = task(1, block_trigrams=False)
    save(tmp_path, model(), tokenizer, BERT, labels=ours.labels, settings=ours.settings())
    summarize = bertkit.pipeline("summarize", tmp_path)
    assert summarize.task.options == ours.options
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


def test_a_folder_of_another_task_is_refused() -> None:
    with pytest.raises(CheckpointError, match="its labels are B-PER, O; run"):
        Summarize.restore(("B-PER", "O"), {})


def test_the_verdict_is_worse_the_less_is_right() -> None:
    one = SummaryExample(DOCUMENT, ("the bird ate a fish", "a dog ran"))
    shown = task().error_record(_summary("The bird ate a fish."), one)
    assert (shown.severity, shown.expected) == (0.0, "the bird ate a fish | a dog ran")
    assert shown.answered == "The bird ate a fish."
    assert task().error_record(_summary("It rained."), one).severity == 1.0
    assert 0.0 < task().error_record(_summary("A cat ran."), one).severity < 1.0


def _summary(text: str) -> bertkit.tasks.summarize.SummaryAnswer:
    return bertkit.tasks.summarize.SummaryAnswer(text, [])


# ---- files


def test_columns_are_guessed_and_named(tmp_path: Path) -> None:
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
    assert read(path, labelled=False)[1] == SummaryExample("Two.", (), f"{path}:2")
    said = Summarize.reader.read(path, Reading(), labelled=True)[1]
    assert said.endswith(
        "2 rows; text = 'body', summary = 'subject', summary = 'annotated_subjects'"
    )
    path = lines(tmp_path, {"text": "One. Two.", "summary": ["one", "two"]})
    assert read(path)[0].references == ("one", "two")
    path = lines(tmp_path, {"document": "One.", "summary": "one", "title": "two"})
    assert read(path, label_column="title") == [SummaryExample("One.", ("two",), f"{path}:1")]
    assert read(path, text_column="title")[0].document == "two"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"text": "A.", "summary": "a"}, {"text": " \n", "summary": "a"}],
            ":2: the document is e",
        ),
        ([{"text": "A.", "summary": "a"}, {"text": "A.", "summary": " "}], ":2: no summary"),
        ([{"text": "A.", "summary": None}], ":1: no summary; add a summary or remove the row"),
        ([{"text": "A.", "summary": []}], ":1: no summary"),
        ([{"text": "A.", "summary": ["a", ""]}], ":1: no summary"),
        ([{"text": "A.", "summary": "a"}, {"text": "A."}], ":2: no field 'summary'"),
        (
            [{"text": "A.", "words": "a"}],
            "a known name for the summary; set label_column=",
        ),
        (
            [{"words": "A.", "summary": "a"}],
            "a known name for the document; set text_column=",
        ),
    ],
)
def test_rows_that_cannot_be_used(rows: list[object], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl.*" + message):
        read(lines(tmp_path, *rows))


def test_what_makes_no_sense_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = lines(tmp_path, {"text": "A cat.", "summary": "zebra"})
    with pytest.raises(DataError, match="no column 'sumary'; did you mean 'summary'"):
        read(path, label_column="sumary")
    with pytest.raises(ConfigError, match=r"^pair_column: not supported for documents"):
        read(path, pair_column="summary")
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no document contains a word"):
        Summarize.from_examples(read(path), SummarizeOptions())
    unlabelled = read(path, labelled=False)
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no summary"):
        task().check(unlabelled)
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no summary"):
        task().features(unlabelled, tokenizer, LENGTH, long="window", labelled=True)


def test_a_compressed_table_will_do(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv.gz"
    path.write_bytes(gzip.compress(b"document\tsummary\nA cat sat. It ate.\tcat\n"))
    assert read(path) == [SummaryExample("A cat sat. It ate.", ("cat",), f"{path}:2")]


def test_a_megabyte_takes_seconds(tokenizer: Tokenizer) -> None:
    one = SummaryExample("The cat sat and a dog ran home today. " * 27_000, ("the cat ran home",))
    began = time.monotonic()
    ours = task()
    features = ours.features([one], tokenizer, 512, long="window", labelled=True)
    outputs = [np.zeros((len(f.token_indices), 1), np.float32) for f in features]
    [answer] = ours.answers(by_example([one], group(features), outputs), model())
    assert time.monotonic() - began < 30
    assert sum(len(f.token_indices) for f in features) == 27_000
    assert len(answer.sentences) == 1  # all others share its trigrams


def test_mails_and_their_subjects(data_folder: Path) -> None:
    examples, said = Summarize.reader.read(
        data_folder / "aeslc" / "dev.jsonl", Reading(), labelled=True
    )
    assert len(examples) == 1960
    assert "1,960 rows; text = 'body', summary = 'subject'" in said
    assert {len(one.references) for one in examples} == {4}
    assert len(read(data_folder / "aeslc" / "train_every3rd.jsonl")) == 4812
    some = examples[:150]
    began = time.monotonic()
    best = [oracle(one.sentences, one.references, 1) for one in some]
    assert time.monotonic() - began < 5
    for one, chosen in zip(some[:40], best, strict=False):
        assert chosen == brute_force(one.sentences, one.references, 1)
    vocabulary = Tokenizer.load(data_folder / "vocab" / "bert_uncased_vocab.txt")
    ours = task(1)
    features = ours.features(some, vocabulary, 512, long="window", labelled=True)
    assert max(len(f.encoding) for f in features) <= 512
    assert sum(len(f.token_indices) for f in features) == sum(len(one.sentences) for one in some)
    assert sum(f.target.sum() for f in features) == sum(map(len, best))
    wanted = [np.where(f.target == 1, 9.0, -9.0).astype(np.float32)[:, None] for f in features]
    scores = ours.score(ours.answers(by_example(some, group(features), wanted), model()), some)
    assert scores["rouge1"] > scores["lead_rouge1"] + 0.05  # the oracle is better than the lead
