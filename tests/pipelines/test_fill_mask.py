"""Tests of the fill-mask pipeline."""

from pathlib import Path

import pytest
from tests.factories import SPECIALS, tiny_model, tiny_tokenizer
from tests.pipelines.conftest import LETTERS

import bertkit
from bertkit.checkpoint.directory import save
from bertkit.errors import ConfigError, DataError
from bertkit.families import BERT


def test_fill_mask_ranks_tokens(folders: Path) -> None:
    fill = bertkit.pipeline("fill-mask", folders / "pretrained")
    [[single], answers] = fill(["a [MASK] b", "[MASK] c [MASK]"], top=4)
    assert [answer.mask for answer in answers] == [0, 1]
    probabilities = [candidate.score for candidate in single.candidates]
    assert len(probabilities) == 4
    assert probabilities == sorted(probabilities, reverse=True)
    everything = fill(["a [MASK] b"], top=100)[0][0].candidates
    assert sum(f.score for f in everything) == pytest.approx(1.0, abs=1e-5)
    assert {f.token for f in everything} == {*SPECIALS, *LETTERS}
    with pytest.raises(DataError, match=r"no mask; replace a word by \[MASK\]"):
        fill(["a b"])
    assert fill("a [MASK] b", top=4) == fill(["a [MASK] b"], top=4)  # a string is a single text
    with pytest.raises(DataError, match=r"tokens, but the limit is"):
        fill("a [MASK] " + "b " * 100)
    assert len(fill("a [MASK] " + "b " * 100, long="truncate")[0]) == 1


def test_fill_mask_ignores_padding_rows_of_vocabulary(tmp_path: Path) -> None:
    save(tmp_path / "padded", tiny_model(64, "mlm"), tiny_tokenizer(LETTERS), BERT)
    fill = bertkit.pipeline("fill-mask", tmp_path / "padded")
    candidates = fill(["a [MASK]"], top=100)[0][0].candidates
    assert {f.token for f in candidates} == {*SPECIALS, *LETTERS}
    assert sum(f.score for f in candidates) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ConfigError, match="top: must be at least 1, got 0"):
        fill(["a [MASK]"], top=0)
