"""Pretraining of ELMo from raw text: resuming, output directory, and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertkit
from bertkit.config import override
from bertkit.errors import BertkitError, CheckpointError, ConfigError, DataError
from bertkit.extensions.classic.elmo_files import load_elmo, load_softmax
from bertkit.extensions.classic.fill_gap import FillGap
from bertkit.extensions.classic.pretrain_elmo import pretrain_elmo, read_elmo_run
from bertkit.recipes.info import info
from bertkit.recipes.prepare import prepare
from bertkit.recipes.run_file import read_run_file
from bertkit.recipes.vocabulary import train_vocabulary

pytest.importorskip("h5py", reason="pip install 'bertkit[classic]'")

CHAINS = {"one": "two", "two": "three", "three": "four", "four": "five", "five": "six"}
"""Each word has one successor and one predecessor."""

SETTINGS: dict[str, Any] = {
    "family": "elmo",
    "held_out": 0.2,
    "model": {
        "dropout": 0.1,
        "lstm": {"dim": 24, "projection_dim": 12, "n_layers": 2, "cell_clip": 3.0,
                 "proj_clip": 3.0, "use_skip_connections": True},
        "char_cnn": {"embedding": {"dim": 4}, "filters": [[1, 8], [3, 16]], "n_highway": 1,
                     "max_characters_per_token": 10, "activation": "relu"},
    },
    "softmax": {"words": 9},
    "train": {"steps": 60, "batch_size": 16, "learning_rate": 2e-2, "precision": "fp32",
              "evaluate_every": 60, "save_every": 20},
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("elmo")
    random = np.random.default_rng(0)
    words = list(CHAINS)
    rows = [
        {"text": " ".join([*words[random.integers(0, 4) :], "six"]).capitalize() + "."}
        for _ in range(60)
    ]
    (directory / "text.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    train_vocabulary([directory / "text.jsonl"], out=directory / "words", kind="words", size=100)
    prepare([directory / "text.jsonl"], tokenizer=directory / "words", out=directory / "corpus")
    return directory / "corpus"


@pytest.fixture(scope="module")
def run(corpus: Path) -> Path:
    scores = pretrain_elmo(SETTINGS, corpus=corpus, out=corpus.parent / "run")
    assert scores["forward_perplexity"] < 2.5
    assert scores["backward_perplexity"] < 2.5
    assert scores["forward_perplexity"] == pytest.approx(np.exp(scores["forward_loss"]))
    return corpus.parent / "run"


def test_fill_gap_predicts_from_both_directions(run: Path) -> None:
    (answer,) = bertkit.pipeline("fill-gap", run)(["One two ___ four five six."], top=3)
    assert (answer.before, answer.after) == (["One", "two"], ["four", "five", "six", "."])
    assert answer.forward[0].token == "three"
    assert answer.backward[0].token.lower() == "three"  # "Three" can start a sentence.
    (other,) = FillGap(run)(["One two ___ six."], top=3)
    assert other.forward == answer.forward  # The forward model ignores the right context.
    assert other.backward[0].token.lower() == "five"
    (edge,) = FillGap(run)(["___"], top=100)
    assert len(edge.forward) == 9
    assert sum(candidate.score for candidate in edge.forward) == pytest.approx(1, abs=1e-5)


def test_fill_gap_rejects_invalid_input(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="exactly one gap, ___, got 2"):
        FillGap(run)(["a ___ b ___ c"])
    with pytest.raises(ConfigError, match="top must be at least 1, got 0"):
        FillGap(run)(["a ___"], top=0)
    published = tmp_path / "published"
    published.mkdir()
    for name in ("options.json", "weights.hdf5"):
        (published / name).write_bytes((run / name).read_bytes())
    with pytest.raises(CheckpointError, match=r"softmax\.safetensors not found"):
        FillGap(published)
    for name in ("softmax.safetensors", "words.txt"):
        (published / name).write_bytes((run / name).read_bytes())
    (published / "words.txt").write_text("one\n")
    with pytest.raises(CheckpointError, match="weight is missing, or does not have"):
        FillGap(published)


def test_resumed_run_ends_with_same_weights(corpus: Path, run: Path) -> None:
    other = corpus.parent / "stopped"

    class Stop(Exception):
        pass

    from bertkit.recipes import pretrain_steps as learn

    original_save = learn.Run.save

    def save(self: Any, step: int, **rest: Any) -> None:
        original_save(self, step, **rest)
        if step == 40:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learn.Run, "save", save)
        with pytest.raises(Stop):
            pretrain_elmo(SETTINGS, corpus=corpus, out=other)
    assert (other / "weights.hdf5").read_bytes() != (run / "weights.hdf5").read_bytes()
    pretrain_elmo(SETTINGS, corpus=corpus, out=other, resume=True)
    for name in ("weights.hdf5", "softmax.safetensors", "words.txt", "options.json"):
        assert (other / name).read_bytes() == (run / name).read_bytes(), name
    changed = override(SETTINGS, [("train.learning_rate", "1e-3")])
    with pytest.raises(ConfigError, match="learning_rate"):
        pretrain_elmo(changed, corpus=corpus, out=other, resume=True)


def test_run_directory_is_an_elmo(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = bertkit.pipeline("words", run)
    assert words(["Two three."])[0].layers.shape == (3, 3, 24)
    output_words = load_softmax(run, load_elmo(run).config).words
    assert list(output_words[:3]) == ["<S>", "</S>", "<UNK>"]
    info(str(run))
    report = json.loads(capsys.readouterr().out)
    assert (report["family"], report["words told"], report["task"]) == ("elmo", 9, None)


def test_words_outside_softmax_are_not_predicted(corpus: Path, tmp_path: Path) -> None:
    small = override(SETTINGS, [("softmax.words", "4"), ("train.steps", "1")])
    pretrain_elmo(small, corpus=corpus, out=tmp_path / "run")
    (answer,) = FillGap(tmp_path / "run")(["One ___"], top=9)
    assert len(answer.forward) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("model.lstm.dims", "3")], r"model\.lstm\.dims: no such setting; .*dim"),
        ([("model.lstm.dim", "0")], r"model\.lstm\.dim"),
        ([("train.stepz", "3")], r"train\.stepz: no such setting"),
        ([("train.first_window", "8")], r"train\.first_window: not supported by ELMo; remove"),
        ([("train.z_loss", "0.1")], r"train\.z_loss: not supported by ELMo; remove this setting"),
        ([("train.zero_init", "true")], r"train\.zero_init: not supported by ELMo; remove"),
        ([("train.label_smoothing", "0.1")], r"train\.label_smoothing: not supported by ELMo"),
        ([("train.compile", "true")], r"train\.compile: not supported by ELMo; remove"),
        ([("softmax.words", "0")], r"softmax\.words"),
        ([("held_out", "-3")], r"held_out: expected `float` >= 0"),
        ([("held_out", "0.5")], r"held_out: expected `float` < 0\.5"),
    ],
)
def test_read_elmo_run_rejects_invalid_settings(
    changes: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_elmo_run(override(SETTINGS, changes))


def test_pretrain_elmo_rejects_subword_corpus(corpus: Path, tmp_path: Path) -> None:
    train_vocabulary([corpus.parent / "text.jsonl"], out=tmp_path / "pieces", size=80)
    prepare([corpus.parent / "text.jsonl"], tokenizer=tmp_path / "pieces", out=tmp_path / "corpus")
    with pytest.raises(BertkitError, match="contains subwords"):
        pretrain_elmo(SETTINGS, corpus=tmp_path / "corpus", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_elmo_tiny_run_file_is_valid() -> None:
    config = read_elmo_run(read_run_file("elmo-tiny"))
    assert (config.model.layers, config.model.hidden) == (2, 256)
