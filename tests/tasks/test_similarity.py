"""Tests of text similarity: readers, losses, prompts and parity with sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.factories import tiny_folder
from torch.nn import functional as F

import bertkit
from bertkit import cli
from bertkit.batch import Batch
from bertkit.checkpoint.directory import resave, save
from bertkit.checkpoint.weights import read_tensors
from bertkit.errors import BertkitError, ConfigError, DataError
from bertkit.families import BERT
from bertkit.models.model import Model
from bertkit.nn.pooling import Activation, Dense, Pooling
from bertkit.objectives import contrastive
from bertkit.objectives.loss import totals
from bertkit.pipelines import answering
from bertkit.recipes.distill import distill
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks.similarity import (
    Similarity,
    SimilarityAnswer,
    SimilarityExample,
    SimilarityOptions,
)
from bertkit.tasks.task import Reading, by_example, group, make_batch
from bertkit.text.prompts import Prompts
from bertkit.text.vocabulary_training import train

WORDS = ["red", "blue", "green", "black", "white", "pink", "brown", "grey", "cyan", "gold"]
SETTINGS = Finetune(epochs=6, batch_size=10, learning_rate=5e-3, precision="fp32", warmup=0.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("similarity") / "base"
    text = " ".join(f"a {word} thing is {word} number" for word in WORDS)
    tokenizer = train([text * 5], kind="wordpiece", size=120)
    return tiny_folder(folder, tokenizer, "mlm")


def pairs(count: int, labeled: bool = False) -> list[SimilarityExample]:
    found = []
    for i in range(count):
        first, second = WORDS[i % 10], WORDS[(i + i // 10 * 3) % 10 if labeled else i % 10]
        label = (5.0 if first == second else 1.0) if labeled else None
        found.append(
            SimilarityExample((f"a {first} thing", f"is {second} number"), label, f"row {i}")
        )
    return found


def ready(
    examples: list[SimilarityExample], base: Path, **options: Any
) -> tuple[Similarity, Model, Any]:
    """Build the task, a model for it and a batch of the examples."""
    task = Similarity.from_examples(examples, SimilarityOptions(**options))
    loaded = bertkit.load(base, heads={"similarity": task.build_head})
    features = task.features(examples, loaded.tokenizer, 32, long="error", labeled=True)
    features.sort(key=lambda feature: len(feature.encoding))
    return task, loaded.model, make_batch(task, features)


def compute_embeddings(
    task: Similarity, model: Model, examples: list[SimilarityExample], base: Path
) -> torch.Tensor:
    """Compute the embedding of each text separately, as (examples, texts, D)."""
    tokenizer = bertkit.load(base).tokenizer

    with torch.no_grad():
        rows = [
            [model(Batch.of([tokenizer.encode(text)]))["similarity"][0] for text in example.texts]
            for example in examples
        ]
    return torch.stack([torch.stack(row) for row in rows])


TRIPLETS = [
    SimilarityExample(
        (f"a {w} thing", f"is {w} number", f"{WORDS[i - 1]} is"), float(i), f"row {i}"
    )
    for i, w in enumerate(WORDS[:4])
]


def formula(loss: str, vectors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    a, b, c = vectors.unbind(1)
    near, far = F.cosine_similarity(a, b), F.cosine_similarity(a, c)
    match loss:
        case "triplet":
            return (0.2 + far - near).clamp(min=0).mean()
        case "margin_mse":
            return ((20 * (near - far) - labels) ** 2).mean()
    others = torch.cat([b, c])
    scores = torch.stack([F.cosine_similarity(anchor[None], others) for anchor in a]) * 20
    return torch.stack([-torch.log_softmax(row, 0)[i] for i, row in enumerate(scores)]).mean()


@pytest.mark.parametrize("loss", ["ranking", "triplet", "margin_mse"])
def test_triplet_losses_match_formulas(loss: str, base: Path) -> None:
    task, model, batch = ready(TRIPLETS, base, loss=loss)
    model.eval()
    labels = torch.tensor([example.label for example in TRIPLETS])
    expected = formula(loss, compute_embeddings(task, model, TRIPLETS, base), labels)
    found = task.loss(model, batch, totals([batch])).total
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_cosine_loss_matches_formula(base: Path) -> None:
    examples = pairs(20, labeled=True)
    task, model, batch = ready(examples, base)
    model.eval()
    assert (task.options.loss, task.options.highest) == ("cosine", 5.0)
    a, b = compute_embeddings(task, model, examples, base).unbind(1)
    labels = torch.tensor([example.label for example in examples]) / 5
    expected = ((F.cosine_similarity(a, b) - labels) ** 2).mean()
    found = task.loss(model, batch, totals([batch])).total
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("loss", ["cosent", "margin_mse"])
def test_losses_and_gradients_match_sentence_transformers(loss: str) -> None:
    """The vectors have different norms, and the control changes the labels or the score."""
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(12, 3, 8, generator=generator) * torch.rand(12, 3, 1, generator=generator)
    labels = torch.randint(0, 5, (12,), generator=generator).float()

    def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return 20 * peer.util.pairwise_cos_sim(a, b)

    kinds = peer.sentence_transformer.losses
    peer_losses = {
        "cosent": kinds.CoSENTLoss(torch.nn.Identity()),
        "margin_mse": kinds.MarginMSELoss(torch.nn.Identity(), similarity_fct=scaled),
        "products": kinds.MarginMSELoss(torch.nn.Identity()),
    }

    def compute_loss(x: torch.Tensor) -> torch.Tensor:
        return Similarity((), SimilarityOptions(loss=loss))._loss(x, labels)

    def compute_peer_loss(
        kind: str, x: torch.Tensor, labels: torch.Tensor = labels
    ) -> torch.Tensor:
        texts = list(x.unbind(1))[: 2 if kind == "cosent" else 3]
        return peer_losses[kind].compute_loss_from_embeddings(texts, labels)

    inputs, peer_inputs = (vectors.clone().requires_grad_() for _ in range(2))
    value, peer_value = compute_loss(inputs), compute_peer_loss(loss, peer_inputs)
    torch.testing.assert_close(value, peer_value, atol=1e-5, rtol=1e-5)
    for loss_value in (value, peer_value):
        loss_value.backward()
    torch.testing.assert_close(inputs.grad, peer_inputs.grad, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        wrong = (
            compute_peer_loss("cosent", vectors, labels.clamp(max=1.0))
            if loss == "cosent"
            else compute_peer_loss("products", vectors)
        )
        assert abs(wrong - peer_value) > 0.1
        longer = vectors * torch.linspace(1.0, 9.0, 36).view(12, 3, 1)
        torch.testing.assert_close(compute_loss(longer), value.detach(), atol=1e-4, rtol=1e-4)


def test_cosent_loss_is_zero_with_equal_labels() -> None:
    vectors = torch.randn(4, 2, 8, requires_grad=True)
    loss = Similarity((), SimilarityOptions(loss="cosent"))._loss(vectors, torch.ones(4))
    loss.backward()
    assert loss == 0.0
    assert vectors.grad is not None
    assert not vectors.grad.any()


def test_matryoshka_loss_averages_over_dimensions(base: Path) -> None:
    task, model, batch = ready(TRIPLETS, base, dimensions=(4, 8))
    model.eval()
    whole = compute_embeddings(task, model, TRIPLETS, base)
    parts = [formula("ranking", whole[..., :d], torch.zeros(4)) for d in (4, 8, 16)]
    found = task.loss(model, batch, totals([batch])).total
    torch.testing.assert_close(found, torch.stack(parts).mean(), atol=1e-5, rtol=1e-4)
    with pytest.raises(ConfigError, match="dimensions: 17 exceeds the embedding size, 16"):
        ready(TRIPLETS, base, dimensions=(17,))


def test_chunked_step_has_gradients_of_complete_step(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = pairs(10)
    task, model, batch = ready(examples, base)
    model.train()
    for module in model.modules():
        if hasattr(module, "rate"):
            module.rate = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    found, calls = [], []

    def checkpoint(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return torch.utils.checkpoint.checkpoint(*arguments, **options)

    monkeypatch.setattr(contrastive, "checkpoint", checkpoint)
    for budget in (10**6, 30):
        monkeypatch.setattr(contrastive, "MAX_BATCH_TOKENS", budget)
        model.zero_grad()
        loss = task.loss(model, batch, totals([batch])).total
        loss.backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert len(calls) > 2
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, atol=1e-6, rtol=1e-4, msg=name)


def test_label_column_must_be_named_if_several_names_are_known(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("sentence1\tsentence2\tscore\tquality\na\tb\t1\t2\n", encoding="utf-8")
    with pytest.raises(DataError, match="the label could be 'score' or 'quality'"):
        Similarity.reader.read(path, Reading(), labeled=True)
    found, _ = Similarity.reader.read(path, Reading(label_column="quality"), labeled=True)
    assert found[0].label == 2.0


def test_single_texts_are_paired_under_different_dropout(base: Path) -> None:
    examples = [SimilarityExample((f"a {word} thing",), None, word) for word in WORDS]
    task, model, batch = ready(examples, base)
    assert len(batch.layout.lengths) == 20
    model.train()
    outputs = task.outputs(model, batch)
    text_indices = batch.targets["similarity"][:, 0]
    order = torch.argsort(batch.example * 2 + text_indices.long())
    first, second = outputs[order].view(10, 2, -1).unbind(1)
    assert (first - second).abs().max() > 1e-3
    assert task.loss(model, batch, totals([batch])).total > 0


def test_training_matches_sentence_transformers_after_saving(base: Path, tmp_path: Path) -> None:
    data = {"train": pairs(40), "dev": pairs(10)}
    scores = finetune("similarity", base, out=tmp_path / "out", settings=SETTINGS, **data)
    assert scores["mrr"] == 1.0
    pipeline = bertkit.pipeline("similarity", tmp_path / "out")
    near, far = pipeline([("a red thing", "is red number"), ("a red thing", "is blue number")])
    assert isinstance(near, SimilarityAnswer)
    assert near.score > far.score
    texts = ["a red thing", "is blue number", "a"]
    vectors = bertkit.pipeline("embed", tmp_path / "out")(texts)
    assert float(vectors[0] @ bertkit.pipeline("embed", tmp_path / "out")("is red number")[0]) == (
        pytest.approx(near.score, abs=1e-5)
    )
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    peer_vectors = peer.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    assert abs(vectors - peer_vectors).max() <= 1e-5


def test_dense_layer_is_trained_and_saved(base: Path, tmp_path: Path) -> None:
    data = {"train": pairs(40), "dev": pairs(10)}
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    options = {"dense": 6, "pooling": "max", "activation": "gelu"}
    finetune("similarity", base, out=first, settings=SETTINGS, options=options, **data)
    texts = ["a red thing", "is blue number", "a"]
    vectors = bertkit.pipeline("embed", first)(texts)
    assert vectors.shape == (3, 6)
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    peer_vectors = peer.SentenceTransformer(str(first), device="cpu").encode(texts)
    assert abs(vectors - peer_vectors).max() <= 1e-5
    # The dense layer is saved only in its own directory.
    assert "heads.similarity.dense.linear.weight" not in read_tensors(first)
    answer = bertkit.pipeline("similarity", first)(("a red thing", "is blue number"))
    assert answer.score == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)

    # Training keeps the pooling of the model directory unless an option changes it.
    unchanged = msgspec.structs.replace(SETTINGS, epochs=1, learning_rate=1e-9)
    finetune("similarity", first, out=second, settings=unchanged, **data)
    np.testing.assert_allclose(bertkit.pipeline("embed", second)(texts), vectors, atol=1e-5)
    finetune(
        "similarity", first, out=third, settings=unchanged, options={"pooling": "mean"}, **data
    )
    assert bertkit.pipeline("embed", third)(texts).shape == (3, 16)
    assert not list(third.glob("*_Dense"))


def cosine(first: Any, second: Any) -> float:
    return float((first * second).sum() / np.linalg.norm(first) / np.linalg.norm(second))


def test_prompts_of_training_are_used_for_prediction(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training saves the prompts of the options or, by default, of the model directory."""
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    loaded, start = bertkit.load(base), tmp_path / "start"
    prompts = Prompts({"query": "red a ", "passage": "blue is ", "topic": "thing "})
    pooling = Pooling("max", prompts=prompts)
    save(start, loaded.model, loaded.tokenizer, BERT, pooling=pooling)
    data = {"train": pairs(20), "dev": pairs(10)}
    settings = msgspec.structs.replace(SETTINGS, epochs=1)
    given = {"prompt": "white ", "pair_prompt": "topic"}
    message = "prompts: 'red a ' for the first text, 'blue is ' for the others"
    question, answer = "a red thing", "is red number"
    for options, expected in (({}, ("red a ", "blue is ")), (given, ("white ", "thing "))):
        out = tmp_path / f"out{len(options)}"
        capsys.readouterr()
        finetune("similarity", start, out=out, settings=settings, options=options, **data)
        assert (message in capsys.readouterr().err) == (not options)
        peer_model = peer.SentenceTransformer(str(out), device="cpu")
        assert (peer_model.prompts["query"], peer_model.prompts["document"]) == expected
        assert peer_model.prompts["topic"] == "thing "
        embed = bertkit.pipeline("embed", out)
        first, second = embed(question, prompt="query")[0], embed(answer, prompt="document")[0]
        assert abs(first - peer_model.encode_query(question)).max() <= 1e-6
        assert abs(second - peer_model.encode_document(answer)).max() <= 1e-6
        score = bertkit.pipeline("similarity", out)((question, answer)).score
        assert score == pytest.approx(cosine(first, second), abs=1e-6)
        bare = embed([question, answer], prompt="")
        assert abs(score - cosine(*bare)) > 1e-3
    # Control: different prompts lead to different weights.
    default_weights, prompted_weights = (read_tensors(tmp_path / name) for name in ("out0", "out2"))
    assert any(
        not torch.equal(default_weights[name], prompted_weights[name]) for name in default_weights
    )


@pytest.mark.parametrize("loss", ["cosine", "cosent"])
def test_prompt_of_scored_pairs_becomes_default(loss: str, base: Path, tmp_path: Path) -> None:
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    data = {"train": pairs(20, labeled=True), "dev": pairs(10, labeled=True)}
    settings = msgspec.structs.replace(SETTINGS, epochs=1)
    options = {"prompt": "red a ", "loss": loss}
    out = tmp_path / "out"
    finetune("similarity", base, out=out, settings=settings, options=options, **data)
    peer_model = peer.SentenceTransformer(str(out), device="cpu")
    texts = ["a blue thing", "is pink number"]
    expected = peer_model.encode(texts)
    assert abs(expected - peer_model.encode(texts, prompt="red a ")).max() == 0
    assert abs(expected - peer_model.encode(texts, prompt="")).max() > 1e-2
    score = bertkit.pipeline("similarity", out)((texts[0], texts[1])).score
    assert score == pytest.approx(cosine(*expected), abs=1e-6)


def test_similarity_scores_match_sentence_transformers(base: Path, tmp_path: Path) -> None:
    peer = pytest.importorskip("sentence_transformers", reason="pip install 'bertkit[dev]'")
    loaded = bertkit.load(base)
    prompts = Prompts({"topic": "thing "}, "topic")
    pooling = Pooling("max", dense=Dense(16, 4), prompts=prompts)
    save(tmp_path / "theirs", loaded.model, loaded.tokenizer, BERT, pooling=pooling)
    texts = ["a blue thing", "is pink number"]
    peer_model = peer.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    answer = answering(tmp_path / "theirs", "similarity")
    score = answer((texts[0], texts[1])).score
    assert score == pytest.approx(cosine(*peer_model.encode(texts)), abs=1e-6)
    assert abs(score - cosine(*peer_model.encode(texts, prompt=""))) > 1e-4


def test_resave_and_distill_keep_prompts(base: Path, tmp_path: Path) -> None:
    loaded = bertkit.load(base)
    prompts = Prompts({"query": "red a ", "topic": "thing "}, "topic")
    pooling = Pooling("max", prompts=prompts, similarity="dot")
    save(tmp_path / "one", loaded.model, loaded.tokenizer, BERT, pooling=pooling)
    reloaded = bertkit.load(tmp_path / "one")
    resave(reloaded, reloaded.model, tmp_path / "two")
    assert bertkit.load(tmp_path / "two").pooling == pooling
    distilled = tmp_path / "three"
    data = {"train": pairs(20), "dev": pairs(10)}
    settings = msgspec.structs.replace(SETTINGS, epochs=1)
    finetune("similarity", tmp_path / "one", out=tmp_path / "teacher", settings=settings, **data)
    distill(tmp_path / "teacher", layers=1, out=distilled, settings=settings, **data)
    distilled_pooling = bertkit.load(distilled).pooling
    assert distilled_pooling is not None
    assert distilled_pooling.prompts.find("query") == "red a "
    assert distilled_pooling.prompts.find("topic") == distilled_pooling.prompts.find() == "thing "


def test_fingerprint_depends_on_dense_layer(base: Path, tmp_path: Path) -> None:
    loaded = bertkit.load(base)
    fingerprints = {loaded.fingerprint()}
    kinds: list[tuple[int, Activation]] = [(0, "tanh"), (1, "tanh"), (1, "none")]
    for seed, activation in kinds:
        torch.manual_seed(seed)
        folder = tmp_path / f"{seed}-{activation}"
        pooling = Pooling(dense=Dense(16, 4, activation))
        save(folder, loaded.model, loaded.tokenizer, BERT, pooling=pooling)
        opened = bertkit.load(folder)
        fingerprints.add(opened.fingerprint())
        again = tmp_path / f"{seed}-{activation}-again"
        resave(opened, opened.model, again)
        assert bertkit.load(again).fingerprint() == opened.fingerprint()
    assert len(fingerprints) == 4


def test_ranks_count_ties_as_better(base: Path, tmp_path: Path) -> None:
    task = Similarity.from_examples(pairs(3), SimilarityOptions())
    first = np.eye(4, dtype=np.float32)[:3]
    outputs = [*np.stack([first, first[[0, 0, 2]]], 1).reshape(6, 4)]
    features = task.features(
        pairs(3), bertkit.load(base).tokenizer, 32, long="error", labeled=False
    )
    answers = task.answers(by_example(pairs(3), group(features), outputs), torch.nn.Identity())
    assert [answer.rank for answer in answers] == [2, 3, 1]
    assert task.score(answers, pairs(3))["mrr"] == pytest.approx((1 / 2 + 1 / 3 + 1) / 3)


@pytest.mark.parametrize("loss", ["margin_mse", "ranking", "triplet", "cosent"])
def test_labels_and_loss_determine_the_scores(loss: Any) -> None:
    rows = pairs(20, labeled=True) if loss == "cosent" else TRIPLETS
    task = Similarity.from_examples(rows, SimilarityOptions(loss=loss))
    found = task.score([SimilarityAnswer((row.label or 0) / 10, rank=1) for row in rows], rows)
    assert found["spearman"] == pytest.approx(1.0)
    assert ("mrr" in found) == (loss != "cosent")


def table(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "texts", "label"),
    [
        ("anchor\tpositive\nx\ty\n", ("x", "y"), None),
        ("query\tdocument\tnegative_1\tnegative_2\nx\ty\tz\tw\n", ("x", "y", "z", "w"), None),
        ("sentence1\tsentence2\tscore\nx\ty\t2.5\n", ("x", "y"), 2.5),
        ("text\nx\n", ("x",), None),
    ],
)
def test_reader_parses_tables(
    text: str, texts: tuple[str, ...], label: float | None, tmp_path: Path
) -> None:
    found, message = Similarity.reader.read(
        table(tmp_path / "t.tsv", text), Reading(), labeled=True
    )
    assert [(example.texts, example.label) for example in found] == [(texts, label)]
    assert "texts = " in message


def test_columns_are_selected_by_number(tmp_path: Path) -> None:
    text = "x\t4.5\ta b\tc d\ny\t1\te\tf\tmore\tcells\nz\t2\tg\th\n"
    path = table(tmp_path / "sts.tsv", text)
    reading = Reading(text_column="3", pair_column="4", label_column="2", header=False)
    examples, _ = Similarity.reader.read(path, reading, labeled=True)
    assert [e.texts for e in examples] == [("a b", "c d"), ("e", "f"), ("g", "h")]
    assert [e.label for e in examples] == [4.5, 1.0, 2.0]
    with pytest.raises(DataError, match="expected 4 columns"):  # control
        Similarity.reader.read(path, Reading(text_column="3", header=False), labeled=True)


def test_named_pair_column_is_not_text_column(tmp_path: Path) -> None:
    path = table(tmp_path / "t.tsv", "text\tsentence1\nx\ty\n")
    [example], _ = Similarity.reader.read(path, Reading(pair_column="text"), labeled=True)
    assert example.texts == ("y", "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("anchor\tpositive\nx\t \n", r"t\.tsv:2: a text is empty"),
        ("anchor\tpositive\tscore\nx\ty\thigh\n", r"t\.tsv:2: label 'high' is not a number"),
        ("anchor\tpositive\tscore\nx\ty\tnan\n", "is not a number"),
        ("anchor\tnegative\nx\ty\n", "no second texts for the negatives"),
        ("one\ttwo\tthree\nx\ty\tz\n", "no column has a known name for the text and the pair"),
    ],
)
def test_reader_rejects_invalid_tables(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        Similarity.reader.read(table(tmp_path / "t.tsv", text), Reading(), labeled=True)


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        ("ranking", {"margin": 0.5}, "margin: requires loss triplet, got ranking"),
        ("ranking", {"highest": 5.0}, "highest: requires loss cosine or cosent"),
        ("ranking", {"activation": "gelu"}, "activation: requires dense"),
        ("triplet", {"scale": 10.0}, "scale: requires loss ranking or cosent or margin_mse"),
    ],
)
def test_options_of_other_losses_are_rejected(
    loss: Any, options: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Similarity.from_examples(TRIPLETS, SimilarityOptions(loss=loss, **options))  # type: ignore[arg-type]
    Similarity.from_examples(TRIPLETS, SimilarityOptions(loss=loss))


def test_finetune_rejects_unusable_examples_before_training(base: Path, tmp_path: Path) -> None:
    for loss, examples, lacks in (
        ("triplet", pairs(4), "negatives"),
        ("cosine", pairs(4), "labels"),
        ("cosent", pairs(4), "labels"),
        ("margin_mse", TRIPLETS[:1] + pairs(1), "labels"),
    ):
        with pytest.raises(BertkitError, match=f"{loss} requires {lacks}"):
            finetune(
                "similarity",
                base,
                train=examples,
                dev=examples,
                out=tmp_path / "out",
                options={"loss": loss},
            )
    single = [SimilarityExample((word,), None, f"row {word}") for word in WORDS]
    with pytest.raises(DataError, match="row red: only one text; pass a pair"):
        finetune("similarity", base, train=single, dev=single, out=tmp_path / "out")
    ragged = [*pairs(2), *TRIPLETS[:1]]
    with pytest.raises(DataError, match="3 texts, but 2 in row 0"):
        finetune("similarity", base, train=ragged, dev=ragged, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="expected two texts"):
        Similarity.reader.example("x", ())


def test_finetune_command_trains_and_predicts(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"a {w} thing\tis {w} number" for w in WORDS]
    file = table(tmp_path / "t.tsv", "\n".join(["anchor\tpositive", *lines]))
    words = ["finetune", "similarity", "--model", str(base), "--epochs", "1"]
    words += ["--train", str(file), "--dev", str(file), "--out", str(tmp_path / "out")]
    assert cli.run([*words, "--dimensions", "8", "--pooling", "cls"]) == 0
    assert "mrr" in json.loads(capsys.readouterr().out)
    assert (
        cli.run(["predict", str(tmp_path / "out"), "a red thing", "--pair", "is red number"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["rank"] is None
