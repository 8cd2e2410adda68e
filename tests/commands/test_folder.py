"""Commands that look at a model folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit import cli


def test_info_says_shape_and_heads(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["info", str(model)]) == 0
    text = capsys.readouterr().out
    json.loads(text)
    assert '"mlm"' in text
    assert '"nsp"' in text
