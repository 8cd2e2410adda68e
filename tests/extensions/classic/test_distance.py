"""What a state depends on: against the whole Jacobian, and only on what it has read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.extensions.classic.families.test_lstm import saved
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


def measured(folder: Path, word: str, text: str) -> Distance:
    pipeline = DistancePipeline(bertkit.load(folder))
    with torch.inference_mode():  # as a server may run it
        (found,) = pipeline.run(pipeline.prepare([(word, text)], long="error"))
    return found


def test_a_gradient_is_a_row_of_the_jacobian(bert: Path) -> None:
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
    wanted = torch.einsum("pd,dte->pte", signs, jacobian).square().sum(2)
    found = gradients(encoder, encoding, [3] * 4)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-3)
    many = gradients(encoder, encoding, [3] * 400).mean(0)
    np.testing.assert_allclose(many, jacobian.square().sum((0, 2)).numpy(), rtol=0.25)
    assert not np.allclose(gradients(encoder, encoding, [2] * 4), wanted, rtol=0.1)  # the control


def test_a_word_among_others(bert: Path) -> None:
    found = measured(bert, "bank", TEXT)
    assert found.tokens[found.position] == "bank"
    assert TEXT[slice(*found.word)] == "bank"
    assert found.norms[found.position] == 1.0
    assert min(found.norms) > 0
    assert found.steps == [int(at != found.position) for at in range(len(found.tokens))]
    assert found.by_distance[0] == 1.0
    assert len(found.by_distance) == len(found.tokens)
    assert measured(bert, "bank", TEXT) == found


def test_what_is_not_read_yet_has_no_way(llama: Path) -> None:  # noqa: F811
    found = measured(llama, "the", "on the river")
    seen = np.arange(len(found.tokens)) <= found.position
    assert 0 < found.position < len(seen) - 1
    assert [norm > 0 for norm in found.norms] == seen.tolist()
    assert [steps is not None for steps in found.steps] == seen.tolist()
    assert found.steps[-1] is None


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_an_lstm_takes_a_step_for_each_token_between(
    letters: Tokenizer,  # noqa: F811
    tmp_path: Path,
    direction: str,
) -> None:
    folder, _ = saved(tmp_path / "m", letters, attention="none", direction=direction)
    found = measured(folder, "c", "a b c d e")
    place, count = found.position, len(found.tokens)
    before: list[int | None] = [*range(place, 0, -1)]
    behind: list[int | None] = [*range(1, count - place)]
    if direction == "forward":
        behind = [None] * len(behind)
    elif direction == "backward":
        before = [None] * len(before)
    assert 1 < place < count - 2
    assert found.steps == [*before, 0, *behind]
    assert [norm > 0 for norm in found.norms] == [one is not None for one in found.steps]


def test_the_page_of_two(bert: Path) -> None:
    found = measured(bert, "bank", TEXT)
    html = html_of(*distance_figures(TEXT, [("<a>", found), ("b", found)]))
    assert html.count("<mark>bank</mark>") == 2
    assert html.count('class="share') == 2 * len(found.tokens)
    assert "&lt;a&gt;" in html
    assert "<a>" not in html


@pytest.mark.parametrize(
    ("word", "text", "said"),
    [
        ("bank", "the river", "'bank' is not in 'the river'"),
        ("the", "the " * MAX_TOKENS, "more than 64 tokens"),
        ("the", " ", "text: the text is empty"),
    ],
)
def test_what_cannot_be_measured(bert: Path, word: str, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        measured(bert, word, text)
