"""Tests of few-shot classification with contrastive training (SetFit)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from tests.factories import tiny_folder, tiny_model, tiny_tokenizer
from torch.nn import functional as F

import bertkit
from bertkit import cli
from bertkit.checkpoint.directory import load, resave, save
from bertkit.errors import BertkitError, CheckpointError
from bertkit.families import BERT, FAMILIES
from bertkit.nn.pooling import Dense, Pooling
from bertkit.pipelines.embed import Embed
from bertkit.recipes.distill import distill
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks import contrastive
from bertkit.tasks.classify import Classify
from bertkit.tasks.contrastive import sample_pair_indices
from bertkit.tasks.labeled_text import ClassifyOptions, LabelExample
from bertkit.text.vocabulary_training import train

COLORS, FOODS = ["red", "blue", "green", "black"], ["bread", "rice", "soup", "cake"]
TEXTS = [(f"a {word} thing", "color") for word in COLORS]
TEXTS += [(f"some {word} now", "food") for word in FOODS]
ROWS = [
    LabelExample(text, None, label, f"train.tsv:{n}") for n, (text, label) in enumerate(TEXTS, 2)
]
SETTINGS = Finetune(
    epochs=3, batch_size=8, learning_rate=5e-3, precision="fp32", warmup=0.0, device="cpu"
)
SOME_LABELS = some.lists(some.integers(2, 9), min_size=2, max_size=5)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train([" ".join(text for text, _ in TEXTS) * 5], kind="wordpiece", size=120)
    return tiny_folder(tmp_path_factory.mktemp("contrastive") / "base", tokenizer, "mlm")


@pytest.fixture(scope="module")
def tuned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("contrastive") / "tuned"
    finetune("classify", base, train=ROWS, dev=ROWS, out=out, settings=SETTINGS, contrastive=True)
    return out


# ---- Pairs


@given(sizes=SOME_LABELS, seed=some.integers(0, 2**32), data=some.data())
def test_pairs_are_balanced_over_rows(sizes: list[int], seed: int, data: some.DataObject) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    labels = np.array(data.draw(some.permutations(labels.tolist())))
    pairs = sample_pair_indices(labels, seed)
    first, second = pairs.T
    same = labels[first] == labels[second]
    assert same.tolist() == [True, False] * (len(pairs) // 2)
    assert (first != second).all()
    assert set(Counter(first.tolist()).values()) == {len(pairs) // len(labels)}
    assert len(pairs) <= max(contrastive.MOST_PAIRS, 2 * len(labels))
    assert np.array_equal(pairs, sample_pair_indices(labels, seed))


def test_pair_sampling_covers_partners_and_depends_on_seed() -> None:
    labels = np.array([0, 1, 0, 1, 2, 2, 0])
    seen = {
        tuple(pair) for seed in range(40) for pair in sample_pair_indices(labels, seed).tolist()
    }
    assert seen == {(a, b) for a in range(7) for b in range(7) if a != b}
    assert not np.array_equal(sample_pair_indices(labels, 0), sample_pair_indices(labels, 1))


def test_number_of_pairs_is_limited() -> None:
    assert len(sample_pair_indices(np.arange(100_000) % 3, 0)) == 200_000
    assert len(sample_pair_indices(np.arange(16) % 2, 0)) == 2 * contrastive.ROUNDS * 16


# ---- Training


def test_training_separates_labels(base: Path, tuned: Path) -> None:
    def gap(folder: Path) -> float:
        """Return the mean cosine within labels minus the mean cosine between labels."""
        vectors = F.normalize(torch.from_numpy(bertkit.embed(folder, [t for t, _ in TEXTS])), dim=1)
        cosines = vectors @ vectors.T
        same = torch.block_diag(torch.ones(4, 4), torch.ones(4, 4)).bool()
        return float(cosines[same].mean() - cosines[~same].mean())

    assert gap(tuned) > gap(base) + 0.3
    assert json.loads((tuned / "scores.json").read_text())["dev"]["accuracy"] == 1.0


# ---- Saved model


def test_saved_model_is_a_classifier(tuned: Path, tmp_path: Path) -> None:
    texts = ["a red thing", "some cake now", "red cake"]
    answers = bertkit.predict(tuned, texts)
    assert [answer.label for answer in answers[:2]] == ["color", "food"]
    assert bertkit.evaluate(tuned, ROWS)["accuracy"] == 1.0

    # A linear layer on the embeddings returns the same scores.
    loaded = load(tuned)
    out: Any = loaded.model.heads["vector"].out
    vectors = Embed(loaded, normalize=False)(texts)
    scores = torch.softmax(out(torch.from_numpy(vectors)), -1)
    for answer, row in zip(answers, scores.tolist(), strict=True):
        assert [answer.scores["color"], answer.scores["food"]] == pytest.approx(row, abs=1e-5)

    resave(loaded, loaded.model, tmp_path / "again")
    assert bertkit.predict(tmp_path / "again", texts) == answers
    card = (tuned / "README.md").read_text(encoding="utf-8")
    assert "library_name: sentence-transformers" in card
    assert "AutoModel" not in card
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    peer_vectors = peer.SentenceTransformer(str(tuned), device="cpu").encode(texts)
    np.testing.assert_allclose(peer_vectors, vectors, atol=1e-5)


def test_long_texts_are_classified_in_windows(tuned: Path) -> None:
    answer = bertkit.pipeline("classify", tuned)("a red thing " * 40, long="window")
    assert answer.label == "color"


@pytest.mark.parametrize("mode", ["cls", "max"])
def test_training_starts_from_pooling_of_model(base: Path, tmp_path: Path, mode: Any) -> None:
    loaded = load(base)
    pooling = Pooling(mode, normalize=True, dense=Dense(16, 6, bias=False))
    save(tmp_path / "base", loaded.model, loaded.tokenizer, BERT, pooling=pooling)
    settings = Finetune(epochs=1, learning_rate=1e-12, precision="fp32", device="cpu")
    data: dict[str, Any] = {"train": ROWS, "dev": ROWS, "out": tmp_path / "out"}
    finetune("classify", tmp_path / "base", settings=settings, contrastive=True, **data)
    text = ["a red thing"]
    expected = bertkit.embed(tmp_path / "base", text)
    np.testing.assert_allclose(bertkit.embed(tmp_path / "out", text), expected, atol=1e-5)
    assert load(tmp_path / "out").model.heads["vector"].dense is not None
    answered = bertkit.predict(tmp_path / "out", text)
    assert sum(answered[0].scores.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "modernbert", "electra", "mpnet"])
def test_every_encoder_supports_vector_head(family: str, tmp_path: Path) -> None:
    words = ("a", "red", "thing", "some", "bread", "now")
    tokenizer = tiny_tokenizer(words, family=FAMILIES[family])
    model = tiny_model(tokenizer, "vector", labels=("a", "b", "c"), family=FAMILIES[family])
    task, folder = Classify(("a", "b", "c"), ClassifyOptions(contrastive=True)), tmp_path / "one"
    save(folder, model, tokenizer, FAMILIES[family], labels=task.labels, settings=task.settings())
    opened = load(folder)
    assert opened.labels == ("a", "b", "c")
    assert list(opened.model.heads) == ["vector"]
    assert len(bertkit.predict(folder, ["red"])[0].scores) == 3


def test_load_rejects_head_with_wrong_label_count(tuned: Path, tmp_path: Path) -> None:
    opened = load(tuned)
    save(tmp_path / "one", opened.model, opened.tokenizer, BERT, labels=("a", "b", "c"))
    with pytest.raises(CheckpointError, match="has 3 labels, but the vector head has 2 outputs"):
        load(tmp_path / "one")


# ---- Unsupported input


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("text,label\na,x\nb,x\n", "only one label, 'x'; add examples"),
        ("text,label\na,x\nb,x\nc,y\n", "label 'y' has one row, but contrastive"),
        ('text,label\na,"[""x""]"\nb,"[""y""]"\n', "contrastive: .* but train has several"),
        ("text,label\na,1.5\nb,2\n", "contrastive: .* but train has numbers"),
        ("text,text_b,label\na,b,x\nc,d,y\n", "contrastive: .* but train has pairs of texts"),
    ],
)
def test_finetune_rejects_data_without_pairs(
    base: Path, tmp_path: Path, rows: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.csv"
    file.write_text(rows, encoding="utf-8")
    arguments = ["--train", str(file), "--dev", str(file), "--out", str(tmp_path / "out")]
    code = cli.run(["finetune", "classify", "--model", str(base), *arguments, "--contrastive"])
    assert code == 2
    capsys.readouterr()
    with pytest.raises(BertkitError, match=message):
        finetune("classify", base, train=file, dev=file, out=tmp_path / "out", contrastive=True)


def test_distill_rejects_contrastive_teacher(tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(BertkitError, match="use a teacher that was fine-tuned without"):
        distill(tuned, layers=1, train=ROWS, dev=ROWS, out=tmp_path / "s", settings=SETTINGS)


def test_finetune_rejects_causal_model(tmp_path: Path) -> None:
    tokenizer = train(["a red thing some bread now " * 5], kind="bpe", size=300, use="write")
    folder = tiny_folder(tmp_path / "gpt", tokenizer, "lm", family=FAMILIES["gpt2"])
    with pytest.raises(BertkitError, match="contrastive: not supported by causal models"):
        finetune("classify", folder, train=ROWS, dev=ROWS, out=tmp_path / "o", contrastive=True)
