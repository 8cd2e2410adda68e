"""Tests of the next-sentence pipeline."""

from pathlib import Path

import pytest

import bertkit
from bertkit.errors import DataError


def test_next_sentence_returns_probabilities(folders: Path) -> None:
    follows = bertkit.pipeline("next-sentence", folders / "pretrained")
    answers = follows(["a b", "c"], ["c d", "e"])
    assert len(answers) == 2
    assert all(0.0 < answer.next < 1.0 for answer in answers)
    assert follows("a b", "c d")[0].next == pytest.approx(answers[0].next, abs=1e-6)
    with pytest.raises(DataError, match="2 first, but 1 second sentences"):
        follows(["a b", "c"], ["c d"])
