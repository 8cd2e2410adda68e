"""LSTM checkpoints, run settings, and language models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.extensions.classic.test_seq2seq import DIRECTIONS, KINDS, batch_of, recurrent_of
from tests.factories import tiny_folder, tiny_model

import bertkit
from bertkit.batch import Batch, Packed
from bertkit.checkpoint.directory import save
from bertkit.errors import CheckpointError, ConfigError
from bertkit.extensions.classic.families.lstm import LSTM, LSTM_LM
from bertkit.models.model import Model, build
from bertkit.pipelines.model_info import info
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.pretrain_config import complete
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.tasks.labeled_text import LabelExample
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train

RUN: dict[str, Any] = {
    "family": "lstm", "objective": "translate", "model": {"hidden": 8, "layers": 1},
    "sampling": {"pairs": "none"}, "train": {"steps": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("vocabulary")
    text, out = directory / "text.txt", directory / "v"
    text.write_text("a b c d e f\n" * 20, encoding="utf-8")
    train_vocabulary([text], out=out, kind="unigram", use="translate", size=11)
    return Tokenizer.load(out)


def save_lstm(folder: Path, tokenizer: Tokenizer, **recurrent: str) -> tuple[Path, Model]:
    settings = {"vocab": tokenizer.vocab_size, "hidden": 8, "layers": 2, "max_positions": 40}
    settings |= {"pad_id": tokenizer.pad, "dropout": 0.3, "recurrent": recurrent}
    assert LSTM.decoder is not None
    torch.manual_seed(0)
    model = build(LSTM.config(settings), ("lm",), decoder=LSTM.decoder.config(settings)).eval()
    with torch.no_grad():
        model.heads["lm"].bias.normal_()
    save(folder, model, tokenizer, LSTM)
    return folder, model


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_saved_directory_loads_identical_model(
    tokenizer: Tokenizer, tmp_path: Path, kind: str, direction: str
) -> None:
    recurrent = recurrent_of(kind)
    folder, model = save_lstm(tmp_path / "m", tokenizer, **recurrent, direction=direction)
    loaded = bertkit.load(folder)
    assert loaded.model.config == model.config
    assert loaded.model.decoder is not None
    assert model.decoder is not None
    assert loaded.model.decoder.config == model.decoder.config
    original, loaded_weights = model.state_dict(), loaded.model.state_dict()
    assert original.keys() == loaded_weights.keys()
    assert all(torch.equal(loaded_weights[name], weight) for name, weight in original.items())
    assert not loaded.report.fresh
    assert not loaded.report.unused
    batch = batch_of([([1, 2], [3, 4, 5]), ([1, 2, 3], [4])])
    assert torch.equal(loaded.model(batch)["lm"], model(batch)["lm"])
    save(tmp_path / "again", loaded.model, loaded.tokenizer, loaded.family)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["attention"], config["direction"]) == (
        "lstm", recurrent["attention"], direction,
    )  # fmt: skip
    assert config["cell"] == recurrent.get("cell", "lstm")
    assert "hidden_act" not in config
    assert set(info(loaded)["parameters"]) == {"embedding", "lstm", "head lm", "all"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "dot"}, "config.json: recurrent.attention: invalid enum value 'dot'"),
        ({"direction": 3}, "config.json: recurrent.direction: expected `str`"),
        ({"attention": "none"}, "unknown decoder.combine.weight, decoder.score.key.weight"),
        ({"direction": "both"}, r"missing encoder.lstm.weight_ih_l0_reverse"),
        ({"num_layers": 3}, r"missing encoder.lstm.weight_ih_l2"),
        ({"hidden_size": 0}, "hidden: expected `int` >= 1"),
    ],
)
def test_load_rejects_invalid_config(
    tokenizer: Tokenizer, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder, _ = save_lstm(tmp_path / "m", tokenizer, attention="luong")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        bertkit.load(folder)


def test_load_reports_missing_weight(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder, _ = save_lstm(tmp_path / "m", tokenizer, attention="bahdanau")
    weights = load_file(folder / "model.safetensors")
    del weights["decoder.score.out.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing decoder\.score\.out\.weight"):
        bertkit.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 4}, r"model\.heads: no such setting"),
        ({"intermediate": 9}, r"model\.intermediate: no such setting"),
        ({"recurrent": {"attention": "dot"}}, r"model\.recurrent\.attention: invalid enum value"),
        ({"recurrent": {"attend": "luong"}}, r"model\.recurrent\.attend: no such setting"),
        ({"hidden": 7, "recurrent": {"direction": "both"}}, r"model: hidden must be even"),
    ],
)
def test_run_rejects_unsupported_lstm_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        complete({**RUN, "model": {**RUN["model"], **changes}}, vocab=20, pad=0)


def test_transformer_run_rejects_recurrent_settings() -> None:
    run = {**RUN, "family": "marian", "model": {"hidden": 8, "heads": 2, "recurrent": {}}}
    with pytest.raises(ConfigError, match=r"model\.recurrent: no such setting"):
        complete(run, vocab=20, pad=0)


@pytest.mark.parametrize("name", ["zero_init", "compile", "first_window"])
def test_run_rejects_settings_of_transformers(name: str) -> None:
    train = {"steps": 1, name: 8 if name == "first_window" else True}
    match = rf"train\.{name} requires (a|an encoder-only or decoder-only) Transformer"
    with pytest.raises(ConfigError, match=match):
        complete({**RUN, "train": train}, vocab=20, pad=0)


def test_language_model_matches_torch_lstm() -> None:
    """The logits match a plain LSTM over each text and are independent of later tokens."""
    model = tiny_model(20, "lm", family=LSTM_LM, layers=2, spread=0.3).eval()
    texts = [[5], [1, 2], [7, 3, 9, 4]]
    ids = torch.tensor([token for text in texts for token in text])
    batch = Batch(ids, torch.zeros_like(ids), Packed.of([len(text) for text in texts]))
    found = model(batch)["lm"].split([len(text) for text in texts])
    table, torch_lstm = model.encoder.embedding.tokens.weight, torch.nn.LSTM(16, 16, 2).eval()
    torch_lstm.load_state_dict(model.encoder.lstm.state_dict())  # type: ignore[union-attr]
    for text, logits in zip(texts, found, strict=True):
        states, _ = torch_lstm(4.0 * table[torch.tensor(text)])
        expected = states @ table.T + model.heads["lm"].bias
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    changed_ids = ids.clone()
    changed_ids[-1] = 11
    after = model(Batch(changed_ids, batch.types, batch.layout))["lm"]
    torch.testing.assert_close(after[:-1], torch.cat(found)[:-1])
    assert (after[-1] - found[-1][-1]).abs().max() > 1e-2  # Control.


@pytest.fixture(scope="module")
def lstm_lm(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    tokenizer = train(english[:5], kind="bpe", size=300, use="write")
    folder = tmp_path_factory.mktemp("lm") / "m"
    return tiny_folder(
        folder, tokenizer, "lm", family=LSTM_LM, layers=2, hidden=32, length=24, spread=0.05
    )


def test_saved_language_model_loads_identical_files(lstm_lm: Path, tmp_path: Path) -> None:
    loaded = bertkit.load(lstm_lm)
    save(tmp_path / "again", loaded.model, loaded.tokenizer, loaded.family)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (lstm_lm / name).read_bytes()
    config = json.loads((lstm_lm / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["architectures"]) == ("lstm-lm", ["LSTMForCausalLM"])
    assert not loaded.report.fresh
    assert not loaded.report.unused
    assert loaded.model.causal


ROWS = [
    LabelExample(f"the {('class', 'loop')[i % 2]} number {i}", None, ("thing", "doing")[i % 2])
    for i in range(24)
]


def test_language_model_initializes_classifier(lstm_lm: Path, tmp_path: Path) -> None:
    settings = Finetune(epochs=12, batch_size=4, learning_rate=2e-2, precision="fp32")
    out = tmp_path / "out"
    scores = finetune("classify", lstm_lm, train=ROWS, dev=ROWS[:8], out=out, settings=settings)
    assert scores["accuracy"] == 1.0
    loaded = bertkit.load(out)
    assert list(loaded.model.heads) == ["classify"]
    classify = bertkit.pipeline("classify", out)
    alone, *_ = classify(["the class number 6"])
    together = classify(["a", "the class number 6", "the loop of a loop"])
    assert alone.label == "thing"
    assert together[1].score == pytest.approx(alone.score, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": {"rank": 2}}, r"lora\.rank requires a Transformer, got RecurrentEncoder"),
        ({"frozen_layers": 3}, "frozen_layers must be at most 2, got 3"),
    ],
)
def test_finetune_rejects_unsupported_lstm_options(
    lstm_lm: Path, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    settings = msgspec.convert(changes, Finetune)
    with pytest.raises(ConfigError, match=message):
        finetune("classify", lstm_lm, train=ROWS, dev=ROWS, out=tmp_path / "o", settings=settings)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"recurrent": {"direction": "both"}}, "requires a causal model, .* a bidirectional model"),
        ({"recurrent": {"cell": "gru"}}, r"recurrent\.cell must be .* for lstm-lm, got 'gru'"),
        ({"attention": {"causal": False}}, r"model\.attention: no such setting"),
        ({"positions": {"kind": "learned"}}, r"model\.positions: no such setting"),
    ],
)
def test_run_rejects_unsupported_lstm_lm_settings(model: dict[str, Any], message: str) -> None:
    run = {**RUN, "family": "lstm-lm", "objective": "next"}
    with pytest.raises(ConfigError, match=message):
        complete({**run, "model": {"hidden": 8, "layers": 1, **model}}, vocab=20, pad=0)
