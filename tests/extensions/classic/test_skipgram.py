"""Skip-gram vectors: training objective, determinism, and word similarity."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from bertkit.errors import ConfigError, DataError, TrainingError
from bertkit.extensions.classic import skipgram
from bertkit.extensions.classic.skipgram import Skipgram
from bertkit.extensions.classic.train_vectors import train_vectors, word_similarity
from bertkit.extensions.classic.word_vectors import Vectors, tokens

TOPICS = {
    "animals": ["cat", "dog", "cow", "pig", "hen"],
    "colors": ["red", "blue", "green", "grey", "pink"],
    "tools": ["saw", "drill", "axe", "file", "knife"],
}
CONTEXT_WORDS = {
    "animals": ["eats", "sleeps", "runs", "fur", "tail"],
    "colors": ["bright", "paint", "dark", "light", "shade"],
    "tools": ["cut", "wood", "sharp", "steel", "workshop"],
}
TOY = Skipgram(width=16, window=3, min_count=1, subsample=1.0, epochs=10, learning_rate=0.05)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """Write sentences of one topic word and context words; topic words never co-occur."""
    draw = random.Random(0)
    path = tmp_path / "toy.jsonl"
    with path.open("w") as file:
        for _ in range(1500):
            topic = draw.choice(list(TOPICS))
            words = [*draw.choices(CONTEXT_WORDS[topic], k=3), draw.choice(TOPICS[topic])]
            draw.shuffle(words)
            file.write(json.dumps({"text": " ".join(words)}) + "\n")
    return path


def same_topic(vectors: Vectors) -> float:
    """Return the fraction of topic words whose nearest topic word has the same topic."""
    topic_of = {word: topic for topic, words in TOPICS.items() for word in words}
    correct = 0
    for word in topic_of:
        nearest = next(w for w, _ in vectors.nearest(word, len(vectors)) if w in topic_of)
        correct += topic_of[nearest] == topic_of[word]
    return correct / len(topic_of)


def test_words_with_same_contexts_become_neighbors(toy: Path, tmp_path: Path) -> None:
    learned = train_vectors([toy], out=tmp_path / "v.txt.gz", settings=TOY)
    assert same_topic(learned) == 1.0
    assert learned.table.shape == (30, 16)
    found = Vectors.load(tmp_path / "v.txt.gz")
    assert found.words == learned.words
    assert found.table.tobytes() == learned.table.tobytes()
    slow = Skipgram(width=16, min_count=1, epochs=1, learning_rate=1e-9)
    assert same_topic(train_vectors([toy], out=tmp_path / "c.txt", settings=slow)) < 0.8


def test_train_vectors_is_deterministic(toy: Path, tmp_path: Path) -> None:
    seeds = (3, 3, 4)
    for i, seed in enumerate(seeds):
        settings = Skipgram(width=16, min_count=1, epochs=1, seed=seed)
        train_vectors([toy], out=tmp_path / f"{i}.txt", settings=settings)
    first, again, other = ((tmp_path / f"{i}.txt").read_bytes() for i in range(3))
    assert first == again != other


def test_large_steps_do_not_diverge(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 30 words and batches of 4,096, each word occurs in hundreds of pairs per step."""
    settings = Skipgram(width=16, min_count=1, subsample=1.0, epochs=60, batch=4096)
    learned = train_vectors([toy], out=tmp_path / "v.txt", settings=settings)
    assert np.linalg.norm(learned.table, axis=1).max() < 10
    monkeypatch.setattr(skipgram, "MAX_PAIRS_PER_WORD", 1e9)  # Control: no limit.
    with pytest.raises(TrainingError, match=r"training diverged: .*; reduce learning_rate or"):
        train_vectors([toy], out=tmp_path / "c.txt", settings=settings)


def test_pairs_are_within_window_and_document() -> None:
    draw = np.random.default_rng(0)
    window = 4
    document = torch.full((200, skipgram.WORDS_PER_ROW + 2 * window), -1)
    document[:, window:20] = 0
    document[:, 20:40] = 1
    pairs = skipgram._pairs(document, window, draw)
    fraction = pairs.mean(0)
    for i, j in itertools.product(range(pairs.shape[1]), range(pairs.shape[2])):
        distance = abs(i + window - j)
        center_document, context_document = document[0, i + window], document[0, j]
        is_neighbor = center_document == context_document >= 0 and 1 <= distance <= 4
        # A window size of 1 to 4 includes a neighbor at distance d with probability (5 - d) / 4.
        expected = (5 - distance) / 4 if is_neighbor else 0.0
        assert fraction[i, j] == pytest.approx(expected, abs=0.15 if 0 < expected < 1 else 0.0)


def test_step_matches_autograd_gradient() -> None:
    """Compare with autograd on equation 4, with the expectation over the noise words."""
    torch.manual_seed(0)
    window, width, count, negatives, rate = 2, 3, 500, 5, 0.01
    inputs = torch.randn(count, width, requires_grad=True)
    outputs = torch.randn(count, width, requires_grad=True)
    words = torch.randint(count, (2, skipgram.WORDS_PER_ROW + 2 * window))
    noise = torch.randint(count, (2, skipgram.NOISE_WORDS))
    document = torch.zeros(words.shape, dtype=torch.int32)
    pairs = skipgram._pairs(document, window, np.random.default_rng(0))
    total = torch.zeros(())
    for row, i, j in pairs.nonzero().tolist():
        center = inputs[words[row, i + window]]
        total = total + torch.nn.functional.logsigmoid(outputs[words[row, j]] @ center)
        noise_term = torch.nn.functional.logsigmoid(-(outputs[noise[row]] @ center))
        total = total + negatives * noise_term.mean()
    total.backward()
    assert inputs.grad is not None
    assert outputs.grad is not None
    new_inputs, new_outputs = inputs.detach().clone(), outputs.detach().clone()
    skipgram._step(new_inputs, new_outputs, words, noise, pairs, negatives=negatives, rate=rate)
    for after, before in ((new_inputs, inputs), (new_outputs, outputs)):
        change = rate * before.grad
        torch.testing.assert_close(after - before.detach(), change, atol=1e-6, rtol=1e-4)


def test_subsampling_matches_published_formula() -> None:
    ids = np.repeat(np.arange(2, dtype=np.int32), [90_000, 10_000])
    text = skipgram.Text(["the", "cat"], np.bincount(ids), ids, np.zeros_like(ids))
    keep = np.float32([0.2, 1.0])
    words, document = skipgram._rows(text, keep, 5, np.random.default_rng(0))
    inner = words[:, 5:-5][document[:, 5:-5] >= 0]
    assert (inner == 1).sum() == 10_000
    assert (inner == 0).sum().item() == pytest.approx(18_000, rel=0.03)
    num_rows = -(-len(inner) // skipgram.WORDS_PER_ROW)
    assert words.shape == document.shape == (num_rows, skipgram.WORDS_PER_ROW + 10)


def test_read_text_keeps_documents_and_omits_rare_words(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The cat, the dog.\n\nThe cat once.")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write('{"text": "a DOG"}\n{"text": "cat"}\n')
    text = skipgram.read_text([tmp_path / "a.txt", tmp_path / "b.jsonl.gz"], 2)
    assert text.words == ["the", "cat", "dog", "."]
    assert text.counts.tolist() == [3, 3, 2, 2]
    words = " ".join(text.words[i] for i in text.ids)
    assert words == "the cat the dog . the cat . dog cat"
    assert text.document.tolist() == [0] * 8 + [1, 2]


def test_train_vectors_rejects_invalid_input_before_work(toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "v.txt"
    with pytest.raises(DataError, match="no input; pass at least one"):
        train_vectors([], out=out)
    with pytest.raises(DataError, match=r"none\.txt: no such file"):
        train_vectors([tmp_path / "none.txt"], out=out)
    with pytest.raises(DataError, match="only 0 words occur at least 9999 times; reduce min_count"):
        train_vectors([toy], out=out, settings=Skipgram(min_count=9999))
    assert not out.parent.exists()
    before = toy.read_bytes()
    with pytest.raises(ConfigError, match="already exists; choose another out="):
        train_vectors([toy], out=toy)
    assert toy.read_bytes() == before


def test_train_vectors_rejects_too_large_learning_rate(toy: Path, tmp_path: Path) -> None:
    settings = Skipgram(width=8, min_count=1, epochs=2, learning_rate=1e38)
    with pytest.raises(TrainingError, match="learning_rate = 1e\\+38 is too high"):
        train_vectors([toy], out=tmp_path / "v.txt", settings=settings)
    assert not (tmp_path / "v.txt").exists()


def test_word_similarity_matches_manual_result(tmp_path: Path) -> None:
    table = np.float32([[1, 0], [2, 0], [1, 1], [0, 1], [0, 0]])
    vectors = Vectors(["a", "b", "c", "d", "zero"], table)
    path = tmp_path / "pairs.txt"
    path.write_text("A\tb\t9\na\tc\t5.5\n\na\td\t1\na\tnone\t7\n")
    expected = {"spearman": 1.0, "pairs": 3, "missing": 1}
    assert word_similarity(vectors, path) == pytest.approx(expected)
    path.write_text("a\tb\t1\na\tc\t5.5\na\td\t9\nc zero 9.5\n")
    assert word_similarity(vectors, path)["spearman"] == pytest.approx(-0.9487, abs=1e-4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "pairs.txt: the file is empty"),
        ("a\tb\t1\na\tb\n", "pairs.txt:2: expected two words and a score"),
        ("a\tb\tc\n", "pairs.txt:1: expected two words and a score"),
        ("a\tb\tc\t1\n", "pairs.txt:1: expected two words and a score"),
        (b"\xff\tb\t1\n", "pairs.txt:1: not UTF-8"),
    ],
)
def test_word_similarity_rejects_invalid_pairs(
    content: str | bytes, message: str, tmp_path: Path
) -> None:
    vectors = Vectors(["a", "b"], np.eye(2, dtype=np.float32))
    path = tmp_path / "pairs.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=message):
        word_similarity(vectors, path)
    with pytest.raises(DataError, match="no such file"):
        word_similarity(vectors, tmp_path / "none.txt")


def test_vectors_from_reviews_correlate_with_human_scores(
    data_folder: Path, tmp_path: Path
) -> None:
    """The control uses random vectors. Seeds 0, 1 and 2 reach 0.24 to 0.28."""
    part = tmp_path / "reviews.jsonl"
    source = data_folder / "prose_reviews" / "imdb_unsup_0-19999.jsonl.gz"
    with gzip.open(source, "rt", encoding="utf-8") as file:
        part.write_text("".join(itertools.islice(file, 2000)), encoding="utf-8")
    pairs = data_folder / "wordsim" / "EN-WS-353-ALL.txt"
    settings = Skipgram(width=50, learning_rate=0.05)
    learned = train_vectors([part], out=tmp_path / "v.txt", settings=settings)
    score = word_similarity(learned, pairs)
    random_table = np.random.default_rng(0).standard_normal(learned.table.shape, np.float32)
    control = word_similarity(Vectors(learned.words, random_table), pairs)
    assert score["pairs"] == control["pairs"] > 100
    assert score["spearman"] > 0.15 > control["spearman"]
    assert tokens("Movie")[0] in learned
