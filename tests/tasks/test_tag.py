"""Tests of token classification: readers, label schemes, windows, CRF and scores."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factories import hf_folder, tiny_config, tiny_tokenizer

from bertkit.batch import by_length
from bertkit.checkpoint.directory import save
from bertkit.config import plain
from bertkit.data.tag_schemes import SCHEMES, Entity, scheme_of, scheme_of_labels, spans
from bertkit.engine.engine import Engine
from bertkit.errors import ConfigError, DataError
from bertkit.families import BERT
from bertkit.models.model import Model, build
from bertkit.nn.crf import CHUNK_WORDS
from bertkit.objectives.loss import totals
from bertkit.pipelines import answering
from bertkit.tasks.tag import Example, Tag, TagAnswer, TaggedEntity, TagOptions
from bertkit.tasks.task import Feature, Reading, by_example, group, make_batch, run_head
from bertkit.text.encoding import word_windows
from bertkit.text.tokenizer import NO_LIMIT, Tokenizer
from bertkit.text.vocabulary_training import train

LETTERS = "abcdefghij"
IOB2 = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
BIOES = ("O", *(f"{p}-{kind}" for kind in ("LOC", "PER") for p in "BIES"))
CRF = TagOptions(crf=True, scheme="iob2")


@lru_cache
def shared() -> Tokenizer:
    return tiny_tokenizer([*LETTERS, *(f"##{a}" for a in LETTERS), "."])


@pytest.fixture
def tokenizer() -> Tokenizer:
    return shared()


def model_of(task: Tag, length: int = 64) -> Model:
    torch.manual_seed(0)
    config = tiny_config(shared(), hidden=32, intermediate=64, length=length, dropout=0.0)
    model = build(config, {task.head: task.build_head}, labels=task.labels)
    with torch.no_grad():  # larger than the initial weights, so that answers differ
        for weight in model.heads.parameters():
            weight.normal_()
    return model.eval()


def tagged(words: str, tags: str) -> Example:
    parts = words.split(" ")
    ends = np.cumsum([len(part) + 1 for part in parts]) - 1
    word_spans = [(int(end) - len(part), int(end)) for end, part in zip(ends, parts, strict=True)]
    return Example(words, word_spans, tags.split(" "))


def write(path: Path, content: str) -> Path:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def fit(task: Tag, model: Model, features: Sequence[Feature], steps: int) -> float:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    last = 0.0
    for _ in range(steps):
        lengths = [len(feature.encoding) for feature in features]
        batches = [
            make_batch(task, [features[i] for i in part]) for part in by_length(lengths, 256)
        ]
        optimizer.zero_grad()
        losses = [task.loss(model, batch, totals(batches)) for batch in batches]
        total = torch.stack([loss.total for loss in losses]).sum()
        total.backward()
        optimizer.step()
        last = total.item()
    model.eval()
    return last


def answered(
    task: Tag, model: Model, tokenizer: Tokenizer, examples: Sequence[Example], length: int = 64
) -> list[TagAnswer]:
    features = task.features(examples, tokenizer, length, long="window", labeled=False)
    outputs = run_head(task, Engine(model, precision=None, max_batch_tokens=512), features)
    return task.answers(by_example(examples, group(features), outputs), model.heads[task.head])


# ---- Readers


def test_reader_keeps_lines_of_words_in_columns(tmp_path: Path) -> None:
    text = "-DOCSTART- O\n\nAda I-PER\nof O\nYork I-LOC\n\nran O\n"
    path = write(tmp_path / "a.iob.gz", text)
    (first, second), message = Tag.reader.read(path, Reading(), labeled=True)
    assert first.text == "Ada of York"
    assert first.words == ["Ada", "of", "York"]
    assert (first.tags, second.tags) == (["I-PER", "O", "I-LOC"], ["O"])
    assert (first.where, second.where) == (f"{path}:3", f"{path}:7")
    assert [first.where_is(word) for word in range(3)] == [f"{path}:{line}" for line in (3, 4, 5)]
    assert message == f"{path}: 2 sentences, 4 words; tags in IOB1: LOC, PER"
    (bare, _), message = Tag.reader.read(path, Reading(), labeled=False)
    assert bare == replace(first, tags=None)
    assert message == f"{path}: 2 sentences, 4 words"


def test_reader_reports_language_prefix_of_words(tmp_path: Path) -> None:
    path = tmp_path / "wikiann.txt"
    path.write_text("en:New B-LOC\nen:York I-LOC\nen:is O\n", encoding="utf-8")
    assert "all words begin with 'en:'" in Tag.reader.read(path, Reading(), labeled=True)[1]
    path.write_text("en:New B-LOC\nYork I-LOC\n", encoding="utf-8")
    assert "begins with" not in Tag.reader.read(path, Reading(), labeled=True)[1]


def test_columns_are_selected_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "1 Ada NNP B-PER\n2 ran VBD O\n")
    [found], _ = Tag.reader.read(path, Reading(text_column="1"), labeled=True)
    assert (found.words, found.tags) == (["Ada", "ran"], ["B-PER", "O"])
    [found], message = Tag.reader.read(
        path, Reading(text_column="1", label_column="-2"), labeled=True
    )
    assert found.tags == ["NNP", "VBD"]
    assert message.endswith("; 2 different tags")


def test_reader_parses_spans_and_reports_changes(tmp_path: Path) -> None:
    rows = [
        {"text": "Ada's  York!", "entities": [[0, 3, "PER"], [8, 11, "LOC"], [5, 6, "X"]]},
        {"text": "", "entities": []},
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    (first, second), message = Tag.reader.read(path, Reading(), labeled=True)
    assert first.words == ["Ada", "'", "s", "York", "!"]
    assert first.tags == ["B-PER", "O", "O", "B-LOC", "O"]
    assert [first.text[a:b] for a, b in first.word_spans] == first.words
    assert (second.words, second.tags, second.where) == ([], [], f"{path}:2")
    assert second.where_is(0) == f"{path}:2"
    assert message == (
        f"{path}: 2 texts, 5 words; tags in IOB2: LOC, PER; entities "
        "expanded to whole words: 1; entities skipped because they contain no separate word: 1"
    )
    bare = write(tmp_path / "b.jsonl", '{"text": "Ada ran"}\n')
    [found], _ = Tag.reader.read(bare, Reading(), labeled=False)
    assert (found.words, found.tags) == (["Ada", "ran"], None)


@pytest.mark.parametrize(
    ("reading", "message"),
    [(Reading(pair_column="x"), "^pair_column: not supported by tag; remove it"),
     (Reading(header=False), "header: .* remove it"),
     (Reading(separator="space"), "separator: .* remove it"),
     (Reading(text_column="word"), "^text_column: expected a column number from 0, .* got 'word'"),
     (Reading(label_column="1.5"), "^label_column: expected a column number .* got '1.5'")],
)  # fmt: skip
def test_unsupported_reading_options_are_rejected(
    tmp_path: Path, reading: Reading, message: str
) -> None:
    path = write(tmp_path / "a.txt", "Ada B-PER\n")
    with pytest.raises(ConfigError, match=message):
        Tag.reader.read(path, reading, labeled=True)


def test_reader_rejects_unusable_files_with_line_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a", "entities": []}\n{"text": "a"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: no field 'entities'"):
        Tag.reader.read(path, Reading(), labeled=True)
    for name in ("text_column", "label_column"):
        with pytest.raises(ConfigError, match=rf"^{name}: not supported for rows"):
            Tag.reader.read(path, Reading(**{name: "0"}), labeled=True)
    with pytest.raises(DataError, match=r"b\.jsonl: no column 'text'; did you mean 'texts'"):
        Tag.reader.read(write(tmp_path / "b.jsonl", '{"texts": "a"}'), Reading(), labeled=False)
    with pytest.raises(DataError, match=r"c\.jsonl:1: lone surrogate"):
        Tag.reader.read(
            write(tmp_path / "c.jsonl", '{"text": "\\ud800"}'), Reading(), labeled=False
        )
    with pytest.raises(DataError, match=r"a\.txt:2: only a column of words; add a column of tags"):
        Tag.reader.read(write(tmp_path / "a.txt", "\na\nb\n"), Reading(), labeled=True)
    with pytest.raises(DataError, match=r"a\.bio:2: tag 'X-A' is not valid in IOB2"):
        Tag.reader.read(write(tmp_path / "a.bio", "a B-A\nb X-A\nc O\n"), Reading(), labeled=True)
    with pytest.raises(DataError, match=r"gone\.txt: no such file"):
        Tag.reader.read(tmp_path / "gone.txt", Reading(), labeled=True)


def test_example_rejects_invalid_text() -> None:
    with pytest.raises(DataError, match="pass one text"):
        Tag.reader.example("a", ("b",))
    with pytest.raises(DataError, match="the text is empty"):
        Tag.reader.example(" \n", ())
    with pytest.raises(DataError, match="character 1: lone surrogate"):
        Tag.reader.example("a\ud800", ())


# ---- Labels of the task


def test_labels_are_complete_and_sorted() -> None:
    train = [tagged("a b c", "B-PER O B-LOC"), tagged("a b", "B-LOC I-LOC")]
    task = Tag.from_examples(train, TagOptions())
    assert (task.labels, task.options.scheme, task.metric, task.head) == (IOB2, "iob2", "f1", "tag")
    iob1 = [tagged("a b c d", "I-PER I-PER B-PER I-LOC")]
    assert Tag.from_examples(iob1, TagOptions()).labels == IOB2
    task = Tag.from_examples(train, TagOptions(crf=True, scheme="bioes"))
    assert (task.labels, task.head) == (BIOES, "crf")
    assert Tag.from_examples([tagged("a b", "S-LOC S-PER")], TagOptions()).labels == BIOES
    task = Tag.from_examples([tagged("a b c d", "VB NN NN IN")], TagOptions())
    assert task.labels == ("NN", "IN", "VB")
    assert (task.options.scheme, task.metric) == ("none", "accuracy")


def test_restore_returns_saved_task() -> None:
    task = Tag.from_examples([tagged("a b", "S-LOC S-PER")], TagOptions(crf=True))
    again = Tag.restore(task.labels, json.loads(json.dumps(task.settings())))
    assert (again.labels, plain(again.options)) == (task.labels, plain(task.options))
    for labels, scheme in (
        (IOB2, "iob2"),
        (("O", "I-PER", "I-LOC"), "iob2"),
        (BIOES, "bioes"),
        (("O", "PER", "LOC"), "none"),
        (("NN", "VB"), "none"),
    ):
        assert Tag.restore(labels, {}).options == TagOptions(scheme=scheme)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("example", "options", "message"),
    [(tagged("a b", "O O"), TagOptions(), "only one tag, 'O'"),
     (tagged("a b", "NN NN"), TagOptions(), "only one tag, 'NN'"),
     (Example("", [], []), TagOptions(), "no words"),
     (tagged("a b", "NN VB"), TagOptions(scheme="iob2"), "'iob2', but the tags are not entities"),
     (tagged("a b", "B-A O"), TagOptions(scheme="none"), "'none', but the tags are in IOB2"),
     (Example("a", [(0, 1)]), TagOptions(), "1 words and no tags"),
     (Example("a", [(0, 1)], ["O", "O"]), TagOptions(), "1 words and 2 tags")],
)  # fmt: skip
def test_from_examples_rejects_unusable_tags(
    example: Example, options: TagOptions, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Tag.from_examples([example], options)


def test_check_rejects_unknown_tags_with_line_number(tmp_path: Path) -> None:
    task = Tag(IOB2, TagOptions(scheme="iob2"))
    path = write(tmp_path / "dev.txt", "a O\n\nb B-PER\nc B-LOK\n")
    dev, _ = Tag.reader.read(path, Reading(), labeled=True)
    with pytest.raises(
        DataError, match=r"dev\.txt:4: entity type 'LOK' is not in the training .* mean 'LOC'"
    ):
        task.check(dev)
    with pytest.raises(DataError, match=r"dev\.txt:4: entity type 'LOK'"):
        Tag(("O", *BIOES[5:]), TagOptions(scheme="bioes")).check(dev)
    row = {"text": "a b", "entities": [[2, 3, "PRE"]]}
    dev, _ = Tag.reader.read(
        write(tmp_path / "dev.jsonl", json.dumps(row)), Reading(), labeled=True
    )
    with pytest.raises(DataError, match=r"dev\.jsonl:1: entity type 'PRE' .* mean 'PER'"):
        task.check(dev)
    with pytest.raises(DataError, match="a text: tag 'NN' is not in the training file"):
        task.check([tagged("a", "NN")])
    with pytest.raises(DataError, match=r"tag 'B-PER' is not .*known: 'NN', 'VB'"):
        Tag(("NN", "VB"), TagOptions(scheme="none")).check([tagged("a b", "NN B-PER")])
    task.check([tagged("a b", "I-PER I-LOC"), tagged("a b", "S-PER E-LOC")])


# ---- Windows


@given(st.lists(st.integers(0, 9) | st.integers(0, 3), max_size=60), st.integers(4, 40))
def test_each_word_is_in_window_with_most_context(sizes: list[int], length: int) -> None:
    encoding = shared().encode(["a" * n or "\x00" for n in sizes], max_length=NO_LIMIT)
    all_words = np.array([-1 if word is None else word for word in encoding.words])
    found = list(word_windows(encoding, length))
    seen = [
        window.words[position] for window, positions in found for position in positions.tolist()
    ]
    assert seen == [word for word, size in enumerate(sizes) if size]
    overlap, capacity = length // 4, length - 2
    every = range(1, max(len(encoding) - 2 - overlap, 1) + 1, capacity - overlap)
    for window, positions in found:
        assert len(window) <= length
        assert (window.ids[0], window.ids[-1]) == (shared().cls, shared().sep)
        assert not window.truncated
        window_words = np.array([-1 if word is None else word for word in window.words])
        for position in positions.tolist():
            word = window_words[position]
            first, last = np.flatnonzero(all_words == word)[[0, -1]]
            assert window_words[position - 1] != word
            if sizes[word] <= overlap or len(encoding) <= length:
                assert (window_words == word).sum() == sizes[word]  # all tokens of the word

            def context(start: int, first: int = first, last: int = last) -> int:
                stop = min(start + capacity, len(encoding) - 1)
                # No context is missing at the end of the text.
                after = length if stop == len(encoding) - 1 else stop - 1 - last
                return min(first - start if start > 1 else length, after)

            if sizes[word] <= overlap and len(encoding) > length:
                start = int(first) - position + 1
                inside = [s for s in every if s <= first < s + capacity]
                assert context(start) == max(map(context, inside))


def test_features_reject_length_without_capacity(tokenizer: Tokenizer) -> None:
    task = Tag(IOB2, TagOptions(scheme="iob2"))
    with pytest.raises(DataError, match="length = 2 is too short: 0 tokens remain"):
        task.features([tagged("a b", "O O")], tokenizer, 2, long="window", labeled=False)


def test_targets_are_at_first_tokens(tokenizer: Tokenizer) -> None:
    task = Tag(IOB2, TagOptions(scheme="iob2"))
    train = [tagged("abc d ef", "I-PER O B-LOC")]
    [feature] = task.features(train, tokenizer, 64, long="window", labeled=True)
    assert feature.token_indices is not None
    assert feature.token_indices.tolist() == [1, 4, 5]
    assert feature.target.tolist() == [3, 0, 1]
    batch = make_batch(task, [feature, feature])
    assert batch.token_indices is not None
    assert batch.token_indices.tolist() == [1, 4, 5, 9, 12, 13]
    assert totals([batch]) == {"tag": 6}


def test_words_without_tokens_have_no_target(tokenizer: Tokenizer) -> None:
    task = Tag(IOB2, TagOptions(scheme="iob2"))
    example = tagged("a \x00 b \x00 c \x00", "B-PER B-LOC I-LOC I-LOC I-LOC B-PER")
    [feature] = task.features([example], tokenizer, 64, long="window", labeled=True)
    assert [task.labels[tag] for tag in feature.target] == ["B-PER", "B-LOC", "I-LOC"]
    empty = tagged("\x00", "O")
    assert len(task.features([example, empty], tokenizer, 64, long="window", labeled=True)) == 1
    with pytest.raises(DataError, match="the tokenizer returns no token for any example"):
        task.features([empty], tokenizer, 64, long="window", labeled=True)


# ---- Predictions


def test_csv_file_contains_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'id,text\n1,Ada saw\n2,"Bob, ran"\n')
    found, _ = Tag.reader.read(path, Reading(), labeled=False)
    assert [example.words for example in found] == [["Ada", "saw"], ["Bob", ",", "ran"]]
    with pytest.raises(DataError, match=r"a.csv:2: no field 'entities'"):
        Tag.reader.read(path, Reading(), labeled=True)


def test_words_without_tokens_have_predictions(tokenizer: Tokenizer) -> None:
    task = Tag(IOB2, TagOptions(scheme="iob2"))
    examples = [
        Tag.reader.example("a \x00 b \x00", ()),
        Tag.reader.example("\x00", ()),
        Example("", []),
    ]
    features = task.features(examples, tokenizer, 64, long="window", labeled=False)
    rows = np.eye(5, dtype=np.float32)[[3, 4]] * 9
    outputs = [rows, rows[:0], rows[:0]]
    first, second, third = task.answers(
        by_example(examples, group(features), outputs), torch.nn.Identity()
    )
    [entity] = first.entities
    assert (entity.text, entity.type, entity.start, entity.end) == ("a \x00 b", "PER", 0, 5)
    assert entity.score > 0.99
    assert first.tags == ["B-PER", "I-PER", "I-PER", "O"]
    assert (second.tags, third.tags) == (["O"], [])
    speech = Tag(("NN", "VB"), TagOptions(scheme="none"))
    outputs = [rows[:, 3:], rows[:0, 3:], rows[:0, 3:]]
    first = speech.answers(by_example(examples, group(features), outputs), torch.nn.Identity())[0]
    assert first.tags == ["NN", "NN", "VB", "NN"]
    assert first.entities == []


@lru_cache
def ready(crf: bool, labels: tuple[str, ...]) -> tuple[Tag, Model]:
    task = Tag(labels, Tag.restore(labels, {}).options)
    task.options = msgspec.structs.replace(task.options, crf=crf)
    return task, model_of(task, length=16)


texts = st.text() | st.text("abcj .\x00\u200b\u0301北'\n", max_size=60)


@pytest.mark.parametrize("labels", [IOB2, BIOES], ids=["iob2", "bioes"])
@pytest.mark.parametrize("crf", [False, True], ids=["softmax", "crf"])
def test_entities_are_complete_words_of_raw_text(crf: bool, labels: tuple[str, ...]) -> None:
    task, model = ready(crf, labels)
    scheme = scheme_of_labels(labels)
    assert scheme is not None
    many = 0

    @given(st.lists(texts.filter(lambda text: bool(text.strip())), min_size=1, max_size=4))
    @settings(max_examples=40)
    def check(several: list[str]) -> None:
        nonlocal many
        examples = [Tag.reader.example(text, ()) for text in several]
        for example, answer in zip(
            examples, answered(task, model, shared(), examples, length=16), strict=True
        ):
            assert answer.words == example.words
            assert len(answer.tags) == len(answer.words)
            assert spans(answer.tags) == [
                (
                    [a for a, _ in example.word_spans].index(entity.start),
                    [b for _, b in example.word_spans].index(entity.end) + 1,
                    entity.type,
                )
                for entity in answer.entities
            ]
            for entity in answer.entities:
                assert example.text[entity.start : entity.end] == entity.text
                assert 0.0 < entity.score <= 1.0 + 1e-5
            many += len(answer.entities)
            tags = answer.tags
            if tags:
                assert all(scheme.allows(a, b) for a, b in pairwise(["O", *tags, "O"]))
            assert json.loads(msgspec.json.encode(answer))["tags"] == answer.tags

    check()
    assert many > 20


def marginals(crf: Any, emissions: np.ndarray) -> np.ndarray:
    """Compute the marginals of a sequence in fp64, because long sums are too large for fp32."""
    steps, start, end = (scores.detach().double().numpy() for scores in crf._scores(-torch.inf))
    forward, backward = [start + emissions[0]], [end]
    for emission in emissions[1:]:
        forward.append(np.logaddexp.reduce(forward[-1][:, None] + steps, axis=0) + emission)
    for emission in emissions[:0:-1]:
        backward.append(np.logaddexp.reduce(steps + (backward[-1] + emission), axis=1))
    total = np.stack(forward) + np.stack(backward[::-1])
    return np.exp(total - np.logaddexp.reduce(total, axis=1, keepdims=True))


def test_chunked_scores_match_exact_marginals(tokenizer: Tokenizer) -> None:
    task, model = ready(True, IOB2)
    model.heads["crf"].crf.start.data.zero_()  # type: ignore[union-attr]
    model.heads["crf"].crf.end.data.zero_()  # type: ignore[union-attr]
    example = Tag.reader.example("a bc j d " * CHUNK_WORDS, ())
    features = task.features([example], tokenizer, 16, long="window", labeled=False)
    outputs = run_head(task, Engine(model, precision=None, max_batch_tokens=4096), features)
    [answer] = task.answers(by_example([example], group(features), outputs), model.heads["crf"])
    crf = model.heads["crf"].crf
    exact = marginals(crf, np.concatenate(outputs).astype(np.float64))
    tags = [IOB2.index(tag) for tag in answer.tags]
    scores = [
        exact[np.arange(start, end), tags[start:end]].mean() for start, end, _ in spans(answer.tags)
    ]
    errors = np.abs(np.array([e.score for e in answer.entities]) - scores)
    assert len(scores) > 100
    # Words next to a chunk boundary get start or end scores.
    assert np.median(errors) < 1e-3


# ---- Training


@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
def test_training_fits_entity_of_600_words_across_windows(
    scheme: Any, tokenizer: Tokenizer
) -> None:
    labels = {"iob2": IOB2, "bioes": BIOES}[scheme]
    task = Tag(labels, TagOptions(crf=True, scheme=scheme))
    text = "j a " + "bc d " * 299 + "e" + " j" * 5
    tags = SCHEMES[scheme].encode([Entity(1, 601, "PER")], 606)
    example = tagged(text, " ".join(tags))
    model = model_of(task, length=128)
    features = task.features([example], tokenizer, 128, long="window", labeled=True)
    assert len(features) > 5
    crf = model.heads["crf"].crf
    batch = make_batch(task, sorted(features, key=lambda f: len(f.encoding)))
    lengths = [len(f.target) for f in sorted(features, key=lambda f: len(f.encoding))]
    naive = crf(task.outputs(model, batch), batch.targets["crf"], lengths)  # type: ignore[operator]
    assert naive.max() > 1e20  # control: a window cannot begin with I-
    assert fit(task, model, features, 16) < 0.1
    [answer] = answered(task, model, tokenizer, [example], length=128)
    assert task.score([answer], [example])["f1"] == 1.0
    [entity] = answer.entities
    assert entity.text == text[2:-10]


def test_window_within_entity_is_conditioned_on_open_entity() -> None:
    """The expected value is p(I I | B before), enumerated over the tags of the window."""
    task = Tag(("O", "B-X", "I-X"), CRF)
    crf = model_of(task).heads["crf"].crf
    emissions, targets = torch.randn(2, 3), torch.tensor([2, 2])
    nll = crf(*task._add_surroundings(emissions, targets, [2])).sum()  # type: ignore[operator,arg-type]
    scores = crf.transitions.double().masked_fill(~crf.allowed, -torch.inf)  # type: ignore[operator,union-attr]
    table = scores[1][:, None] + emissions[0][:, None] + scores + emissions[1] + crf.end
    expected = table.logsumexp((0, 1)) - table[2, 2]
    torch.testing.assert_close(nll.double(), expected, atol=1e-4, rtol=1e-5)


# ---- Scores


names = st.sampled_from(IOB2)


@given(st.lists(st.lists(st.tuples(names, names), min_size=1, max_size=9), min_size=1))
@settings(max_examples=50)
def test_f1_matches_seqeval_for_any_prediction(pairs: list[list[tuple[str, str]]]) -> None:
    metrics = pytest.importorskip("seqeval.metrics", reason="pip install 'bertkit[dev]'")
    task = Tag(IOB2, TagOptions(scheme="iob2"))
    predicted = [[IOB2.index(tag) for _, tag in rows] for rows in pairs]
    gold = [SCHEMES["iob2"].encode(spans([tag for tag, _ in rows]), len(rows)) for rows in pairs]
    examples = [tagged(" ".join("a" * len(tags)), " ".join(tags)) for tags in gold]
    features = task.features(examples, shared(), 64, long="window", labeled=False)
    outputs = [np.eye(5, dtype=np.float32)[tags] for tags in predicted]
    answers = task.answers(by_example(examples, group(features), outputs), torch.nn.Identity())
    scores = task.score(answers, examples)
    raw = [[tag for _, tag in rows] for rows in pairs]
    for tags in (raw, [answer.tags for answer in answers]):
        report = (gold, tags)
        assert scores["f1"] == pytest.approx(metrics.f1_score(*report, zero_division=0))
        assert scores["precision"] == pytest.approx(
            metrics.precision_score(*report, zero_division=0)
        )
        assert scores["recall"] == pytest.approx(metrics.recall_score(*report, zero_division=0))
    assert accuracy_of(answers, gold) == pytest.approx(scores["accuracy"])


def accuracy_of(answers: Sequence[TagAnswer], gold: Sequence[Sequence[str]]) -> float:
    pairs = [p for a, g in zip(answers, gold, strict=True) for p in zip(a.tags, g, strict=True)]
    return float(np.mean([a == b for a, b in pairs]))


def test_error_record_lists_wrong_entities() -> None:
    task = Tag(IOB2, TagOptions(scheme="iob2"))
    example = tagged("Ada met Joe", "B-PER O B-PER")
    answer = TagAnswer(
        [TaggedEntity("Ada", "LOC", 0, 3, 0.25), TaggedEntity("Joe", "PER", 8, 11, 0.9)],
        example.words,
        ["B-LOC", "O", "B-PER"],
    )
    record = task.error_record(answer, example)
    assert record.shown == "Ada met Joe"
    assert record.expected == "Ada (PER), Joe (PER)"
    assert record.answered == "Ada (LOC 0.25), Joe (PER 0.90)"
    assert record.severity == pytest.approx(1.25)
    speech = Tag(("NN", "VB"), TagOptions(scheme="none"))
    wrong = TagAnswer([], example.words, ["NN", "NN", "NN"])
    record = speech.error_record(wrong, tagged("Ada met Joe", "NN VB NN"))
    assert (record.expected, record.answered, record.severity) == ("met/VB", "met/NN", 1)


# ---- Saved models


def test_logits_and_saved_model_match_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    labels = {"id2label": dict(enumerate(IOB2)), "label2id": {n: i for i, n in enumerate(IOB2)}}
    hf_model = hf_folder(tmp_path, "BertForTokenClassification", tokenizer, **labels)
    assert "bertkit" not in json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    pipe = answering(tmp_path)
    assert isinstance(pipe.task, Tag)
    assert pipe.task.options == TagOptions(scheme="iob2")
    examples = [Tag.reader.example(text, ()) for text in ("abc d ef.", "j", "a bcd e f gh i")]
    features = pipe.task.features(examples, tokenizer, 64, long="window", labeled=False)
    outputs = run_head(
        pipe.task, Engine(pipe.loaded.model, precision=None, max_batch_tokens=512), features
    )
    for feature, rows in zip(features, outputs, strict=True):
        with torch.no_grad():
            logits = hf_model(input_ids=torch.from_numpy(feature.encoding.ids)[None]).logits[0]
        np.testing.assert_allclose(rows, logits[feature.token_indices].numpy(), atol=1e-5)
    answers = pipe([example.text for example in examples])
    for answer, rows in zip(answers, outputs, strict=True):
        assert spans(answer.tags) == spans([IOB2[i] for i in rows.argmax(-1)])
    save(tmp_path / "again", pipe.loaded.model, tokenizer, BERT, labels=IOB2)
    hf_reloaded = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "again")
    torch.testing.assert_close(hf_reloaded.classifier.weight, hf_model.classifier.weight)


# ---- Public data sets


@pytest.mark.parametrize(
    ("name", "count", "summary"),
    [
        (
            "conll2003/valid.txt",
            3250,
            "3,250 sentences, 51,362 words; tags in IOB2: LOC, MISC, ORG, PER",
        ),
        (
            "wnut17/emerging.dev.conll",
            1009,
            "1,009 sentences, 15,733 words; tags in IOB2: corporation, creative-work, group, "
            "location, person, product",
        ),
    ],
)
def test_public_data_sets_are_parsed_and_encoded(
    data_folder: Path, name: str, count: int, summary: str
) -> None:
    tokenizer = Tokenizer.load(data_folder / "vocab" / "bert_cased_vocab.txt")
    examples, message = Tag.reader.read(data_folder / name, Reading(), labeled=True)
    assert message == f"{data_folder / name}: {summary}"
    assert len(examples) == count
    for options in (TagOptions(), TagOptions(scheme="bioes")):
        task = Tag.from_examples(examples, options)
        for length in (512, 24):
            features = task.features(examples[:300], tokenizer, length, long="window", labeled=True)
            num_targets = sum(len(f.target) for f in features)
            assert num_targets == sum(len(e.parts.spans) for e in examples[:300])
            assert max(len(f.encoding) for f in features) <= length
            tags: dict[int, list[str]] = {}
            for feature in features:
                names = tags.setdefault(feature.example, [])
                names += [task.labels[tag] for tag in feature.target]
            gold = [
                [
                    Entity(e.parts.of_word(a), e.parts.of_word(b), kind)
                    for a, b, kind in spans(e.tags or [])
                ]
                for e in examples[:300]
            ]
            assert [spans(tags[i]) for i in range(300)] == gold
            assert scheme_of([*tags.values()]) is task.scheme


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_sentence_tokens_equal_tokens_of_text(
    kind: Literal["bpe", "wordpiece"], data_folder: Path, english: list[str]
) -> None:
    vocabulary = train(english[:30], kind=kind, size=2000)
    examples, _ = Tag.reader.read(data_folder / "conll2003/valid.txt", Reading(), labeled=True)
    task = Tag.from_examples(examples, TagOptions())
    features = task.features(examples, vocabulary, NO_LIMIT, long="window", labeled=True)
    texts = vocabulary.encode_batch([e.text for e in examples], max_length=NO_LIMIT)
    assert len(features) == len(examples) == 3250
    for feature, text in zip(features, texts, strict=True):
        assert feature.encoding.ids.tolist() == text.ids.tolist()
    # Control: words encoded one by one have these tokens only with WordPiece.
    alone = vocabulary.core.encode_batch([e.words for e in examples], is_pretokenized=True)
    same = [
        len(example.words) > 1 and a.ids == text.ids.tolist()
        for example, a, text in zip(examples, alone, texts, strict=True)
    ]
    assert sum(same) == (0 if kind == "bpe" else sum(len(e.words) > 1 for e in examples))
