"""Tests of the fill-mask pipeline."""

from pathlib import Path
from typing import Any

import pytest
from tests.factories import SPECIALS, tiny_model, tiny_tokenizer
from tests.pipelines.conftest import LETTERS

from bertkit.checkpoint.directory import save
from bertkit.errors import ConfigError, DataError
from bertkit.families import BERT
from bertkit.pipelines import FillMask, MaskAnswer


def run(folder: Path, texts: list[str], **options: Any) -> list[list[MaskAnswer]]:
    fill = FillMask.open(folder)
    return fill.run(fill.prepare(texts, **options))


def test_fill_mask_ranks_tokens(folders: Path) -> None:
    folder, long = folders / "pretrained", "a [MASK] " + "b " * 100
    [[single], answers] = run(folder, ["a [MASK] b", "[MASK] c [MASK]"], top=4)
    assert [answer.mask for answer in answers] == [0, 1]
    probabilities = [candidate.score for candidate in single.candidates]
    assert len(probabilities) == 4
    assert probabilities == sorted(probabilities, reverse=True)
    everything = run(folder, ["a [MASK] b"], top=100)[0][0].candidates
    assert sum(f.score for f in everything) == pytest.approx(1.0, abs=1e-5)
    assert {f.token for f in everything} == {*SPECIALS, *LETTERS}
    with pytest.raises(DataError, match=r"no mask; replace a word by \[MASK\]"):
        run(folder, ["a b"])
    with pytest.raises(DataError, match=r"tokens, but the limit is"):
        run(folder, [long])
    assert len(run(folder, [long], long="truncate")[0]) == 1


def test_fill_mask_ignores_padding_rows_of_vocabulary(tmp_path: Path) -> None:
    folder = tmp_path / "padded"
    save(folder, tiny_model(64, "mlm"), tiny_tokenizer(LETTERS), BERT)
    candidates = run(folder, ["a [MASK]"], top=100)[0][0].candidates
    assert {f.token for f in candidates} == {*SPECIALS, *LETTERS}
    assert sum(f.score for f in candidates) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ConfigError, match="top: must be at least 1, got 0"):
        run(folder, ["a [MASK]"], top=0)
