"""Names and heads that are not there are refused in a sentence."""

from pathlib import Path

import pytest

import bertkit
from bertkit.errors import CheckpointError, ConfigError


def test_a_missing_head_is_named(folders: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no mlm head \(heads: classify\)"):
        bertkit.pipeline("fill-mask", folders / "classifier")
    with pytest.raises(
        CheckpointError, match="no classify head \\(heads: mlm, nsp\\); fine-tune one"
    ):
        bertkit.pipeline("classify", folders / "pretrained")


def test_wrong_names_are_refused(folders: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'embed'"):
        bertkit.pipeline("embedd", folders / "pretrained")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="pooling: 'sum'"):
        bertkit.pipeline("embed", folders / "pretrained", pooling="sum")
    with pytest.raises(ConfigError, match="classify has none"):
        bertkit.pipeline("classify", folders / "classifier", pooling="cls")  # type: ignore[call-overload]
