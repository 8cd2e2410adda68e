"""Next sentence: a probability."""

from pathlib import Path

import bertkit


def test_next_sentence_is_a_probability(folders: Path) -> None:
    follows = bertkit.pipeline("next-sentence", folders / "pretrained")
    answers = follows(["a b", "c"], ["c d", "e"])
    assert len(answers) == 2
    assert all(0.0 < answer.next < 1.0 for answer in answers)
