"""Commands that ask a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit import cli

Captured = pytest.CaptureFixture[str]


def test_masked_words_and_next_sentences(model: Path, capsys: Captured) -> None:
    assert cli.run(["fill-mask", str(model), "a [MASK] day", "--top", "3"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["mask"] == 0
    assert len(answer["candidates"]) == 3
    assert cli.run(["fill-mask", str(model), "no mask"]) == 2
    assert "write [MASK]" in capsys.readouterr().err
    assert cli.run(["next-sentence", str(model), "a day", "a night"]) == 0
    assert 0.0 < json.loads(capsys.readouterr().out)["next"] < 1.0
