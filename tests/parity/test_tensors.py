"""Each tensor of a model directory is applied, reported as unused, or rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.parity.published import CASES, NAMES, Published
from tests.parity.test_config_keys import FAST

import bertkit
from bertkit.checkpoint.weights import read_tensors, write_tensors
from bertkit.errors import BertkitError
from bertkit.text.vocabulary_training import train

FILE = "model.safetensors"


def tokenizer_of(name: str, english: list[str], folder: Path) -> bertkit.Tokenizer:
    if "lm" in CASES[NAMES.index(name)][0].heads:
        return train(english[:20], kind="bpe", size=300)
    words = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(145))]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return bertkit.Tokenizer.load(folder / "vocab.txt")


@pytest.fixture(scope="module", params=FAST)
def published(
    request: pytest.FixtureRequest, english: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Published:
    folder = tmp_path_factory.mktemp("published")
    tokenizer = tokenizer_of(request.param, english, folder)
    (folder / "model").mkdir()
    return Published(*CASES[NAMES.index(request.param)], tokenizer, folder / "model")


def test_changed_tensor_changes_output(published: Published) -> None:
    """Every tensor that transformers uses has an effect in bertkit, or bertkit rejects it."""
    stored = read_tensors(published.folder)
    before, ignored = published.load(published.settings), []
    for name, tensor in stored.items():
        changed = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
        write_tensors(published.folder / FILE, {**stored, name: changed})
        try:
            after = published.load(published.settings)
        except BertkitError:
            continue
        if all(torch.equal(before[head], after[head]) for head in before):
            ignored.append(name)
    write_tensors(published.folder / FILE, stored)
    assert published.load(published.settings).keys() == before.keys()
    assert [name for name in ignored if published.uses(name, stored)] == []


def test_missing_tensor_is_rejected_or_derived(published: Published) -> None:
    stored = read_tensors(published.folder)
    loaded = []
    for name in stored:
        write_tensors(published.folder / FILE, {n: t for n, t in stored.items() if n != name})
        try:
            heads = set(bertkit.load(published.folder).model.heads)
        except BertkitError:
            continue
        if heads == published.heads:
            loaded.append(name)
    write_tensors(published.folder / FILE, stored)
    assert [name for name in loaded if name not in published.family.derived] == []


def test_additional_tensor_is_rejected_or_reported(published: Published) -> None:
    stored = read_tensors(published.folder)
    prefix = published.family.prefix
    for name in (f"{prefix}other.weight", "other.bias", f"{next(iter(stored))}.scale"):
        write_tensors(published.folder / FILE, {**stored, name: torch.ones(3)})
        with pytest.raises(BertkitError, match="unknown"):
            bertkit.load(published.folder)
    write_tensors(published.folder / FILE, stored)
    bertkit.load(published.folder)  # the control
