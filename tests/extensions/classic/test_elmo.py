"""ELMo compared with a plain NumPy implementation, and independence of sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
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


def reference_word(
    row: NDArray[np.int64], weights: Weights, options: dict[str, Any]
) -> NDArray[Any]:
    """Compute the vector of one word, window by window, in TensorFlow's layout."""
    cnn = options["char_cnn"]
    characters = weights["char_embed"][row - 1]
    parts = []
    for index, (size, _) in enumerate(cnn["filters"]):
        kernel, bias = weights[f"CNN/W_cnn_{index}"][0], weights[f"CNN/b_cnn_{index}"]
        windows = [
            np.einsum("we,weo->o", characters[at : at + size], kernel) + bias
            for at in range(len(characters) - size + 1)
        ]
        maximum = np.max(windows, axis=0)
        parts.append(np.maximum(maximum, 0) if cnn["activation"] == "relu" else np.tanh(maximum))
    x = np.concatenate(parts)
    for index in range(cnn["n_highway"]):
        layer_weights = {
            name.split("/")[1]: w for name, w in weights.items() if f"CNN_high_{index}/" in name
        }
        carry = sigmoid(x @ layer_weights["W_carry"] + layer_weights["b_carry"])
        x = (
            carry * np.maximum(x @ layer_weights["W_transform"] + layer_weights["b_transform"], 0)
            + (1 - carry) * x
        )
    result: NDArray[Any] = x @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"]
    return result


def reference(rows: NDArray[np.int64], weights: Weights, options: dict[str, Any]) -> NDArray[Any]:
    """Compute all layers of one sentence, word by word.

    Shapes: (W, characters) -> (layers + 1, W, D).
    """
    lstm = options["lstm"]
    words = [reference_word(row, weights, options) for row in rows]
    sides = []
    for side in range(2):
        x, states = words, [words]
        for layer in range(lstm["n_layers"]):
            prefix = f"RNN_{side}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            output, cell = np.zeros(lstm["projection_dim"]), np.zeros(lstm["dim"])
            outputs = []
            for word in x if side == 0 else x[::-1]:
                lstm_input = np.concatenate([word, output])
                i, j, f, o = np.split(
                    lstm_input @ weights[f"{prefix}/W_0"] + weights[f"{prefix}/B"], 4
                )
                cell = sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j)
                cell = np.clip(cell, -lstm["cell_clip"], lstm["cell_clip"])
                output = (sigmoid(o) * np.tanh(cell)) @ weights[f"{prefix}/W_P_0"]
                output = np.clip(output, -lstm["proj_clip"], lstm["proj_clip"])
                outputs.append(output)
            outputs = outputs if side == 0 else outputs[::-1]
            if lstm["use_skip_connections"] and layer > 0:
                outputs = [a + b for a, b in zip(outputs, x, strict=True)]
            x = outputs
            states.append(x)
        sides.append(np.array(states))
    return np.concatenate(sides, -1)


def options_with(**values: Any) -> dict[str, Any]:
    """Return the tiny options with changed values."""
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
        options_with(),
        options_with(activation="tanh", n_highway=1),
        options_with(use_skip_connections=False, n_layers=3),
        options_with(cell_clip=100.0, proj_clip=100.0),
    ],
)
def test_elmo_matches_reference(options: dict[str, Any], tmp_path: Path) -> None:
    weights = elmo_weights(options)
    model = load_elmo(tiny_elmo(tmp_path / "elmo", options, weights))
    sentences = [["let's", "stick", "to", "improvisation"], ["x"], ["né", "a" * 60, "stick"]]
    for words, found in zip(sentences, states(model, sentences), strict=True):
        expected = reference(sentence_ids(words, 50), weights, options)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("key", ["cell_clip", "proj_clip", "use_skip_connections"])
def test_elmo_differs_from_reference_with_changed_option(key: str, tmp_path: Path) -> None:
    model = load_elmo(tiny_elmo(tmp_path / "elmo"))
    changed_options = options_with(**{key: False if key.startswith("use") else 100.0})
    words = ["let's", "stick", "to", "improvisation"]
    expected = reference(sentence_ids(words, 50), elmo_weights(changed_options), changed_options)
    found = states(model, [words])[0].numpy()
    # Layer 0 is independent of the LSTMs.
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    assert np.abs(found - expected).max() > 0.01


def random_elmo() -> Elmo:
    torch.manual_seed(0)
    return Elmo(msgspec.convert(ELMO_OPTIONS, ElmoConfig), CHARACTERS).eval()


@given(st.lists(st.lists(st.text(max_size=12), max_size=6), min_size=1, max_size=5))
@settings(max_examples=25)
def test_sentence_states_are_independent_of_batch(sentences: list[list[str]]) -> None:
    model = random_elmo()
    together = states(model, sentences)
    for words, found in zip(sentences, together, strict=True):
        torch.testing.assert_close(found, states(model, [words])[0], atol=1e-6, rtol=1e-5)


def test_layer_directions_depend_on_their_context() -> None:
    model = random_elmo()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 3
    first, second = states(model, [["a", "b", "c", "d"], ["a", "b", "x", "d"]])
    differs = (first - second).abs() > 1e-6
    half = first.shape[2] // 2
    assert not differs[0][[0, 1, 2, 4, 5]].any()  # Layer 0 depends only on the word.
    assert not differs[1:, :3, :half].any()  # The forward LSTM ignores later words.
    assert differs[1:, 3:, :half].any(2).all()
    assert not differs[1:, 4:, half:].any()  # The backward LSTM ignores earlier words.
    assert differs[1:, :4, half:].any(2).all()
    assert torch.equal(first[0, :, :half], first[0, :, half:])


def test_elmo_continues_from_carried_state() -> None:
    """The forward states of the second half start from the state after the first half."""
    model = random_elmo()
    rows = torch.from_numpy(sentence_ids(["a", "b", "c", "d"], 50))
    with torch.no_grad():
        whole = model(rows, [6])[0]
        first, state = model(rows[:4], [4])
        second = model(rows[4:], [2], state)[0]
        restarted = model(rows[4:], [2])[0]
    half = whole.shape[2] // 2
    torch.testing.assert_close(torch.cat([first, second], 1)[..., :half], whole[..., :half])
    assert (second - restarted)[1:, :, :half].abs().max() > 1e-3


def test_carried_states_follow_their_sentences() -> None:
    """Lengths differ between batches, so the LSTMs process the sentences in other orders."""
    model = random_elmo()
    batches = [[["a"], ["b", "c", "d"], ["e", "f"]], [["g", "h", "i"], ["j"], ["k", "l"]]]
    rows = [[torch.from_numpy(sentence_ids(words, 50)) for words in batch] for batch in batches]
    with torch.no_grad():
        state = None
        for batch in rows:
            together, state = model(torch.cat(batch), [len(sentence) for sentence in batch], state)
        for index, found in enumerate(together.split([len(sentence) for sentence in rows[1]], 1)):
            carried = model(rows[0][index], [len(rows[0][index])])[1]
            expected = model(rows[1][index], [len(rows[1][index])], carried)[0]
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
