"""Reading and writing of weight files."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from bertkit.checkpoint.weights import heads_in, read_tensors, write_tensors
from bertkit.errors import CheckpointError
from bertkit.families import BERT


def test_read_tensors_returns_written_tensors(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5)}
    write_tensors(tmp_path / "model.safetensors", tensors)
    found = read_tensors(tmp_path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    # Weights have the permissions of any new file.
    (tmp_path / "other").touch()
    assert (tmp_path / "model.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_write_tensors_raises_oserror_for_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        write_tensors(tmp_path / "none" / "x", {"a": torch.ones(1)})
    assert caught.value.errno == errno.ENOENT


def test_read_tensors_rejects_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no model\.safetensors or pytorch_model\.bin;"):
        read_tensors(tmp_path)


def test_heads_are_detected_from_weight_names() -> None:
    def rows(*heads: str) -> dict[str, torch.Tensor]:
        names = (row for head in heads for row in BERT.heads[head].values())
        return {str(name): torch.ones(1) for name in names}

    def found(
        *heads: str, architecture: str = "", recorded: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        return heads_in(BERT, rows(*heads), architecture=architecture, recorded=recorded)

    assert found() == ()
    assert found("pooler") == ("pooler",)
    assert found("mlm", "nsp") == ("mlm", "nsp")
    assert found("mlm", "sop", recorded=("mlm", "sop")) == ("mlm", "sop")
    assert found("mlm", "pooler") == ("mlm", "pooler")
    assert found("classify") == ("classify",)
    assert found("choose", architecture="BertForMultipleChoice") == ("choose",)
    assert found("choose", recorded=("choose",)) == ("choose",)
    assert found("tag") == ("tag",)
    assert found("crf") == ("crf",)
    token = "BertForTokenClassification"
    # Old checkpoints have a pooler.
    assert found("classify", architecture=token) == ("pooler", "tag")
    assert found("crf", "pooler", architecture=token) == ("pooler", "crf")
    assert found("crf", architecture=token, recorded=("crf",)) == ("crf",)
    assert found("answer", "pooler") == ("pooler", "answer")
    assert found("classify", recorded=("mlm", "nsp")) == ("classify",)
    own = {"heads.own.out.weight": torch.ones(1)}
    assert heads_in(BERT, own, architecture="", recorded=()) == ("own",)
