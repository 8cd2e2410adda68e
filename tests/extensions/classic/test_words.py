"""Word vectors of ELMo: recorded states of a published model, and independence of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.factories import tiny_elmo

import bertkit
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.classic import elmo_files as elmo
from bertkit.extensions.classic.character_ids import sentence_ids
from bertkit.extensions.classic.words import Words


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Words:
    return bertkit.pipeline("words", tiny_elmo(tmp_path_factory.mktemp("elmo") / "model"))


def test_words_returns_three_layers_and_mean(words: Words) -> None:
    (raw,), (split,) = words(["Let's stick."]), words([["Let", "'", "s", "stick", "."]])
    assert raw.words == split.words == ["Let", "'", "s", "stick", "."]
    (alone,) = words("Let's stick.")  # A string is one sentence, not a list of letters.
    np.testing.assert_array_equal(alone.layers, raw.layers)
    assert raw.layers.shape == (3, 5, 12)
    assert raw.layers.dtype == np.float32
    np.testing.assert_array_equal(raw.layers, split.layers)
    np.testing.assert_allclose(raw.mean, raw.layers.sum(0) / 3, rtol=1e-6)


def test_word_vectors_depend_only_on_their_sentence(words: Words) -> None:
    first = words([["a", "stick"], ["stick", "to", "it"]])
    words([["something", "else"]] * 3)
    again = words([["stick", "to", "it"], ["x"], ["a", "stick"]])
    np.testing.assert_allclose(first[0].layers, again[2].layers, atol=1e-6)
    np.testing.assert_allclose(first[1].layers, again[0].layers, atol=1e-6)
    first_word, second_word = first[0].layers[:, 1], first[1].layers[:, 0]
    np.testing.assert_allclose(first_word[0], second_word[0], atol=1e-6)
    assert np.abs(first_word[1:] - second_word[1:]).max() > 1e-2
    small = Words(words.model, max_batch_tokens=4)([["a", "stick"], ["stick", "to", "it"]])
    np.testing.assert_allclose(small[1].layers, first[1].layers, atol=1e-6)


def test_carried_passes_states_between_batches(words: Words) -> None:
    batch = [["a", "stick"], ["b"]]
    once, twice = words.carried([batch, batch])
    without_state = words(batch)
    np.testing.assert_allclose(once[0].layers, without_state[0].layers, atol=1e-6)
    assert np.abs(twice[0].layers[1:] - without_state[0].layers[1:]).max() > 1e-3
    with pytest.raises(DataError, match=r"batch 1 must have 2 sentences, .*, got 1"):
        list(words.carried([batch, batch[:1]]))


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([["a"], []], "sentence 1: has no words"),
        (["a", "  "], "sentence 1: has no words"),
        ([["a", ""]], "sentence 0: word 1 is empty"),
        (["a\ud800"], "surrogate"),
    ],
)
def test_words_rejects_invalid_sentences(words: Words, sentences: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        words(sentences)


def test_long_word_is_truncated_with_warning(
    words: Words, capsys: pytest.CaptureFixture[str]
) -> None:
    (long,) = words([["a" * 10_000, "b"]])
    warning = capsys.readouterr().err
    assert "truncated to 48 bytes" in warning
    assert warning.count("\n") == 1
    (truncated,) = words([["a" * 48, "b"]])
    assert not capsys.readouterr().err
    np.testing.assert_array_equal(long.layers, truncated.layers)


def test_words_rejects_unsupported_models_and_precision(words: Words, tiny: Path) -> None:
    assert words([]) == []
    with pytest.raises(ConfigError, match="not supported by the pipeline words"):
        bertkit.pipeline("words", tiny, precision="bf16")
    with pytest.raises(CheckpointError, match="expected an ELMo, got a Transformer"):
        bertkit.pipeline("words", bertkit.load(tiny))


# ---- Published ELMo


@pytest.fixture(scope="module")
def recorded(data_folder: Path) -> Path:
    """Return the directory of a small ELMo with its top layer recorded in TensorFlow.

    The recording has three lists of ten sentences.
    """
    return data_folder / "elmo_tiny"


def differences(run: Any, folder: Path) -> NDArray[Any]:
    """Return the largest difference from the recorded top layer for each of the 30 sentences."""
    h5py = pytest.importorskip("h5py", reason="pip install 'bertkit[classic]'")
    worst = []
    files = [h5py.File(folder / f"lm_embeddings_{number}.hdf5") for number in range(3)]
    for index, batch in enumerate(run):
        for file, states in zip(files, batch, strict=True):
            expected = np.concatenate(list(file[str(index)][()]), -1)
            assert states.layers[-1].shape == expected.shape
            worst.append(
                (np.abs(states.layers[-1] - expected) / np.maximum(np.abs(expected), 1)).max()
            )
    return np.array(worst)


def batches(folder: Path) -> list[list[list[str]]]:
    lists = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
    return [[sentence.split() for sentence in batch] for batch in zip(*lists, strict=True)]


def test_carried_states_match_recorded_states(recorded: Path) -> None:
    words = Words(recorded)
    found = differences(words.carried(batches(recorded)), recorded)
    assert len(found) == 30
    assert found.max() <= 1e-6


def test_states_without_carrying_match_only_first_batch(recorded: Path) -> None:
    found = differences(map(Words(recorded), batches(recorded)), recorded)
    assert found[:3].max() <= 1e-6
    assert found[3:].min() > 1e-3


def test_wrong_gate_order_does_not_match_recorded_states(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_cell = elmo._cell

    def reorder_gates(
        take: elmo.Take, path: str, outputs: int, width: int
    ) -> dict[str, torch.Tensor]:
        cell = original_cell(take, path, outputs, width)
        for name in ("input.weight", "input.bias", "recurrent.weight"):
            enter, forget, new, leave = cell[name].chunk(4)
            cell[name] = torch.cat([enter, new, forget, leave])
        return cell

    monkeypatch.setattr(elmo, "_cell", reorder_gates)
    found = differences(Words(recorded).carried(batches(recorded)), recorded)
    assert found.min() > 1e-3


def test_word_embeddings_match_recorded_vectors(recorded: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="pip install 'bertkit[classic]'")
    model = Words(recorded).model
    vocabulary = (recorded / "vocab_test.txt").read_text(encoding="utf-8").splitlines()
    marks = {"<S>": 0, "</S>": -1}
    rows = [sentence_ids([word], 50)[marks.get(word, 1)] for word in vocabulary]
    with torch.no_grad():
        found = model.words(torch.from_numpy(np.stack(rows))).numpy()
    with h5py.File(recorded / "elmo_token_embeddings.hdf5") as file:
        expected = file["embedding"][()]
    assert len(expected) > 400
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=1e-6)
