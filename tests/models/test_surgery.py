"""Changes to loaded models: more positions, larger vocabularies, and pruned layers and heads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.factories import tiny_config, tiny_folder, tiny_model
from torch import nn

from bertkit import cli
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.directory import load, resave, save
from bertkit.errors import ConfigError
from bertkit.extensions.generation.families.bart import BART
from bertkit.families import BERT, FAMILIES, MODERNBERT, ROBERTA, Family
from bertkit.models.model import build
from bertkit.models.surgery import interpolate, keep_layers, with_vocabulary, without_heads
from bertkit.recipes.extend import extend_positions
from bertkit.text.vocabulary_training import train


def write_model(family: Family, english: list[str], folder: Path) -> Path:
    kind: Any = "bpe" if "lm" in family.heads or "pad_id" in family.fixed else "wordpiece"
    tokenizer = train(english[:2], kind=kind, size=300)
    if family.decoder is None:
        head = "lm" if "lm" in family.heads else "mlm"
        size = {"length": 16, "intermediate": 64, "spread": 0.1}
        return tiny_folder(folder, tokenizer, head, family=family, **size)
    stacks = [tiny_config(tokenizer, family=f, length=16) for f in (family, family.decoder)]
    torch.manual_seed(0)
    save(folder, build(stacks[0], ["lm"], decoder=stacks[1]), tokenizer, family)
    return folder


LEARNED = [
    family for family in FAMILIES.values() if tiny_config(300, family=family).learned_positions
]
"""Families with learned positions."""


@pytest.mark.parametrize("method", ["tile", "interpolate"])
@pytest.mark.parametrize("family", LEARNED, ids=lambda f: f.name)
def test_extended_positions_match_transformers(
    family: Family, method: Literal["tile", "interpolate"], english: list[str], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    old = load(write_model(family, english, tmp_path / "old"))
    extend_positions(tmp_path / "old", length=40, out=tmp_path / "new", method=method)
    new = load(tmp_path / "new")
    assert (new.length, new.model.config.max_positions) == (40, 40)
    reference = transformers.AutoModel.from_pretrained(tmp_path / "new").eval()
    for length in (16, 40):
        ids = torch.arange(length) % 250 + 7
        batch = Batch(ids, torch.zeros_like(ids), Packed.of([length]))
        if family.decoder is not None:
            batch = replace(batch, source=batch, source_order=torch.tensor([0]))
        more = {} if family.decoder is None else {"decoder_input_ids": ids[None]}
        with torch.no_grad():
            states = new.model.states(batch)
            expected = reference(ids[None], **more).last_hidden_state[0]
            assert (states - expected).abs().max() <= 1e-5
            if length == 16:
                assert torch.equal(states, old.model.states(batch)) == (method == "tile")


@pytest.mark.parametrize("family", [BERT, ROBERTA], ids=lambda f: f.name)
def test_extended_positions_keep_states_of_short_texts(
    family: Family, english: list[str], tmp_path: Path
) -> None:
    old = load(write_model(family, english, tmp_path / "old"))
    found = extend_positions(tmp_path / "old", length=40, out=tmp_path / "new")
    assert found == {"positions": {"before": 16, "after": 40}}
    new = load(tmp_path / "new")
    assert (new.length, new.model.config.max_positions) == (40, 40)
    text = english[0][:8]
    with torch.no_grad():
        a, b = (
            m.model.encoder(Batch.of([m.tokenizer.encode(text, max_length=16)])) for m in (old, new)
        )
        assert torch.equal(a, b)
        long = new.tokenizer.encode(english[0], max_length=40, truncate="longest")
        assert new.model.encoder(Batch.of([long])).shape == (40, 16)
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    hf_model = transformers.AutoModel.from_pretrained(tmp_path / "new").eval()
    with torch.no_grad():
        states = hf_model(torch.from_numpy(long.ids)[None]).last_hidden_state[0]
        torch.testing.assert_close(new.model.encoder(Batch.of([long])), states, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", [BART, ROBERTA, BERT], ids=lambda f: f.name)
def test_larger_vocabulary_keeps_states(family: Family, english: list[str], tmp_path: Path) -> None:
    old = load(write_model(family, english, tmp_path / "old"))
    size = old.model.config.vocab + 2
    model = with_vocabulary(old.model, size, {size - 2: [8, 9], size - 1: [10]})
    resave(old, model, tmp_path / "new")
    new = load(tmp_path / "new").model
    ids = torch.arange(10) + 7
    batch = Batch(ids, torch.zeros_like(ids), Packed.of([10]))
    if family.decoder is not None:
        batch = replace(batch, source=batch, source_order=torch.tensor([0]))
    with torch.no_grad():
        assert torch.equal(new.states(batch), old.model.states(batch))
    table = (new.decoder or new.encoder).embedding.tokens.weight
    assert table.shape[0] == size
    torch.testing.assert_close(table[-2], table[8:10].mean(0))


def test_interpolation_keeps_ends_and_is_linear() -> None:
    rows = torch.arange(5.0)[:, None] * torch.tensor([1.0, -2.0])
    found = interpolate(rows, 9)
    torch.testing.assert_close(found[:, 0], torch.linspace(0, 4, 9))
    torch.testing.assert_close(found[:, 1], torch.linspace(0, -8, 9))


def test_extend_positions_rejects_invalid_requests(english: list[str], tmp_path: Path) -> None:
    folder = write_model(BERT, english, tmp_path / "bert")
    with pytest.raises(ConfigError, match="must be greater than 16"):
        extend_positions(folder, length=16, out=tmp_path / "out")
    modern = write_model(MODERNBERT, english, tmp_path / "modern")
    with pytest.raises(ConfigError, match="has no learned positions"):
        extend_positions(modern, length=32, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="already exists"):
        extend_positions(folder, length=32, out=folder)


def test_edit_positions_command_writes_model(
    english: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_model(BERT, english, tmp_path / "bert")
    words = ["edit", "positions", str(folder), "--length", "24", "--method", "interpolate"]
    assert cli.run([*words, "--out", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out)["positions"]["after"] == 24
    assert cli.run([*words, "--out", str(tmp_path / "out")]) == 2


def test_copies_are_independent_and_keep_tied_heads() -> None:
    model = tiny_model(20, "mlm", layers=3).eval()
    model.heads["own"] = nn.Linear(model.config.hidden, 3)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    few = keep_layers(model, [1, 3])
    assert (few.config.layers, model.config.layers) == (2, 3)
    assert not few.training
    few_state = few.state_dict()
    for name, weight in before.items():
        if name.startswith("encoder.blocks.1."):
            continue
        assert torch.equal(few_state[name.replace("blocks.2.", "blocks.1.")], weight)
    larger = with_vocabulary(model, 22, {20: [3, 4], 21: [5]})
    rows = larger.encoder.embedding.tokens.weight
    torch.testing.assert_close(rows[20], rows[[3, 4]].mean(0))
    for copied in (few, larger):
        for weight in copied.parameters():
            weight.data.fill_(7.0)
        assert copied.heads["mlm"].tied[0] is copied.encoder.embedding.tokens
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_pruning_rejects_grouped_heads() -> None:
    model = tiny_model(20, hidden=8, heads=4, attention={"kv_heads": 2})
    with pytest.raises(ConfigError, match="share keys and values"):
        without_heads(model, [(1, 1)])
