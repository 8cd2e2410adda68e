"""Scores of saved models, and models that cannot be scored."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit import cli
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.recipes.evaluate import evaluate
from bertkit.tasks.labeled_text import LabelExample
from bertkit.text.vocabulary_training import train


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = tiny_tokenizer("abcd")
    return tiny_folder(tmp_path / "model", tokenizer, "classify", labels=("no", "yes"), length=8)


def test_evaluate_matches_predictions(folder: Path, tmp_path: Path) -> None:
    classify = bertkit.pipeline("classify", folder)
    texts = ["a", "b c", "d d d", "c b a b c d a b c d"]
    answers = classify(texts, long="truncate")
    flip = {"no": "yes", "yes": "no"}
    rows = [LabelExample(t, None, a.label) for t, a in zip(texts, answers, strict=True)]
    rows[1] = LabelExample(texts[1], None, flip[answers[1].label])
    found = evaluate(classify, rows, errors=tmp_path / "errors")
    assert found["accuracy"] == pytest.approx(3 / 4)
    assert found["rows"] == 4
    assert found["truncated"] == 1
    (worst,) = (tmp_path / "errors" / "errors.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(worst)["shown"] == texts[1]
    with pytest.raises(ConfigError, match="already exists; choose another errors="):
        evaluate(classify, rows, errors=tmp_path / "errors")


def test_evaluate_rejects_unknown_labels_and_empty_input(folder: Path) -> None:
    with pytest.raises(DataError, match=r"dev\.tsv:7: label 'maybe' is not"):
        evaluate(
            bertkit.pipeline("classify", folder), [LabelExample("a", None, "maybe", "dev.tsv:7")]
        )
    with pytest.raises(DataError, match=r"^examples: no rows"):
        evaluate(bertkit.pipeline("classify", folder), [])


PAIRS = [
    ("A cat sleeps.", "A kitten naps.", 4.0),
    ("A cat sleeps.", "Stocks fall.", 0.5),
    ("It rains today.", "It is wet outside.", 3.0),
    ("He eats bread.", "They fly to Rome.", 0.2),
    ("He eats bread.", "A man has bread.", 4.5),
]


def test_embedding_model_scores_match_sentence_transformers(
    minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="pip install 'bertkit[dev]'"
    )
    stats = pytest.importorskip("scipy.stats")
    vectors = sentence_transformers.SentenceTransformer(str(minilm), device="cpu")
    first, second = (vectors.encode([pair[i] for pair in PAIRS]) for i in (0, 1))
    cosines = sentence_transformers.util.pairwise_cos_sim(first, second).numpy()
    file = tmp_path / "sts.csv"
    lines = ["sentence1,sentence2,score", *(",".join(map(str, pair)) for pair in PAIRS)]
    file.write_text("\n".join(lines), encoding="utf-8")
    found = evaluate(minilm, file)
    labels = [pair[2] for pair in PAIRS]
    assert found["spearman"] == pytest.approx(stats.spearmanr(cosines, labels)[0])
    assert found["pearson"] == pytest.approx(stats.pearsonr(cosines, labels)[0], abs=1e-5)
    assert set(found) == {"pearson", "spearman", "rows", "truncated"}
    assert "no task found; using the embeddings for similarity" in capsys.readouterr().err
    assert cli.run(["evaluate", str(minilm), str(file)]) == 0


def test_encoder_is_evaluated_on_scored_pairs(tiny: Path) -> None:
    rows = [{"text": "a b", "pair": "b a", "label": 1}, {"text": "a", "pair": "c d", "label": 0}]
    found = evaluate(tiny, rows)
    first, second = (bertkit.embed(tiny, [row[key] for row in rows]) for key in ("text", "pair"))
    cosines = (
        (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    )
    assert found["spearman"] == pytest.approx(1.0 if cosines[0] > cosines[1] else -1.0)


def test_pairs_without_scores_are_evaluated_by_ranking(minilm: Path) -> None:
    rows = [{"text": text, "pair": pair} for text, pair, score in PAIRS if score > 1]
    found = evaluate(minilm, rows)
    assert "mrr" in found
    assert "spearman" not in found


def test_evaluate_rejects_generative_models_on_pairs(tmp_path: Path) -> None:
    tokenizer = train(["a b c d"], kind="bpe", size=300, use="write")
    folder = tiny_folder(tmp_path / "model", tokenizer, "lm", family=GPT2, length=8)
    with pytest.raises(CheckpointError, match="was not fine-tuned"):
        evaluate(folder, [{"text": "a", "pair": "b", "label": 1}])


def test_evaluate_rejects_missing_task_packages(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", tiny_tokenizer(["a"]), "mlm", task="stars")
    with pytest.raises(ConfigError, match="stars, a task outside bertkit; install its package"):
        evaluate(folder, [{"text": "a", "label": 1}])
