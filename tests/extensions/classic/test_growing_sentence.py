"""Vectors of the prefixes of a sentence, compared with separate runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.extensions.classic.families.test_lstm import save_lstm
from tests.extensions.classic.families.test_lstm import tokenizer as letters  # noqa: F401  (the fixture)
from tests.view.conftest import html_of

import bertkit
from bertkit.batch import Batch
from bertkit.errors import DataError
from bertkit.extensions.classic.growing_sentence import Growing, GrowingPipeline, growing_figure
from bertkit.extensions.classic.seq2seq import RecurrentEncoder
from bertkit.extensions.generation.pipeline import Generate
from bertkit.pipelines import Embed
from bertkit.text.tokenizer import Tokenizer

OTHERS = ("d e f", "a b", "f")


def grow(pipeline: GrowingPipeline, text: str, *others: str) -> Growing:
    (found,) = pipeline.run(pipeline.prepare([(text, others)], long="error"))
    return found


@pytest.mark.parametrize("attention", ["none", "luong"])
def test_lstm_vectors_are_last_cell_states(
    letters: Tokenizer,  # noqa: F811
    tmp_path: Path,
    attention: str,
) -> None:
    folder, model = save_lstm(tmp_path / "m", letters, attention=attention)
    loaded = bertkit.load(folder)
    generate = Generate(loaded)
    found = grow(GrowingPipeline(Embed(loaded), generate), "a b c d", *OTHERS)
    assert found.texts == ["a", "a b", "a b c", "a b c d"]
    assert isinstance(model.encoder, RecurrentEncoder)
    for text, vector in zip(found.texts, found.vectors, strict=True):
        batch = Batch.of([loaded.tokenizer.encode(text, max_length=40)])
        with torch.no_grad():
            state = model.encoder.read(batch).cells[0][-1, 0]
        np.testing.assert_allclose(vector, state, atol=1e-6)
    assert found.nearest[1] == ("a b", pytest.approx(1, abs=1e-5))
    assert found.before[0] == 0
    assert found.before[2] < 0.9999  # Control: another word changes the vector.
    expected = [generate([text])[0][0].text for text in found.texts]
    assert found.written == expected
    assert found.attends == (attention == "luong")


def test_growing_vectors_match_embed(minilm: Path) -> None:
    embed = Embed(bertkit.load(minilm))
    found = grow(GrowingPipeline(embed, None), "the cat sat")
    np.testing.assert_allclose(found.vectors, embed(["the", "the cat", "the cat sat"]), atol=1e-5)
    assert (found.nearest, found.written) == ([], [])
    html = html_of(growing_figure("<m>", found))
    assert html.count("<svg") == 3
    assert "384 dimensions (128 are shown) for every sentence length" in html
    assert "&lt;m&gt;" in html


@pytest.mark.parametrize(
    ("text", "others", "message"),
    [
        (" ", (), "text must have 1 to 40 words, got 0"),
        ("a " * 41, (), "text must have 1 to 40 words, got 41"),
        ("a", ("b",) * 21, "others must have at most 20 lines, got 21"),
    ],
)
def test_growing_rejects_invalid_input(
    bert: Path, text: str, others: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        grow(GrowingPipeline(Embed(bertkit.load(bert)), None), text, *others)
