"""Words to vectors: recorded states of a published ELMo, each call by itself."""

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


def test_a_sentence_gives_three_layers_and_their_mean(words: Words) -> None:
    (raw,), (split,) = words(["Let's stick."]), words([["Let", "'", "s", "stick", "."]])
    assert raw.words == split.words == ["Let", "'", "s", "stick", "."]
    (alone,) = words("Let's stick.")  # a sentence, and not its letters
    np.testing.assert_array_equal(alone.layers, raw.layers)
    assert raw.layers.shape == (3, 5, 12)
    assert raw.layers.dtype == np.float32
    np.testing.assert_array_equal(raw.layers, split.layers)
    np.testing.assert_allclose(raw.mean, raw.layers.sum(0) / 3, rtol=1e-6)


def test_a_word_depends_on_its_sentence_and_on_no_call(words: Words) -> None:
    first = words([["a", "stick"], ["stick", "to", "it"]])
    words([["something", "else"]] * 3)
    again = words([["stick", "to", "it"], ["x"], ["a", "stick"]])
    np.testing.assert_allclose(first[0].layers, again[2].layers, atol=1e-6)
    np.testing.assert_allclose(first[1].layers, again[0].layers, atol=1e-6)
    one, other = first[0].layers[:, 1], first[1].layers[:, 0]
    np.testing.assert_allclose(one[0], other[0], atol=1e-6)
    assert np.abs(one[1:] - other[1:]).max() > 1e-2
    small = Words(words.model, max_batch_tokens=4)([["a", "stick"], ["stick", "to", "it"]])
    np.testing.assert_allclose(small[1].layers, first[1].layers, atol=1e-6)


def test_carrying_is_asked_for(words: Words) -> None:
    batch = [["a", "stick"], ["b"]]
    once, twice = words.carried([batch, batch])
    fresh = words(batch)
    np.testing.assert_allclose(once[0].layers, fresh[0].layers, atol=1e-6)
    assert np.abs(twice[0].layers[1:] - fresh[0].layers[1:]).max() > 1e-3
    with pytest.raises(DataError, match=r"batch 1 must have 2 sentences .*, got 1"):
        list(words.carried([batch, batch[:1]]))


@pytest.mark.parametrize(
    ("sentences", "said"),
    [
        ([["a"], []], "sentence 1: has no words"),
        (["a", "  "], "sentence 1: has no words"),
        ([["a", ""]], "sentence 0: word 1 is empty"),
        (["a\ud800"], "surrogate"),
    ],
)
def test_what_cannot_be_read_is_refused(words: Words, sentences: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        words(sentences)


def test_a_word_of_ten_thousand_letters_is_cut_and_that_is_said(
    words: Words, capsys: pytest.CaptureFixture[str]
) -> None:
    (long,) = words([["a" * 10_000, "b"]])
    said = capsys.readouterr().err
    assert "truncated to 48 bytes" in said
    assert said.count("\n") == 1
    (cut,) = words([["a" * 48, "b"]])
    assert not capsys.readouterr().err
    np.testing.assert_array_equal(long.layers, cut.layers)


def test_what_the_pipeline_does_not_take(words: Words, tiny: Path) -> None:
    assert words([]) == []
    with pytest.raises(ConfigError, match="not supported by words"):
        bertkit.pipeline("words", tiny, precision="bf16")
    with pytest.raises(CheckpointError, match="expected an ELMo, got a Transformer"):
        bertkit.pipeline("words", bertkit.load(tiny))


# ---- the published one


@pytest.fixture(scope="module")
def recorded(data_folder: Path) -> Path:
    """What a small ELMo gave in TensorFlow: three lists of ten sentences, and the top layer."""
    return data_folder / "elmo_tiny"


def differences(run: Any, folder: Path) -> NDArray[Any]:
    """How far the top layer is from what was recorded, for each of the 30 sentences."""
    h5py = pytest.importorskip("h5py", reason="pip install 'bertkit[classic]'")
    worst = []
    files = [h5py.File(folder / f"lm_embeddings_{number}.hdf5") for number in range(3)]
    for place, batch in enumerate(run):
        for file, one in zip(files, batch, strict=True):
            wanted = np.concatenate(list(file[str(place)][()]), -1)
            assert one.layers[-1].shape == wanted.shape
            worst.append((np.abs(one.layers[-1] - wanted) / np.maximum(np.abs(wanted), 1)).max())
    return np.array(worst)


def batches(folder: Path) -> list[list[list[str]]]:
    lists = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
    return [[sentence.split() for sentence in batch] for batch in zip(*lists, strict=True)]


def test_recorded_states_are_met(recorded: Path) -> None:
    words = Words(recorded)
    found = differences(words.carried(batches(recorded)), recorded)
    assert len(found) == 30
    assert found.max() <= 1e-6


def test_control_without_carrying_only_the_first_are_met(recorded: Path) -> None:
    found = differences(map(Words(recorded), batches(recorded)), recorded)
    assert found[:3].max() <= 1e-6
    assert found[3:].min() > 1e-3


def test_control_with_torchs_order_of_gates_none_is_met(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = elmo._cell

    def wrong(take: elmo.Take, where: str, outputs: int, width: int) -> dict[str, torch.Tensor]:
        cell = right(take, where, outputs, width)
        for name in ("input.weight", "input.bias", "recurrent.weight"):
            enter, forget, new, leave = cell[name].chunk(4)
            cell[name] = torch.cat([enter, new, forget, leave])
        return cell

    monkeypatch.setattr(elmo, "_cell", wrong)
    found = differences(Words(recorded).carried(batches(recorded)), recorded)
    assert found.min() > 1e-3


def test_recorded_vectors_of_words_are_met(recorded: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="pip install 'bertkit[classic]'")
    model = Words(recorded).model
    vocabulary = (recorded / "vocab_test.txt").read_text(encoding="utf-8").splitlines()
    marks = {"<S>": 0, "</S>": -1}
    rows = [sentence_ids([word], 50)[marks.get(word, 1)] for word in vocabulary]
    with torch.no_grad():
        found = model.words(torch.from_numpy(np.stack(rows))).numpy()
    with h5py.File(recorded / "elmo_token_embeddings.hdf5") as file:
        wanted = file["embedding"][()]
    assert len(wanted) > 400
    np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=1e-6)
