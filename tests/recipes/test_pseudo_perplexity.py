"""Pseudo-perplexity of masked language models."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit.batch import Batch
from bertkit.errors import CheckpointError, DataError
from bertkit.families import BERT, ROBERTA, Family
from bertkit.recipes.pseudo_perplexity import evaluate_masked
from bertkit.text.encoding import Encoding
from bertkit.text.vocabulary_training import train


@pytest.mark.parametrize("family", [BERT, ROBERTA], ids=["bert", "roberta"])
def test_loss_matches_masking_each_token_separately(
    family: Family, english: list[str], tmp_path: Path
) -> None:
    kind = "wordpiece" if family is BERT else "bpe"
    tokenizer = train(english[:20], kind=kind, size=300)
    shape = {"length": 16, "spread": 0.3}
    folder = tiny_folder(tmp_path / "m", tokenizer, "mlm", family=family, **shape)
    texts = [english[0][:120], "Grüße 🙂 [MASK]"]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    scored = evaluate_masked(folder, sorted(tmp_path.glob("*.txt")))
    loaded = bertkit.load(folder)
    losses, right = [], []
    for ids in loaded.tokenizer.ids(texts):
        for start in range(0, len(ids), 14):
            block = [tokenizer.cls, *ids[start : start + 14].tolist(), tokenizer.sep]
            for position in range(1, len(block) - 1):
                masked_block = np.array(block)
                masked_block[position] = tokenizer.mask
                batch = Batch.of(
                    [Encoding.of_ids(masked_block)], token_indices=[np.array([position])]
                )
                with torch.no_grad():
                    logits = loaded.model.heads["mlm"](loaded.model.states(batch), batch)[0]
                losses.append(-float(torch.log_softmax(logits, -1)[block[position]]))
                right.append(int(logits.argmax()) == block[position])
    assert (scored.tokens, scored.masked) == (len(losses), len(losses))
    assert scored.loss == pytest.approx(np.mean(losses), rel=1e-4)
    assert scored.pseudo_perplexity == pytest.approx(math.exp(np.mean(losses)), rel=1e-3)
    assert scored.accuracy == pytest.approx(np.mean(right))


def test_token_limit_masks_part_of_a_long_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b c d " * 30, encoding="utf-8")
    tiny = tiny_folder(tmp_path / "model", tiny_tokenizer("abcd"), "mlm", length=16)
    scores = evaluate_masked(tiny, [tmp_path / "a.txt"], tokens=10)
    assert scores.masked == 10 < scores.tokens
    single = evaluate_masked(tiny, [tmp_path / "a.txt"], tokens=1)
    assert single.masked == 1


def test_evaluate_masked_rejects_other_models_and_empty_text(
    tmp_path: Path, english: list[str]
) -> None:
    tokenizer = train(english[:5], kind="wordpiece", size=200)
    folder = tiny_folder(tmp_path / "m", tokenizer, "classify", labels=("a", "b"))
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    with pytest.raises(CheckpointError, match="does not contain a trained MLM head"):
        evaluate_masked(folder, [tmp_path / "a.txt"])
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    masked = tiny_folder(tmp_path / "masked", tokenizer, "mlm")
    with pytest.raises(DataError):
        evaluate_masked(masked, [tmp_path / "empty.txt"])
