"""Scores of a saved folder, and the refusal to score a head that was never trained."""

from pathlib import Path

import pytest
import torch

import bertkit
from bertkit.checkpoint.folder import load, save
from bertkit.errors import CheckpointError, DataError
from bertkit.families import BERT
from bertkit.models.config import TransformerConfig
from bertkit.models.model import build
from bertkit.recipes.evaluate import evaluate
from bertkit.tasks.classify import Example
from bertkit.text.tokenizer import Tokenizer

CONFIG = TransformerConfig(vocab=9, hidden=16, layers=1, heads=2, intermediate=32, length=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokenizer = Tokenizer.load(tmp_path / "vocab.txt")
    torch.manual_seed(0)
    model = build(CONFIG, ("classify",), labels=2)
    save(tmp_path / "model", model, tokenizer, BERT, labels=("no", "yes"))
    return tmp_path / "model"


def test_scores_equal_the_answers(folder: Path) -> None:
    classify = bertkit.pipeline("classify", folder)
    texts = ["a", "b c", "d d d", "c b a b c d a b c d"]
    answers = classify(texts, long="truncate")
    flip = {"no": "yes", "yes": "no"}
    rows = [
        Example(t, None, a.label, i) for i, (t, a) in enumerate(zip(texts, answers, strict=True))
    ]
    rows[1] = Example(texts[1], None, flip[answers[1].label], 1)
    found = evaluate(classify, rows, name="dev.tsv")
    assert found["accuracy"] == pytest.approx(3 / 4)
    assert found["rows"] == 4
    assert found["truncated"] == 1


def test_unknown_labels_are_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"dev\.tsv:7: label 'maybe' is not"):
        evaluate(
            bertkit.pipeline("classify", folder), [Example("a", None, "maybe", 7)], name="dev.tsv"
        )


def test_an_untrained_head_is_not_scored(folder: Path) -> None:
    loaded = load(folder, heads=("classify",), labels=("x", "y", "z"))
    with pytest.raises(CheckpointError, match="never trained"):
        evaluate(bertkit.pipeline("classify", loaded), [Example("a", None, "x", 1)], name="f")
