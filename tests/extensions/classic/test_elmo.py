"""ELMo against its formulas written plainly; sentences do not see each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.factories import ELMO_OPTIONS, elmo_weights, tiny_elmo
from torch import Tensor

from bertkit.extensions.classic.character_ids import CHARACTERS, sentence_ids
from bertkit.extensions.classic.elmo import Elmo, ElmoConfig
from bertkit.extensions.classic.elmo_files import load_elmo

Weights = dict[str, NDArray[Any]]


def sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    return 1 / (1 + np.exp(-x))


def plain_word(row: NDArray[np.int64], weights: Weights, options: dict[str, Any]) -> NDArray[Any]:
    """The vector of one word: a window at a time, in TensorFlow's layout."""
    cnn = options["char_cnn"]
    characters = weights["char_embed"][row - 1]
    parts = []
    for place, (size, _) in enumerate(cnn["filters"]):
        kernel, bias = weights[f"CNN/W_cnn_{place}"][0], weights[f"CNN/b_cnn_{place}"]
        windows = [
            np.einsum("we,weo->o", characters[at : at + size], kernel) + bias
            for at in range(len(characters) - size + 1)
        ]
        most = np.max(windows, axis=0)
        parts.append(np.maximum(most, 0) if cnn["activation"] == "relu" else np.tanh(most))
    x = np.concatenate(parts)
    for place in range(cnn["n_highway"]):
        of = {name.split("/")[1]: w for name, w in weights.items() if f"CNN_high_{place}/" in name}
        carry = sigmoid(x @ of["W_carry"] + of["b_carry"])
        x = carry * np.maximum(x @ of["W_transform"] + of["b_transform"], 0) + (1 - carry) * x
    result: NDArray[Any] = x @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"]
    return result


def plain(rows: NDArray[np.int64], weights: Weights, options: dict[str, Any]) -> NDArray[Any]:
    """All layers of one sentence, a word at a time.

    Shapes: (W, characters) -> (layers + 1, W, D).
    """
    lstm = options["lstm"]
    words = [plain_word(row, weights, options) for row in rows]
    sides = []
    for side in range(2):
        x, states = words, [words]
        for layer in range(lstm["n_layers"]):
            where = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            output, cell = np.zeros(lstm["projection_dim"]), np.zeros(lstm["dim"])
            outputs = []
            for word in x if side == 0 else x[::-1]:
                both = np.concatenate([word, output])
                i, j, f, o = np.split(both @ weights[f"{where}/W_0"] + weights[f"{where}/B"], 4)
                cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j)
                cell = np.clip(cell, -lstm["cell_clip"], lstm["cell_clip"])
                output = (sigmoid(o) * np.tanh(cell)) @ weights[f"{where}/W_P_0"]
                output = np.clip(output, -lstm["proj_clip"], lstm["proj_clip"])
                outputs.append(output)
            outputs = outputs if side == 0 else outputs[::-1]
            if lstm["use_skip_connections"] and layer > 0:
                outputs = [a + b for a, b in zip(outputs, x, strict=True)]
            x = outputs
            states.append(x)
        sides.append(np.array(states))
    return np.concatenate(sides, -1)


def changed(**values: Any) -> dict[str, Any]:
    """The tiny options with other values, wherever they stand."""
    return {
        group: {key: values.get(key, value) for key, value in inner.items()}
        for group, inner in ELMO_OPTIONS.items()
        if isinstance(inner, dict)
    }


def states(model: Elmo, sentences: list[list[str]]) -> list[Tensor]:
    rows = [torch.from_numpy(sentence_ids(words, 50)) for words in sentences]
    lengths = [len(part) for part in rows]
    with torch.no_grad():
        return list(model(torch.cat(rows), lengths)[0].split(lengths, 1))


@pytest.mark.parametrize(
    "options",
    [
        changed(),
        changed(activation="tanh", n_highway=1),
        changed(use_skip_connections=False, n_layers=3),
        changed(cell_clip=100.0, proj_clip=100.0),
    ],
)
def test_it_is_the_formulas(options: dict[str, Any], tmp_path: Path) -> None:
    weights = elmo_weights(options)
    model = load_elmo(tiny_elmo(tmp_path / "elmo", options, weights))
    sentences = [["let's", "stick", "to", "improvisation"], ["x"], ["né", "a" * 60, "stick"]]
    for words, found in zip(sentences, states(model, sentences), strict=True):
        wanted = plain(sentence_ids(words, 50), weights, options)
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("key", ["cell_clip", "proj_clip", "use_skip_connections"])
def test_control_without_one_of_them_the_numbers_are_others(key: str, tmp_path: Path) -> None:
    model = load_elmo(tiny_elmo(tmp_path / "elmo"))
    other = changed(**{key: False if key.startswith("use") else 100.0})
    words = ["let's", "stick", "to", "improvisation"]
    wanted = plain(sentence_ids(words, 50), elmo_weights(other), other)
    found = states(model, [words])[0].numpy()
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)  # words know no LSTM
    assert np.abs(found - wanted).max() > 0.01


def random_elmo() -> Elmo:
    torch.manual_seed(0)
    return Elmo(msgspec.convert(ELMO_OPTIONS, ElmoConfig), CHARACTERS).eval()


@given(st.lists(st.lists(st.text(max_size=12), max_size=6), min_size=1, max_size=5))
def test_a_sentence_is_the_same_in_any_company(sentences: list[list[str]]) -> None:
    model = random_elmo()
    together = states(model, sentences)
    for words, found in zip(sentences, together, strict=True):
        torch.testing.assert_close(found, states(model, [words])[0], atol=1e-6, rtol=1e-5)


def test_layers_see_what_they_should() -> None:
    model = random_elmo()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 3
    one, other = states(model, [["a", "b", "c", "d"], ["a", "b", "x", "d"]])
    differs = (one - other).abs() > 1e-6
    half = one.shape[2] // 2
    assert not differs[0][[0, 1, 2, 4, 5]].any()  # a word's own vector
    assert not differs[1:, :3, :half].any()  # before it, forwards
    assert differs[1:, 3:, :half].any(2).all()
    assert not differs[1:, 4:, half:].any()  # behind it, backwards
    assert differs[1:, :4, half:].any(2).all()
    assert torch.equal(one[0, :, :half], one[0, :, half:])


def test_from_the_state_at_its_end_it_goes_on() -> None:
    """A sentence in two parts, forwards: the second from the state after the first."""
    model = random_elmo()
    rows = torch.from_numpy(sentence_ids(["a", "b", "c", "d"], 50))
    with torch.no_grad():
        whole = model(rows, [6])[0]
        first, state = model(rows[:4], [4])
        second = model(rows[4:], [2], state)[0]
        fresh = model(rows[4:], [2])[0]
    half = whole.shape[2] // 2
    torch.testing.assert_close(torch.cat([first, second], 1)[..., :half], whole[..., :half])
    assert (second - fresh)[1:, :, :half].abs().max() > 1e-3


def test_states_stay_with_their_sentences() -> None:
    """Sentences of other lengths each time, so that the LSTMs read them in other orders."""
    model = random_elmo()
    batches = [[["a"], ["b", "c", "d"], ["e", "f"]], [["g", "h", "i"], ["j"], ["k", "l"]]]
    rows = [[torch.from_numpy(sentence_ids(words, 50)) for words in batch] for batch in batches]
    with torch.no_grad():
        state = None
        for batch in rows:
            together, state = model(torch.cat(batch), [len(one) for one in batch], state)
        for place, found in enumerate(together.split([len(one) for one in rows[1]], 1)):
            own = model(rows[0][place], [len(rows[0][place])])[1]
            alone = model(rows[1][place], [len(rows[1][place])], own)[0]
            torch.testing.assert_close(found, alone, atol=1e-6, rtol=1e-5)
