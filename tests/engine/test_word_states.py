"""Word states match the states of transformers, averaged over the tokens of each word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bertkit.checkpoint.directory import load
from bertkit.engine.engine import Engine
from bertkit.engine.word_states import token_indices_of, word_states


def test_word_states_match_transformers(minilm: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    texts, words = ["He rowed to the riverbank.", "A savings bank, open"], ["riverbank", "bank"]
    spans = [(t.index(w), t.index(w) + len(w)) for t, w in zip(texts, words, strict=True)]
    loaded = load(minilm, heads=())
    encodings = loaded.tokenizer.encode_batch(texts)
    indices = [token_indices_of(*word) for word in zip(encodings, spans, texts, strict=True)]
    actual = word_states(Engine(loaded.model), encodings, indices)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    peer = transformers.AutoModel.from_pretrained(minilm).eval()
    for index, (text, word) in enumerate(zip(texts, words, strict=True)):
        inputs = tokenizer(text, return_tensors="pt")
        tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
        word_tokens = tokenizer.tokenize(word)
        start = next(
            i for i in range(len(tokens)) if tokens[i : i + len(word_tokens)] == word_tokens
        )
        with torch.no_grad():
            states = torch.stack(peer(**inputs, output_hidden_states=True).hidden_states)[:, 0]
        expected = states[:, start : start + len(word_tokens)].mean(1).numpy()
        np.testing.assert_allclose(actual[:, index], expected, atol=1e-4)
        moved = states[:, start - 1 : start - 1 + len(word_tokens)].mean(1).numpy()
        # The control: the span one token earlier.
        assert np.abs(actual[:, index] - moved).max() > 0.1
