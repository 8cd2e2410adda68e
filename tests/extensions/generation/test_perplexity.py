"""Perplexity of texts, compared with token losses computed separately."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import tiny_folder

import bertkit
from bertkit.errors import CheckpointError
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.families.openai_gpt import OPENAI_GPT
from bertkit.extensions.generation.perplexity import evaluate_text
from bertkit.extensions.generation.stepper import Request, stepper_of
from bertkit.families import Family
from bertkit.text.vocabulary_training import END_OF_TEXT, train


@pytest.mark.parametrize(
    "family", [GPT2, OPENAI_GPT, LSTM_LM], ids=["gpt2", "no end token", "lstm-lm"]
)
def test_perplexity_matches_token_losses(
    family: Family, english: list[str], tmp_path: Path
) -> None:
    spec = json.loads(train(english[:30], kind="bpe", size=400, use="write").core.to_str())
    if family is OPENAI_GPT:
        spec["added_tokens"] = []
        del spec["model"]["vocab"][END_OF_TEXT]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    tokenizer = bertkit.Tokenizer.load(tmp_path)
    shape = {"length": 20, "intermediate": 64, "spread": 0.3}
    folder = tiny_folder(tmp_path / "m", tokenizer, "lm", family=family, **shape)
    texts = [english[0][:300], "Grüße 🙂", english[1][:50]]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text, encoding="utf-8")
    result = evaluate_text(folder, sorted(tmp_path.glob("*.txt")))
    stepper = stepper_of(bertkit.load(folder).model)
    nats, count = 0.0, 0
    for ids in tokenizer.ids(texts):
        text_ids = [*tokenizer.ends, *ids.tolist(), *tokenizer.ends]
        for position in range(1, len(text_ids)):
            before = text_ids[(position - 1) // 20 * 20 : position]
            _, logits = stepper.start([Request(np.array(before))])
            nats -= float(torch.log_softmax(logits, -1)[0, text_ids[position]])
            count += 1
    size = sum(len(text.encode()) for text in texts)
    assert (result.tokens, result.bytes) == (count, size)
    assert result.perplexity == pytest.approx(math.exp(nats / count), rel=1e-4)
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-4)


def test_evaluate_text_rejects_model_without_lm_head(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    with pytest.raises(CheckpointError, match="has no language model head; use a generative model"):
        evaluate_text(tiny, [tmp_path / "a.txt"])
