"""Tests of word states of frozen models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import tiny_elmo

from bertkit.batch import Batch
from bertkit.checkpoint.directory import load
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.errors import DataError
from bertkit.extensions.classic.word_models import FrozenElmo
from bertkit.nn.attention import Trace


@pytest.fixture
def elmo(tmp_path: Path) -> FrozenElmo:
    frozen = open_format(tiny_elmo(tmp_path / "elmo")).load_frozen(LoadSettings())
    assert isinstance(frozen, FrozenElmo)
    return frozen


def test_state_of_several_words_is_their_mean(elmo: FrozenElmo) -> None:
    text = "Ada lives in New York."
    (words,) = elmo.words([text])
    found = elmo.states(elmo.read([text, text], [(13, 21), (14, 15)]))
    np.testing.assert_allclose(found[:, 0], words.layers[:, 3:5].mean(1), atol=1e-6)
    np.testing.assert_allclose(found[:, 1], words.layers[:, 3], atol=1e-6)
    with pytest.raises(DataError, match="no word at 3:4"):
        elmo.read([text], [(3, 4)])


def test_transformer_state_is_mean_of_tokens(tiny: Path) -> None:
    loaded = load(tiny)
    frozen = open_format(loaded).load_frozen(LoadSettings())
    found = frozen.states(frozen.read(["a b c", "d"], [(2, 5), (0, 1)]))
    trace = Trace()
    with torch.no_grad():
        loaded.model.encoder(Batch.of([loaded.tokenizer.encode("a b c")]), trace)
    expected = torch.stack(trace.states)[:, 2:4].mean(1)
    torch.testing.assert_close(torch.from_numpy(found[:, 0]), expected, atol=1e-4, rtol=1e-4)
