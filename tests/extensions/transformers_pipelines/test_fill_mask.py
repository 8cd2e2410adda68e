"""Arguments, texts, and targets of fill-mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.extensions.transformers_pipelines.cases import LONG, MASKED

import bertkit
from bertkit.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 0}, "top_k"),
        ({"targets": [""]}, "targets: no target is in the vocabulary"),
        ({"top": 3}, "top: FillMaskPipeline has no such setting; did you mean 'top_k'"),
        ({"tokenizer_kwargs": {"stride": 3}}, "stride"),
    ],
)
def test_invalid_arguments_are_rejected(
    arguments: dict[str, Any], message: str, models: Path
) -> None:
    fill = bertkit.pipeline("fill-mask", models / "bert")
    with pytest.raises(ConfigError, match=message):
        fill(MASKED[0], **arguments)


def test_invalid_texts_are_rejected(models: Path) -> None:
    fill = bertkit.pipeline("fill-mask", models / "bert")
    with pytest.raises(DataError, match=r"the text has no mask; replace a word by \[MASK\]"):
        fill([MASKED[0], "the cat"])
    with pytest.raises(DataError, match="longer than the maximum of 64 tokens"):
        fill(f"{MASKED[0]} {LONG}")
    with pytest.raises(ConfigError, match="targets: expected"):
        bertkit.pipeline("fill-mask", "no-such-model", targets=3)


def test_unknown_target_is_reported(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bertkit.pipeline("fill-mask", models / "bert")(MASKED[0], targets="cats")
    assert "warning: targets: 'cats' is not a token; using ['cat']" in capsys.readouterr().err


def test_server_and_command_use_the_same_pipeline(models: Path) -> None:
    fill = bertkit.pipeline("fill-mask", models / "bert")
    ((answer,),) = fill.run(fill.prepare([MASKED[0]], top=3))
    tokens = fill(MASKED[0], top_k=3)
    assert [token["token_str"] for token in tokens] == [c.token for c in answer.candidates]
