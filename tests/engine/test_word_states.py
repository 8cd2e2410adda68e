"""States of words are those that transformers computes, averaged over the word's pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bertkit.checkpoint.directory import load
from bertkit.engine.engine import Engine
from bertkit.engine.word_states import token_indices_of, word_states


def test_states_are_those_of_transformers(minilm: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    texts, words = ["He rowed to the riverbank.", "A savings bank, open"], ["riverbank", "bank"]
    spans = [(t.index(w), t.index(w) + len(w)) for t, w in zip(texts, words, strict=True)]
    loaded = load(minilm, heads=())
    encodings = loaded.tokenizer.encode_batch(texts)
    pieces = [token_indices_of(*one) for one in zip(encodings, spans, texts, strict=True)]
    ours = word_states(Engine(loaded.model), encodings, pieces)
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    peer = transformers.AutoModel.from_pretrained(minilm).eval()
    for place, (text, word) in enumerate(zip(texts, words, strict=True)):
        given = tokenizer(text, return_tensors="pt")
        pieces = tokenizer.convert_ids_to_tokens(given["input_ids"][0])
        own = tokenizer.tokenize(word)
        start = next(i for i in range(len(pieces)) if pieces[i : i + len(own)] == own)
        with torch.no_grad():
            states = torch.stack(peer(**given, output_hidden_states=True).hidden_states)[:, 0]
        theirs = states[:, start : start + len(own)].mean(1).numpy()
        np.testing.assert_allclose(ours[:, place], theirs, atol=1e-4)
        moved = states[:, start - 1 : start - 1 + len(own)].mean(1).numpy()
        assert np.abs(ours[:, place] - moved).max() > 0.1  # one piece before is another
