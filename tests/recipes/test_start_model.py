"""`pretrain --start` continues the pretraining of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.factories import tiny_corpus, tiny_folder

from bertkit import cli
from bertkit.checkpoint.directory import load, save
from bertkit.commands.pretrain import pretrain
from bertkit.errors import BertkitError, ConfigError, DataError
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.extensions.generation.families.bart import BART
from bertkit.extensions.generation.families.gpt2 import GPT2
from bertkit.families import BERT
from bertkit.families.family import Family
from bertkit.models.model import build
from bertkit.nn.pooling import Pooling
from bertkit.recipes.prepare import prepare
from bertkit.text.prompts import Prompts
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train
from bertkit.training.journal import Journal

FAST = [
    ("train.steps", "20"),
    ("train.batch_size", "16"),
    ("train.learning_rate", "5e-3"),
    ("train.precision", "fp32"),
    ("train.evaluate_samples", "32"),
    ("sampling.length", "32"),
    ("sampling.held_out", "0.1"),
]


def continue_pretraining(
    start: Path, *, corpus: Path, out: Path, settings: list[tuple[str, str]], resume: bool = False
) -> dict[str, dict[str, float]]:
    """Continue the pretraining of a model, and return its held-out losses before and after."""
    words = [f"--{name}={value}" for name, value in settings]
    pretrain(None, *words, corpus=str(corpus), out=out, start=str(start), resume=resume)
    losses = [record["held_out"] for record in Journal(out).records() if "held_out" in record]
    return {"before": losses[0], "after": losses[-1]}


@pytest.fixture(scope="module")
def model_and_corpus(
    tmp_path_factory: pytest.TempPathFactory, english: list[str]
) -> tuple[Path, Path]:
    """Return a model and a corpus with its vocabulary."""
    directory = tmp_path_factory.mktemp("start")
    corpus = tiny_corpus(directory, english[:16], kind="wordpiece", size=300)
    tokenizer = Tokenizer.load(corpus / "tokenizer")
    return folder_of(directory / "model", tokenizer, "mlm", "nsp"), corpus


def folder_of(folder: Path, tokenizer: Tokenizer, *heads: str, family: Family = BERT) -> Path:
    shape = {"hidden": 32, "intermediate": 64, "length": 64}
    return tiny_folder(folder, tokenizer, *heads, family=family, **shape)


def test_pooling_and_length_are_kept(model_and_corpus: tuple[Path, Path], tmp_path: Path) -> None:
    folder, corpus = model_and_corpus
    start, pooling = tmp_path / "start", Pooling("max", prompts=Prompts({"query": "find: "}))
    opened = load(folder)
    save(start, opened.model, opened.tokenizer, BERT, pooling=pooling, length=40)
    continue_pretraining(
        start, corpus=corpus, out=tmp_path / "run", settings=[*FAST, ("train.steps", "2")]
    )
    found = load(tmp_path / "run")
    assert (found.pooling, found.length) == (pooling, 40)
    continue_pretraining(
        folder, corpus=corpus, out=tmp_path / "bare", settings=[*FAST, ("train.steps", "2")]
    )
    assert load(tmp_path / "bare").pooling is None


def test_loss_falls_and_start_model_is_unchanged(
    model_and_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, corpus = model_and_corpus
    before = (folder / "model.safetensors").read_bytes()
    found = continue_pretraining(folder, corpus=corpus, out=tmp_path / "run", settings=FAST)
    assert set(found["before"]) == {"mlm", "nsp"}  # The NSP head of the model determines the pairs.
    assert found["after"]["mlm"] < found["before"]["mlm"]
    assert (folder / "model.safetensors").read_bytes() == before
    assert load(tmp_path / "run").model.config == load(folder).model.config


def test_run_starts_from_weights_of_model(
    model_and_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, corpus = model_and_corpus
    still = [*FAST, ("train.steps", "1"), ("train.learning_rate", "1e-12")]
    continue_pretraining(folder, corpus=corpus, out=tmp_path / "run", settings=still)
    run_weights, start_weights = (load(f).model.state_dict() for f in (tmp_path / "run", folder))
    for name, weight in start_weights.items():
        torch.testing.assert_close(run_weights[name], weight, atol=1e-6, rtol=0)


def test_missing_head_is_newly_initialized(
    model_and_corpus: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, corpus = model_and_corpus
    tokenizer = load(folder).tokenizer
    bare = tmp_path / "bare"
    folder_of(bare, tokenizer)
    found = continue_pretraining(bare, corpus=corpus, out=tmp_path / "run", settings=FAST)
    assert set(found["after"]) == {"mlm"}
    assert "does not contain the head mlm; it is newly initialized" in capsys.readouterr().err


@pytest.mark.parametrize("family", [GPT2, LSTM_LM], ids=["gpt2", "lstm-lm"])
def test_generative_model_continues_and_resumes(
    family: Family, model_and_corpus: tuple[Path, Path], english: list[str], tmp_path: Path
) -> None:
    tokenizer = train(english[:16], kind="bpe", size=400, use="write")
    files = sorted(model_and_corpus[1].parent.glob("*.txt"))
    corpus = prepare(files, tokenizer=tokenizer, out=tmp_path / "corpus", processes=1).folder
    start = folder_of(tmp_path / "start", tokenizer, "lm", family=family)
    (start / "generation_config.json").write_text('{"num_beams": 3, "suppress_tokens": [7]}')
    found = continue_pretraining(start, corpus=corpus, out=tmp_path / "run", settings=FAST)
    assert load(tmp_path / "run").generation == load(start).generation
    assert set(found["before"]) == {"lm"}
    assert found["after"]["lm"] < found["before"]["lm"]
    assert load(tmp_path / "run").model.config == load(start).model.config
    again = continue_pretraining(
        start, corpus=corpus, out=tmp_path / "run", settings=FAST, resume=True
    )
    assert again == found


def test_resume_rejects_another_start_model(
    model_and_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, corpus = model_and_corpus
    steps = [*FAST, ("train.steps", "2")]
    out = tmp_path / "run"
    continue_pretraining(folder, corpus=corpus, out=out, settings=steps)
    loaded, other = load(folder), tmp_path / "other"
    with torch.no_grad():
        next(loaded.model.parameters()).add_(0.1)
    loaded.save(other)
    with pytest.raises(ConfigError, match=r"weights\.start"):
        continue_pretraining(other, corpus=corpus, out=out, settings=steps, resume=True)
    moved = folder.rename(tmp_path / "moved")  # The weights are unchanged in another directory.
    continue_pretraining(moved, corpus=corpus, out=out, settings=steps, resume=True)
    moved.rename(folder)


def test_start_rejects_encoder_decoder_models(
    model_and_corpus: tuple[Path, Path], english: list[str], tmp_path: Path
) -> None:
    assert BART.decoder is not None
    tokenizer = train(english[:16], kind="bpe", size=400, use="encode")
    shape = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 32}
    encoder, decoder = (kind.config({"vocab": 400, **shape}) for kind in (BART, BART.decoder))
    save(tmp_path / "both", build(encoder, ("lm",), decoder=decoder), tokenizer, BART)
    with pytest.raises(ConfigError, match="encoder-decoder models is not supported"):
        continue_pretraining(
            tmp_path / "both", corpus=model_and_corpus[1], out=tmp_path / "run", settings=FAST
        )
    assert not (tmp_path / "run").exists()


def test_start_rejects_a_corpus_of_another_vocabulary(
    model_and_corpus: tuple[Path, Path], tmp_path: Path, english: list[str]
) -> None:
    _, corpus = model_and_corpus
    other = train(english[:5], kind="wordpiece", size=280)
    folder_of(tmp_path / "other", other, "mlm")
    with pytest.raises(DataError, match=r"its vocabulary differs .* run bertkit prepare"):
        continue_pretraining(tmp_path / "other", corpus=corpus, out=tmp_path / "run", settings=FAST)
    assert not (tmp_path / "run").exists()


def test_start_rejects_changed_model_settings(
    model_and_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, corpus = model_and_corpus
    wider = [*FAST, ("model.hidden", "64")]
    with pytest.raises(BertkitError, match=r"model\.hidden"):
        continue_pretraining(folder, corpus=corpus, out=tmp_path / "run", settings=wider)
    for seed in ("abc", "9" * 23):
        with pytest.raises(BertkitError, match=r"train\.seed"):
            continue_pretraining(
                folder, corpus=corpus, out=tmp_path / "run", settings=[("train.seed", seed)]
            )
    assert not (tmp_path / "run").exists()


def test_resume_finds_the_model_in_the_record(
    model_and_corpus: tuple[Path, Path], tmp_path: Path
) -> None:
    """The model card names the model, which is not among the settings of the run."""
    start, corpus = model_and_corpus
    run = tmp_path / "run"
    words = [f"--{name}={value}" for name, value in FAST]
    args = ["pretrain", "--start", str(start), "--corpus", str(corpus), "--out", str(run), *words]
    assert cli.run(args) == 0
    card = (run / "README.md").read_text("utf-8")
    assert "starting from `model`" in card
    (run / "README.md").unlink()
    assert cli.run(["pretrain", "--out", str(run), "--resume"]) == 0
    assert (run / "README.md").read_text("utf-8") == card


def test_start_cannot_be_combined_with_a_run_file(
    model_and_corpus: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, corpus = model_and_corpus
    words = ["--start", str(folder), "--corpus", str(corpus), "--out", str(tmp_path / "run")]
    assert cli.run(["pretrain", "bert-tiny", *words]) == 2
    assert "bert-tiny: a run file cannot be combined with --start" in capsys.readouterr().err
    # A run file would start from new weights.
    assert cli.run(["pretrain", *words, "--print-config"]) == 2
    assert "--print-config cannot be combined with --start" in capsys.readouterr().err
