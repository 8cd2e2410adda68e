"""Gradients and path lengths between a word's state and the tokens it depends on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.extensions.classic.families.test_lstm import save_lstm
from tests.extensions.classic.families.test_lstm import tokenizer as letters  # noqa: F401  (the fixture)
from tests.extensions.generation.test_routes import folder as llama  # noqa: F401  (the fixture)
from tests.view.conftest import html_of

import bertkit
from bertkit.batch import Batch
from bertkit.errors import DataError
from bertkit.extensions.classic.distance import (
    MAX_TOKENS,
    Distance,
    DistancePipeline,
    distance_figures,
    gradients,
)
from bertkit.text.tokenizer import Tokenizer

TEXT = "we sat on the bank of the river."


def measure(folder: Path, word: str, text: str) -> Distance:
    pipeline = DistancePipeline(bertkit.load(folder))
    with torch.inference_mode():  # A server may run the pipeline in inference mode.
        (distance,) = pipeline.run(pipeline.prepare([(word, text)], long="error"))
    return distance


def test_gradients_match_jacobian(bert: Path) -> None:
    loaded = bertkit.load(bert)
    encoder, encoding = loaded.model.encoder, loaded.tokenizer.encode(TEXT, max_length=40)
    inputs = encoder.embedding(Batch.of([encoding])).detach()

    def state(x: torch.Tensor) -> torch.Tensor:
        handle = encoder.embedding.register_forward_hook(lambda *_: x)
        out = encoder(Batch.of([encoding]))[3]
        handle.remove()
        return out

    jacobian = torch.autograd.functional.jacobian(state, inputs)  # (D, T, D)
    draw = torch.Generator().manual_seed(0)
    signs = torch.randint(2, (4, len(jacobian)), generator=draw) * 2.0 - 1
    expected = torch.einsum("pd,dte->pte", signs, jacobian).square().sum(2)
    found = gradients(encoder, encoding, [3] * 4)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3)
    mean_gradients = gradients(encoder, encoding, [3] * 400).mean(0)
    np.testing.assert_allclose(mean_gradients, jacobian.square().sum((0, 2)).numpy(), rtol=0.25)
    assert not np.allclose(gradients(encoder, encoding, [2] * 4), expected, rtol=0.1)  # Control.


def test_distance_describes_each_token(bert: Path) -> None:
    found = measure(bert, "bank", TEXT)
    assert found.tokens[found.position] == "bank"
    assert TEXT[slice(*found.word)] == "bank"
    assert found.norms[found.position] == 1.0
    assert min(found.norms) > 0
    assert found.steps == [int(index != found.position) for index in range(len(found.tokens))]
    assert found.by_distance[0] == 1.0
    assert len(found.by_distance) == len(found.tokens)
    assert measure(bert, "bank", TEXT) == found


def test_causal_state_ignores_later_tokens(llama: Path) -> None:  # noqa: F811
    found = measure(llama, "the", "on the river")
    visible = np.arange(len(found.tokens)) <= found.position
    assert 0 < found.position < len(visible) - 1
    assert [norm > 0 for norm in found.norms] == visible.tolist()
    assert [steps is not None for steps in found.steps] == visible.tolist()
    assert found.steps[-1] is None


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_lstm_distance_counts_recurrent_steps(
    letters: Tokenizer,  # noqa: F811
    tmp_path: Path,
    direction: str,
) -> None:
    folder, _ = save_lstm(tmp_path / "m", letters, attention="none", direction=direction)
    found = measure(folder, "c", "a b c d e")
    position, count = found.position, len(found.tokens)
    before: list[int | None] = [*range(position, 0, -1)]
    after: list[int | None] = [*range(1, count - position)]
    if direction == "forward":
        after = [None] * len(after)
    elif direction == "backward":
        before = [None] * len(before)
    assert 1 < position < count - 2
    assert found.steps == [*before, 0, *after]
    assert [norm > 0 for norm in found.norms] == [steps is not None for steps in found.steps]


def test_figures_show_two_models(bert: Path) -> None:
    found = measure(bert, "bank", TEXT)
    html = html_of(*distance_figures(TEXT, [("<a>", found), ("b", found)]))
    assert html.count("<mark>bank</mark>") == 2
    assert html.count('class="share') == 2 * len(found.tokens)
    assert "&lt;a&gt;" in html
    assert "<a>" not in html


@pytest.mark.parametrize(
    ("word", "text", "message"),
    [
        ("bank", "the river", "'the river': does not contain 'bank'"),
        ("the", "the " * MAX_TOKENS, "more than 64 tokens"),
        ("the", " ", "text: the text is empty"),
    ],
)
def test_distance_rejects_invalid_input(bert: Path, word: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        measure(bert, word, text)
