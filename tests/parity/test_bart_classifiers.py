"""Classification and question answering with BART match transformers on tiny random models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertkit
from bertkit.batch import Batch
from bertkit.text.vocabulary_training import train

transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")

TEXTS = ["A short text.", "The river rose in the night, and nobody slept.", "Who knows?"]
LABELS = ("contradiction", "neutral", "entailment")


def write_model(folder: Path, english: list[str], architecture: str) -> Any:
    tokenizer = train(english[:50], kind="bpe", size=600)
    tokenizer.save(folder, segments=False)
    torch.manual_seed(0)
    config = transformers.BartConfig(
        d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=48,
        max_position_embeddings=64, vocab_size=tokenizer.vocab_size, pad_token_id=tokenizer.pad,
        bos_token_id=tokenizer.bos, eos_token_id=tokenizer.eos,
        decoder_start_token_id=tokenizer.eos, init_std=0.3, id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )  # fmt: skip
    model = getattr(transformers, architecture)(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def classifier(english: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("bart") / "classifier"
    return folder, write_model(folder, english, "BartForSequenceClassification")


def reference_scores(folder: Path, model: Any) -> list[list[float]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = (tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS)
    with torch.no_grad():
        return [model(input_ids=ids).logits.softmax(-1)[0].tolist() for ids in encoded]


def scores(folder: Path) -> list[list[float]]:
    predictions = bertkit.pipeline("classify", folder)(TEXTS)
    return [list(prediction.scores.values()) for prediction in predictions]


def test_labels_match_transformers(
    classifier: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = classifier
    expected = reference_scores(folder, model)
    np.testing.assert_allclose(scores(folder), expected, atol=1e-5)
    # The control: the decoder reads the text without the end token at its start.
    monkeypatch.setattr(Batch, "as_source", lambda batch: replace(batch, source=batch))
    assert np.abs(np.subtract(scores(folder), expected)).max() > 0.01


def test_zero_shot_labels_match_transformers(classifier: tuple[Path, Any]) -> None:
    folder, labels = classifier[0], ["water", "sleep", "a question"]
    reference = transformers.pipeline("zero-shot-classification", model=str(folder), device="cpu")
    classify = bertkit.pipeline("zero-shot-classification", folder)
    for answer, row in zip(classify(TEXTS, labels), reference(TEXTS, labels), strict=True):
        assert answer["labels"] == row["labels"]
        np.testing.assert_allclose(answer["scores"], row["scores"], atol=1e-5)


def test_answer_logits_match_transformers(english: list[str], tmp_path: Path) -> None:
    model = write_model(tmp_path, english, "BartForQuestionAnswering")
    loaded = bertkit.load(tmp_path)
    encodings = [loaded.tokenizer.encode(text) for text in TEXTS]
    for encoding in encodings:
        with torch.no_grad():
            logits = loaded.model(Batch.of([encoding]))["answer"]
            out = model(input_ids=torch.from_numpy(encoding.ids)[None])
        expected = torch.stack([out.start_logits[0], out.end_logits[0]], dim=-1)
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_fine_tuned_classifier_loads_in_transformers(english: list[str], tmp_path: Path) -> None:
    write_model(tmp_path / "bart", english, "BartForConditionalGeneration")
    rows = [(text, label) for text, label in zip(TEXTS, ("a", "b", "a"), strict=True)] * 4
    out = tmp_path / "out"
    result = bertkit.finetune(
        "classify", tmp_path / "bart", train=rows, dev=rows, out=out, epochs=20, batch_size=4,
        learning_rate=1e-3,
    )  # fmt: skip
    assert result["accuracy"] == 1.0
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    np.testing.assert_allclose(scores(out), reference_scores(out, model), atol=1e-5)
