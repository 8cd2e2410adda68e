"""The device option of commands that run a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import tiny_folder

import bertkit
from bertkit import cli
from bertkit.checkpoint.directory import load
from bertkit.checkpoint.formats import LoadSettings, open_format
from bertkit.commands.table import COMMANDS
from bertkit.errors import DeviceError
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.extensions.generation.perplexity import evaluate_text
from bertkit.extensions.search.searcher import Searcher
from bertkit.pipelines import base
from bertkit.pipelines.base import inference_device, load_on
from bertkit.pipelines.frozen_words import FrozenEncoder
from bertkit.text.vocabulary_training import train

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

NO_DEVICE = {
    # These commands read text, files or weights, and run no model.
    *("tokenizer train", "tokenizer extend", "clean", "prepare", "prepare pairs"),
    *("edit average", "edit positions", "runs", "push", "info", "export"),
    # Experiments have the setting settings.device.
    "experiment",
    # Pretraining has the setting train.device.
    *("pretrain", "demo"),
    # These commands run on the CPU by design.
    *("vectors", "export int8", "export tune"),
}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NO_DEVICE])
def test_command_that_runs_a_model_has_device(name: str, capsys: Captured) -> None:
    assert cli.run([*name.split(), "--help"]) == 0
    assert "--device" in capsys.readouterr().out


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model: Path, english: list[str]) -> Path:
    root = tmp_path_factory.mktemp("device")
    tokenizer = train(english[:5], kind="bpe", size=300)
    tiny_folder(root / "gpt", tokenizer, "lm", family=GPT2, length=64)
    (root / "model").symlink_to(model)
    (root / "labels.csv").write_text("text,label\na day,x\na night,y\nthe sea,x\nthe sun,y\n")
    (root / "choices.jsonl").write_text(
        json.dumps({"text": "a", "choices": ["day", "night"], "label": 0}) + "\n"
    )
    (root / "words.txt").write_text("day\tnight\t3\nsea\tsun\t1\nman\tsea\t2\n")
    (root / "tags.txt").write_text("a O\nday B-X\n\nthe O\nsea B-X\n")
    (root / "text.txt").write_text("a day\nthe day by the sea\n")
    (root / "docs.jsonl").write_text('{"id": "1", "text": "a day"}\n{"id": "2", "text": "sea"}\n')
    (root / "queries.jsonl").write_text('{"id": "q", "text": "day"}\n')
    (root / "judgments.tsv").write_text("q\t1\t1\n")
    words = ["index", str(root / "docs.jsonl"), "--model", str(model), "--store"]
    assert cli.run([*words, str(root / "store")]) == 0
    return root


LINES = {
    "predict": "{0}/model text",
    "evaluate": "{0}/model {0}/labels.csv",
    "evaluate likelihood": "{0}/gpt {0}/choices.jsonl",
    "evaluate masked": "{0}/model {0}/text.txt",
    "evaluate prompts": "{0}/gpt --train {0}/labels.csv --dev {0}/labels.csv",
    "evaluate retrieval": "{0}/store --queries {0}/queries.jsonl --judgments {0}/judgments.tsv",
    "evaluate text": "{0}/gpt {0}/text.txt",
    "evaluate translation": "{0}/gpt {0}/text.txt {0}/text.txt",
    "evaluate words": "{0}/model {0}/words.txt",
    "generate": "{0}/gpt text",
    "chat": "{0}/gpt",
    "embed": "{0}/model text",
    "index": "{0}/docs.jsonl --model {0}/model --store {0}/other",
    "search": "{0}/store day",
    "prepare negatives": "{0}/store --queries {0}/queries.jsonl --judgments {0}/judgments.tsv "
    "--out {0}/m.jsonl",
    "view explain": "{0}/model day --out {0}/page.html",
    "view align": "{0}/gpt day",
    "view contexts": "day {0}/text.txt --model {0}/model --out {0}/contexts",
    "augment": "{0}/labels.csv --model {0}/model --out {0}/more.jsonl",
    "edit prune": "{0}/model --dev {0}/labels.csv --head 1.1 --out {0}/pruned",
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("name", LINES)
def test_missing_device_is_rejected(name: str, files: Path, capsys: Captured) -> None:
    before = sorted(files.iterdir())
    words = [*name.split(), *LINES[name].format(files).split()]
    assert cli.run([*words, "--device", "cuda:0"]) == 2
    (message,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert message.startswith("bertkit: device: 'cuda:0' cannot be used")
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize("name", ["predict", "search", "evaluate text", "evaluate words"])
def test_commands_accept_the_cpu(name: str, files: Path, capsys: Captured) -> None:
    lines = LINES | {"predict": "{0}/model [MASK] --pipeline fill-mask"}
    words = [*name.split(), *lines[name].format(files).split()]
    assert cli.run([*words, "--device", "cpu"]) == 0
    assert capsys.readouterr().out


# ---- The device of the weights


@pytest.fixture
def any_device(monkeypatch: Patch) -> str:
    """The device "meta", which every machine has and `resolve_device` rejects."""
    monkeypatch.setattr(base, "resolve_device", lambda name: "cpu" if name == "auto" else name)
    return "meta"


@pytest.mark.parametrize(
    ("task", "folder"),
    [("embed", "model"), ("fill-mask", "model"), ("next-sentence", "model"),
     ("token-embeddings", "model"), ("generate", "gpt")],
)  # fmt: skip
def test_pipeline_moves_the_weights(task: str, folder: str, files: Path, any_device: str) -> None:
    loaded = load(files / folder)
    for model in (files / folder, loaded):
        ready: Any = bertkit.pipeline(task, model, device=any_device)
        assert ready.engine.device.type == any_device
        assert {w.device.type for w in ready.engine.model.parameters()} == {any_device}
        assert bertkit.pipeline(task, model).engine.device.type == "cpu"
    assert {w.device.type for w in loaded.model.parameters()} == {"cpu"}


def test_searcher_moves_the_weights(files: Path, any_device: str) -> None:
    searcher = Searcher(str(files / "store"), device=any_device)
    assert searcher.embed.engine.device.type == any_device  # type: ignore[union-attr]


def test_frozen_encoder_moves_the_weights(files: Path, any_device: str) -> None:
    frozen = open_format(files / "model").load_words(LoadSettings(device=any_device))
    assert isinstance(frozen, FrozenEncoder)
    assert frozen.engine.device.type == any_device


def test_evaluate_text_runs_on_the_device(files: Path, any_device: str) -> None:
    # A meta tensor has no values, so the first read of a loss fails.
    with pytest.raises(RuntimeError, match="meta"):
        evaluate_text(files / "gpt", [files / "text.txt"], device=any_device)
    loaded = load(files / "gpt")
    expected = evaluate_text(files / "gpt", [files / "text.txt"], device="cpu")
    assert evaluate_text(loaded, [files / "text.txt"]) == expected


def test_load_on_keeps_loaded_model(files: Path) -> None:
    loaded = load(files / "model")
    assert load_on(loaded, "auto") is loaded
    assert load_on(loaded, "cpu") is loaded


def test_auto_keeps_the_gpu_of_a_loaded_model(files: Path) -> None:
    loaded = load(files / "model")
    loaded.model.to("meta")
    assert inference_device("auto", model=loaded) == "meta"
    assert inference_device("auto", "int8", loaded) == "cpu"


def test_elmo_rejects_another_device(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="not supported by an ELMo; use cpu"):
        bertkit.pipeline("words", tmp_path, device="cuda")
