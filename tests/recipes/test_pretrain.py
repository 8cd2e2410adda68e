"""Pretraining runs: results, saved files, resuming, distillation, and other libraries."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from tests.factories import tiny_corpus

import bertkit.recipes.pretrain as recipe
from bertkit.batch import Batch
from bertkit.checkpoint.directory import load
from bertkit.config import override
from bertkit.data import corpus as corpora
from bertkit.data.corpus import Corpus
from bertkit.data.masking import Masking
from bertkit.data.samples import Samples, Sampling
from bertkit.engine import packed_linear as linear
from bertkit.errors import BertkitError, ConfigError, DataError
from bertkit.extensions.cleaning.clean import clean
from bertkit.extensions.generation.decoding import Decoding
from bertkit.pipelines import pipeline
from bertkit.recipes.distill import distill
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.prepare import prepare
from bertkit.recipes.pretrain import pretrain
from bertkit.recipes.pretrain_steps import warn
from bertkit.recipes.run_file import Train
from bertkit.recipes.vocabulary import train_vocabulary
from bertkit.tasks.labeled_text import LabelExample
from bertkit.training import trackers as tracker
from bertkit.training.journal import Journal
from bertkit.training.loop import evaluate
from bertkit.training.run import Run
from bertkit.training.trackers import Begin

SETTINGS: dict[str, Any] = {
    "model": {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 64, "max_positions": 64},
    "sampling": {"length": 32, "held_out": 0.1},
    "train": {"steps": 40, "batch_size": 16, "learning_rate": 5e-3, "warmup_steps": 4,
              "precision": "fp32", "evaluate_every": 20, "evaluate_samples": 64, "save_every": 10,
              "keep": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("pretrain")
    return tiny_corpus(folder, english[:16], kind="wordpiece", size=300)


def test_all_steps_accept_strings_as_paths(
    tmp_path: Path, english: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps accept strings as paths, single paths, and run file names."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    for i, text in enumerate(english[:4]):
        Path("texts", f"{i}.txt").write_text(text, encoding="utf-8")
    clean("texts", out="cleaned", removed="removed", duplicates="keep", processes=1)
    train_vocabulary("cleaned", out="vocab", size=200)
    prepare("cleaned", tokenizer="vocab", out="corpus", processes=1)
    with pytest.raises(ConfigError, match=r"^corpus/new is within the input corpus"):
        prepare("corpus", tokenizer="vocab", out="corpus/new")
    sizes = "\n".join(f"{name} = {size}" for name, size in SETTINGS["model"].items())
    Path("run.toml").write_text(
        f"[model]\n{sizes}\n[sampling]\nlength = 32\n[train]\nsteps = 1\nwarmup_steps = 0\n",
        encoding="utf-8",
    )
    pretrain("run.toml", corpus="corpus", out="run")
    assert load("run").model.config.hidden == SETTINGS["model"]["hidden"]
    with pytest.raises(ConfigError, match=r"^no-such\.toml: no such file"):
        pretrain("no-such.toml", corpus="corpus", out="other")
    with pytest.raises(DataError, match=r"^nowhere"):  # The run file is found by its name.
        pretrain("bert-base", corpus="nowhere", out="other")
    assert not Path("other").exists()


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "run"
    return out, pretrain(SETTINGS, corpus=corpus, out=out)


def test_pretrain_learns_and_evaluates_held_out_text(run: tuple[Path, dict[str, float]]) -> None:
    out, scores = run
    held_out = [r for r in Journal(out).records() if "held_out" in r]
    assert [r["step"] for r in held_out] == [0, 20, 40]
    losses = [r["held_out"]["mlm"] for r in held_out]
    assert losses[0] > losses[1] > losses[2]
    assert set(scores) == {"mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"}
    assert scores["mlm_loss"] == losses[2]


def test_run_directory_contains_all_files(run: tuple[Path, dict[str, float]]) -> None:
    out, _ = run
    assert {p.name for p in out.iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        *("vocab.txt", "run.json", "run.toml", "journal.jsonl", "loss.svg", "checkpoints"),
        "README.md",
    }
    checkpoints = sorted(p.name for p in (out / "checkpoints").iterdir())
    assert checkpoints == ["step-00000030", "step-00000040"]
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record["config"]["train"]["max_grad_norm"] == 1.0  # Defaults are included.
    last = out / "checkpoints" / checkpoints[-1] / "model.safetensors"
    assert last.read_bytes() == (out / "model.safetensors").read_bytes()


def test_model_card_code_of_finished_run_works(run: tuple[Path, dict[str, float]]) -> None:
    out, scores = run
    card = ModelCard.load(out / "README.md")
    assert (card.data.pipeline_tag, card.data.library_name) == ("fill-mask", "transformers")
    assert f"| mlm_loss | {scores['mlm_loss']:.4f} |" in card.text
    assert "- train.steps = 40" in card.text
    assert str(out.parent) not in card.text
    code = card.text.partition("```python\n")[2].partition("```")[0]
    with contextlib.chdir(out.parent), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    assert "token_str" in printed.getvalue()


def test_resume_of_finished_run_changes_nothing(
    run: tuple[Path, dict[str, float]], corpus: Path
) -> None:
    out, scores = run
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.suffix != ".svg"}
    assert pretrain(SETTINGS, corpus=corpus, out=out, resume=True) == scores
    assert {p: p.read_bytes() for p in before} == before


def test_resume_skips_damaged_journal_lines(
    run: tuple[Path, dict[str, float]],
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    shutil.copytree(run[0], out)
    whole = (out / "journal.jsonl").read_bytes()
    for line in (b"\xff", b"[1]", b"3", b'{"step": "1"}', b'{"loss": 1.0}', b'{"step": NaN}'):
        (out / "journal.jsonl").write_bytes(line + b"\n" + whole)
        assert pretrain(SETTINGS, corpus=corpus, out=out, resume=True) == run[1]
        assert "journal.jsonl: skipped 1 damaged line" in capsys.readouterr().err
        assert (out / "journal.jsonl").read_bytes() == whole


def test_loss_matches_hugging_face(run: tuple[Path, dict[str, float]], corpus: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    from bertkit.data.collate import collate
    from bertkit.objectives.pretrain import pretrain as objective

    out, _ = run
    opened = Corpus.open(corpus)
    samples = Samples(opened, opened.tokenizer(), Sampling(length=32), Masking(), seed=5)
    (batch,) = collate(samples.batch(0, 8), head="nsp", max_batch_tokens=10**6)
    losses, _ = evaluate(load(out).model, objective, [batch])
    hf_model = transformers.BertForPreTraining.from_pretrained(out).eval()
    bertkit_loss, loss = sum(losses.values()), hf_loss(hf_model, batch)
    assert bertkit_loss == pytest.approx(loss, abs=1e-5)
    hf_model.bert.embeddings.LayerNorm.eps = 1e-2  # Control: a wrong setting changes the loss.
    assert bertkit_loss != pytest.approx(hf_loss(hf_model, batch), abs=1e-5)


def hf_loss(hf_model: Any, batch: Batch) -> float:
    layout = batch.layout
    shape = len(layout.lengths), max(layout.lengths)
    indices = layout.sequence_ids, layout.positions

    def padded(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.long).index_put(indices, values)

    assert batch.token_indices is not None
    at = layout.sequence_ids[batch.token_indices], layout.positions[batch.token_indices]
    labels = torch.full(shape, -100).index_put(at, batch.targets["mlm"])
    with torch.no_grad():
        answer = hf_model(
            input_ids=padded(batch.ids),
            token_type_ids=padded(batch.types),
            attention_mask=padded(torch.ones_like(batch.ids)),
            labels=labels,
            next_sentence_label=batch.targets["nsp"],
        )
    return float(answer.loss)


@pytest.mark.parametrize("pairs", ["sop", "none"])
def test_sampling_pairs_determine_the_heads(pairs: str, corpus: Path, tmp_path: Path) -> None:
    settings = override(SETTINGS, [("sampling.pairs", pairs), ("train.steps", "2")])
    scores = pretrain(settings, corpus=corpus, out=tmp_path / "run")
    heads = {"mlm"} if pairs == "none" else {"mlm", pairs}
    assert {name.split("_")[0] for name in scores} == heads
    assert set(load(tmp_path / "run").model.heads) == heads


@pytest.fixture(scope="module")
def running_text(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    """Return a corpus of the same documents for generative models."""
    folder = tmp_path_factory.mktemp("next")
    return tiny_corpus(folder, english[:16], kind="bpe", size=400, use="write")


NEXT = override(
    {**SETTINGS, "family": "gpt2", "objective": "next"},
    [("sampling.pairs", "none"), ("model.max_positions", "48")],
)


RECURRENT = {**NEXT, "family": "lstm-lm", "model": {"layers": 2, "hidden": 32, "max_positions": 48}}


@pytest.mark.parametrize("settings", [NEXT, RECURRENT], ids=["gpt2", "lstm-lm"])
def test_causal_model_learns_and_generates(
    running_text: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    scores = pretrain(settings, corpus=running_text, out=tmp_path / "run")
    assert set(scores) == {"lm_loss", "lm_accuracy"}
    held_out = [r for r in Journal(tmp_path / "run").records() if "held_out" in r]
    losses = [r["held_out"]["lm"] for r in held_out]
    assert losses[0] > losses[1] > losses[2] > 0
    assert all(len(r["written"]) > 10 for r in held_out)
    write = pipeline("generate", tmp_path / "run")
    (text,) = write([""], Decoding(max_tokens=20))[0]
    assert text.tokens == 20
    again = pretrain(settings, corpus=running_text, out=tmp_path / "run", resume=True)
    assert again == scores


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("objective", "masked")], "requires a bidirectional model, .* a causal model; use next"),
        (
            [("sampling.pairs", "nsp"), ("model.token_types", "2")],
            "not supported with objective = .next.",
        ),
        ([("sampling.length", "64")], "must be at most model.max_positions"),
        ([("teacher.model", "x")], "teacher is not supported with objective = .next."),
    ],
)
def test_causal_pretraining_rejects_incompatible_settings(
    running_text: Path, changes: list[tuple[str, str]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BertkitError, match=message):
        pretrain(override(NEXT, changes), corpus=running_text, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_causal_pretraining_requires_an_eos_token(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(BertkitError, match="has no eos token"):
        pretrain(NEXT, corpus=corpus, out=tmp_path / "run")


def test_first_length_limits_samples_of_first_steps(corpus: Path, tmp_path: Path) -> None:
    """BERT used 128 tokens for 90% of its steps and then 512 tokens."""
    more = [("sampling.first_length", "16"), ("sampling.first_share", "0.5"), ("train.steps", "4")]
    settings = override(
        SETTINGS, [*more, ("sampling.short_seq_probability", "0.0"), ("train.log_every", "1")]
    )
    pretrain(settings, corpus=corpus, out=tmp_path / "run")
    tokens = [r["tokens"] for r in Journal(tmp_path / "run").records() if "tokens" in r]
    assert max(tokens[:2]) <= 16 * 16 < min(tokens[2:])


def test_resume_accepts_only_changes_of_free_settings(corpus: Path, tmp_path: Path) -> None:
    settings = override(SETTINGS, [("train.steps", "4"), ("train.save_every", "2")])
    out = tmp_path / "run"
    pretrain(settings, corpus=corpus, out=out)
    pretrain(override(settings, [("train.keep", "1")]), corpus=corpus, out=out, resume=True)
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record["config"]["train"]["keep"] == 1
    pretrain(settings, corpus=corpus, out=out, resume=True)
    with pytest.raises(ConfigError, match=r"train\.seed \(was 0\): changed"):
        pretrain(override(settings, [("train.seed", "1")]), corpus=corpus, out=out, resume=True)
    betas = override(settings, [("train.betas", "[0.9, 0.98]")])
    with pytest.raises(ConfigError, match=r"train\.betas \(was \[0\.9, 0\.999\]\): changed"):
        pretrain(betas, corpus=corpus, out=out, resume=True)
    distilled = {**settings, "teacher": {"model": str(out)}}
    distilled["sampling"] = {**settings["sampling"], "pairs": "none"}
    with pytest.raises(ConfigError, match=r"teacher \(was None\)"):
        pretrain(distilled, corpus=corpus, out=out, resume=True)


class RecordingTracker:
    """A tracker that records its calls."""

    steps: ClassVar[list[tuple[int, dict[str, float]]]] = []

    def __init__(self, begin: Begin) -> None:
        self.id = "one"

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self.steps.append((step, dict(numbers)))

    def close(self, *, finished: bool) -> None:
        assert finished


def test_tracker_receives_all_journal_records(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "TRACKERS", {"tensorboard": RecordingTracker})
    monkeypatch.setattr(RecordingTracker, "steps", [])
    monkeypatch.setattr(recipe, "check_tracker", lambda track, setting: None)
    more = [("train.steps", "4"), ("train.log_every", "1"), ("train.track", "tensorboard")]
    settings, out = override(SETTINGS, more), tmp_path / "run"
    pretrain(settings, corpus=corpus, out=out)
    records = [r for r in Journal(out).records() if "tracked" not in r]
    assert (
        [step for step, _ in RecordingTracker.steps]
        == [r["step"] for r in records]
        == [0, 1, 2, 3, 4, 4]
    )
    assert RecordingTracker.steps[1][1]["loss"] == records[1]["loss"]
    assert RecordingTracker.steps[-1][1]["held_out/mlm"] == records[-1]["held_out"]["mlm"]


def test_missing_tracker_package_is_rejected_before_training(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_packages = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(tracker, "importlib", no_packages)
    settings = override(SETTINGS, [("train.track", "mlflow")])
    with pytest.raises(ConfigError, match=r'train\.track = "mlflow" is not installed'):
        pretrain(settings, corpus=corpus, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_mfu_is_reported_if_peak_is_known(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [("train.steps", "2"), ("train.log_every", "1"), ("train.parts", "2")]
    for peak in ("1e9", "2e9"):
        settings = override(SETTINGS, [*more, ("train.peak_flops", peak)])
        pretrain(settings, corpus=corpus, out=tmp_path / peak)
        lines = [r for r in Journal(tmp_path / peak).records() if "loss" in r]
        # The layers have 4 · 32² + 2 · 32 · 64 weights; other weights are added.
        least = 6 * 8192 * lines[0]["tokens"]
        seconds = lines[0]["tokens"] / lines[0]["tokens_per_second"] + lines[0]["data_wait"]
        needed = lines[0]["mfu"] * float(peak) * seconds
        assert least < needed < 4 * least
    assert re.search(r"tokens/s\s+mfu \d+\.\d%", capsys.readouterr().err)
    pretrain(override(SETTINGS, more), corpus=corpus, out=tmp_path / "cpu")
    # The peak of a CPU is unknown.
    assert all("mfu" not in r for r in Journal(tmp_path / "cpu").records())


def test_resume_rejects_runs_with_other_samples(corpus: Path, tmp_path: Path) -> None:
    """A run of an older version may use other samples, so it cannot be resumed."""
    settings, out = override(SETTINGS, [("train.steps", "2")]), tmp_path / "run"
    pretrain(settings, corpus=corpus, out=out)
    pretrain(settings, corpus=corpus, out=out, resume=True)
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    del record["draws"]
    (out / "run.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ConfigError, match="this version of bertkit builds different samples"):
        pretrain(settings, corpus=corpus, out=out, resume=True)


def test_all_seeds_use_the_same_held_out_text(corpus: Path, tmp_path: Path) -> None:
    """Losses of two seeds are comparable because equal weights have equal losses."""
    scores = []
    for seed in ("1", "2"):
        start = override(SETTINGS, [("train.seed", seed), ("train.steps", "1")])
        small = load(short_run(corpus, tmp_path))
        pretrain(start, corpus=corpus, out=tmp_path / seed, start_from=small)
        scores.append(next(iter(Journal(tmp_path / seed).records()))["held_out"])
    assert scores[0] == scores[1]


def short_run(corpus: Path, directory: Path) -> Path:
    """Return a model trained for one step."""
    out = directory / "start"
    if not out.exists():
        pretrain(override(SETTINGS, [("train.steps", "1")]), corpus=corpus, out=out)
    return out


RELATIVES = {
    "roberta": ("bpe", "none", {"model": {"token_types": 1, "norm": {"eps": 1e-5}}}),
    "albert": (
        "unigram",
        "sop",
        {"model": {"layers": 2, "layer_sharing": [0, 0], "embedding": 16, "dropout": 0.1}},
    ),
    "distilbert": ("wordpiece", "none", {}),
    "electra": (
        "wordpiece",
        "none",
        {"model": {"embedding": 16}, "generator": {"hidden": 16, "heads": 1, "intermediate": 32}},
    ),
    "modernbert": ("bpe", "none", {"model": {"layers": 4, "attention": {"window": {"tokens": 4}}}}),
}


@pytest.mark.parametrize("family", RELATIVES)
def test_tuned_and_distilled_families_match_hugging_face(
    family: str, english: list[str], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    kind, pairs, more = RELATIVES[family]
    corpus = tiny_corpus(tmp_path, english[:16], kind=kind, size=400)
    settings = {
        **more,
        "family": family,
        "model": {**SETTINGS["model"], **more.get("model", {})},
        "sampling": {**SETTINGS["sampling"], "pairs": pairs},
        "train": {**SETTINGS["train"], "steps": 20},
    }
    losses = pretrain(settings, corpus=corpus, out=tmp_path / "run")
    assert losses["mlm_loss"] < 5.9  # Random predictions among 400 tokens have a loss of 6.0.
    data = [
        LabelExample(text[:60], None, "ab"[i % 2], f"row {i}") for i, text in enumerate(english[:8])
    ]
    rest: dict[str, Any] = {
        "train": data,
        "dev": data,
        "settings": Finetune(epochs=1, precision="fp32"),
    }
    finetune("classify", tmp_path / "run", out=tmp_path / "tuned", **rest)
    distill(tmp_path / "tuned", student=tmp_path / "run", out=tmp_path / "student", **rest)
    for folder in (tmp_path / "tuned", tmp_path / "student"):
        bertkit_model = load(folder)
        hf_model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        encoded = transformers.AutoTokenizer.from_pretrained(folder)("a class of objects")
        encoding = bertkit_model.tokenizer.encode("a class of objects")
        assert encoding.ids.tolist() == encoded["input_ids"]
        with torch.no_grad():
            bertkit_logits = bertkit_model.model(Batch.of([encoding]))["classify"]
            hf_logits = hf_model.eval()(torch.tensor([encoded["input_ids"]])).logits
        torch.testing.assert_close(bertkit_logits, hf_logits, atol=1e-5, rtol=0)


ELECTRA: dict[str, Any] = {
    **SETTINGS,
    "family": "electra",
    "model": {**SETTINGS["model"], "embedding": 16},
    "generator": {"hidden": 16, "heads": 1, "intermediate": 32},
    "sampling": {**SETTINGS["sampling"], "pairs": "none"},
}


def test_electra_learns_and_matches_hugging_face(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    scores = pretrain(ELECTRA, corpus=corpus, out=out)
    held_out = [r["held_out"] for r in Journal(out).records() if "held_out" in r]
    assert held_out[0]["mlm"] > held_out[-1]["mlm"] == scores["mlm_loss"]
    assert held_out[0]["rtd"] > held_out[-1]["rtd"] == scores["rtd_loss"]
    assert scores["rtd_accuracy"] > 0.8  # Predicting "original" for all tokens reaches 85%.
    model, generator = load(out), load(out / "generator")
    assert set(model.model.heads) == {"rtd"}
    assert set(generator.model.heads) == {"mlm"}
    assert (model.model.config.hidden, generator.model.config.hidden) == (32, 16)
    assert not model.report.unused
    for part in ("tokens", "positions", "types"):
        name = f"encoder.embedding.{part}.weight"
        tables = model.model.state_dict()[name], generator.model.state_dict()[name]
        assert torch.equal(*tables), name
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    encoding = model.tokenizer.encode("a class of objects")
    ids = torch.from_numpy(encoding.ids)[None]
    for bertkit_model, hf_model in (
        (model, transformers.ElectraForPreTraining.from_pretrained(out)),
        (generator, transformers.ElectraForMaskedLM.from_pretrained(out / "generator")),
    ):
        with torch.no_grad():
            (bertkit_logits,) = bertkit_model.model(Batch.of([encoding])).values()
            torch.testing.assert_close(
                bertkit_logits, hf_model.eval()(ids).logits[0], atol=1e-5, rtol=0
            )


def test_student_starts_from_and_learns_from_teacher(
    run: tuple[Path, dict[str, float]], corpus: Path, tmp_path: Path
) -> None:
    teacher, _ = run
    settings = {
        **SETTINGS,
        "family": "distilbert",
        "sampling": {**SETTINGS["sampling"], "pairs": "none"},
        "teacher": {"model": str(teacher), "start": True},
        "train": {**SETTINGS["train"], "steps": 4, "learning_rate": 1e-9},
    }
    scores = pretrain(settings, corpus=corpus, out=tmp_path / "same")
    without_teacher = {name: value for name, value in settings.items() if name != "teacher"}
    random = pretrain(without_teacher, corpus=corpus, out=tmp_path / "random")
    assert scores["mlm_loss"] < random["mlm_loss"] - 0.1  # The student starts from the teacher.
    small_student = {
        **settings,
        "model": {**SETTINGS["model"], "hidden": 16},
        "teacher": {"model": str(teacher)},
        "train": {**SETTINGS["train"], "steps": 20},
    }
    out = tmp_path / "narrow"
    pretrain(small_student, corpus=corpus, out=out)
    steps = [r for r in Journal(out).records() if "loss" in r]
    assert all(steps[-1][term] < steps[0][term] for term in ("labels", "outputs", "states"))
    opened = load(out)
    assert set(opened.model.heads) == {"mlm"}
    assert not opened.report.unused  # The projection of its states is not saved.
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    transformers.DistilBertForMaskedLM.from_pretrained(out)


def test_distillation_is_deterministic(
    run: tuple[Path, dict[str, float]], corpus: Path, tmp_path: Path
) -> None:
    """The first teacher of a process tests whether oneDNN is available. This must not change
    the results.
    """
    settings = {
        **SETTINGS,
        "model": {**SETTINGS["model"], "hidden": 16},
        "sampling": {**SETTINGS["sampling"], "pairs": "none"},
        "teacher": {"model": str(run[0])},
    }
    found = []
    for name, seed in (("first", "1"), ("again", "1"), ("other", "2")):
        if name == "first":
            linear.unavailable.cache_clear()  # A new process starts without a cached result.
        changed = override(settings, [("train.seed", seed), ("train.steps", "1")])
        pretrain(changed, corpus=corpus, out=tmp_path / name)
        found.append((tmp_path / name / "model.safetensors").read_bytes())
    assert found[0] == found[1] != found[2]


def test_resume_rejects_changed_teacher_weights(
    run: tuple[Path, dict[str, float]], corpus: Path, tmp_path: Path
) -> None:
    teacher, out = shutil.copytree(run[0], tmp_path / "teacher"), tmp_path / "run"
    settings = {
        **override(SETTINGS, [("train.steps", "1")]),
        "sampling": {**SETTINGS["sampling"], "pairs": "none"},
        "teacher": {"model": str(teacher)},
    }
    scores = pretrain(settings, corpus=corpus, out=out)
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert set(record["weights"]) == {"teacher"}
    assert pretrain(settings, corpus=corpus, out=out, resume=True) == scores
    pretrain(override(SETTINGS, [("train.steps", "1")]), corpus=corpus, out=tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", teacher)
    with pytest.raises(ConfigError, match=r"weights\.teacher \(was '[0-9a-f]{64}'\): changed"):
        pretrain(settings, corpus=corpus, out=out, resume=True)


MOST, FIRST = "model.max_positions", "sampling.first_length"


def test_pretrain_rejects_invalid_teacher_settings(
    run: tuple[Path, dict[str, float]], corpus: Path, english: list[str], tmp_path: Path
) -> None:
    no_pairs = {**SETTINGS, "sampling": {**SETTINGS["sampling"], "pairs": "none"}}
    teacher = {"model": str(run[0])}
    for wrong, message in (
        ({**SETTINGS, "teacher": teacher}, "sampling.pairs = 'nsp' is not supported with teacher"),
        ({**ELECTRA, "teacher": teacher}, "generator cannot be combined with teacher"),
        ({**no_pairs, "teacher": {"model": "nowhere/at-all"}}, "nowhere"),
        ({**no_pairs, "teacher": {**teacher, "follow": [2]}}, r"got \[2\]"),
        (
            {
                **no_pairs,
                "model": {**SETTINGS["model"], "hidden": 16},
                "teacher": {**teacher, "start": True},
            },
            "teacher.start: encoder.embedding.tokens.weight of the teacher has a different shape",
        ),
        (
            override({**no_pairs, "teacher": teacher}, [(MOST, "128"), ("sampling.length", "65")]),
            r"sampling\.length must be .* maximum length of 64 tokens, got 65; reduce sampling",
        ),
        (
            override({**no_pairs, "teacher": teacher}, [(MOST, "128"), (FIRST, "65")]),
            r"sampling\.first_length must be .* 64 tokens, got 65",
        ),
    ):
        with pytest.raises(BertkitError, match=message):
            pretrain(wrong, corpus=corpus, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_samples_can_have_the_teacher_maximum_length(
    run: tuple[Path, dict[str, float]], corpus: Path, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "teacher": {"model": str(run[0])}}
    longest = [(MOST, "128"), ("sampling.length", "64"), ("sampling.pairs", "none")]
    pretrain(
        override(settings, [*longest, ("train.steps", "1")]), corpus=corpus, out=tmp_path / "run"
    )


GROWING = [("train.first_batch_size", "4"), ("train.batch_warmup_steps", "6")]


@pytest.mark.parametrize(
    "settings",
    [
        ELECTRA,
        NEXT,
        RECURRENT,
        override(SETTINGS, [("train.optimizer", "muon")]),
        override(SETTINGS, GROWING),
        pytest.param(
            override(SETTINGS, [("train.precision", "bf16"), ("train.optimizer", "muon")]),
            marks=pytest.mark.bf16,
        ),
    ],
    ids=["electra", "gpt2", "lstm-lm", "muon", "growing batches", "muon in bf16"],
)
def test_resumed_run_matches_an_uninterrupted_run(
    settings: dict[str, Any],
    corpus: Path,
    running_text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corpus = running_text if settings.get("objective") == "next" else corpus
    settings = override(settings, [("train.steps", "8"), ("train.save_every", "4")])
    pretrain(settings, corpus=corpus, out=tmp_path / "one")
    out, save = tmp_path / "two", Run.save

    def stopped(run: Run, step: int, **rest: Any) -> None:
        save(run, step, **rest)
        if step == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            pretrain(settings, corpus=corpus, out=out)
    pretrain(settings, corpus=corpus, out=out, resume=True)
    for file in (tmp_path / "one").rglob("*.safetensors"):
        if "step-00000004" not in file.parts:
            other = out / file.relative_to(tmp_path / "one")
            assert file.read_bytes() == other.read_bytes(), file


@pytest.mark.parametrize("method", ["by processes", "from elsewhere", "in two parts"])
def test_multi_volume_corpus_is_independent_of_reading_method(
    method: str, corpus: Path, english: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(english[:60]), encoding="utf-8")
    large = prepare(
        [tmp_path / "text.txt"], tokenizer=corpus / "tokenizer", out=tmp_path / "large",
        blank_lines="documents", shard_tokens=500, processes=1,
    )  # fmt: skip
    monkeypatch.setattr(corpora, "VOLUME_TOKENS", large.tokens // 4)
    monkeypatch.setenv("BERTKIT_CACHE", str(tmp_path / "cache"))
    assert len(Corpus.open(large.folder).volumes) > 3
    settings = override(SETTINGS, [("train.steps", "8"), ("train.save_every", "4")])
    pretrain(settings, corpus=large.folder, out=tmp_path / "one")
    text: Path | str = large.folder
    if method == "by processes":
        settings = override(settings, [("train.loader_processes", "2")])
    elif method == "from elsewhere":
        text = f"file://{large.folder}"
    else:
        save = Run.save

        def stopped(run: Run, step: int, **rest: Any) -> None:
            save(run, step, **rest)
            run.stop(step)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "save", stopped)
            with pytest.raises(KeyboardInterrupt):
                pretrain(settings, corpus=text, out=tmp_path / "two")
    pretrain(settings, corpus=text, out=tmp_path / "two", resume="auto")
    first, second = (load_file(tmp_path / out / "model.safetensors") for out in ("one", "two"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("settings", "owner", "name"),
    [(SETTINGS, Run, "publish"), (ELECTRA, recipe, "save")],
    ids=["bert", "electra"],
)
def test_resume_completes_an_interrupted_publication(
    settings: dict[str, Any],
    owner: Any,
    name: str,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = override(settings, [("train.steps", "4"), ("train.save_every", "4")])
    out, last = tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-00000004"
    original = getattr(owner, name)

    def interrupted(*rest: Any, **named: Any) -> None:
        if last.exists():
            raise KeyboardInterrupt
        original(*rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            pretrain(settings, corpus=corpus, out=out)
    checkpoint = load_file(last / "model.safetensors")
    before = load_file(out / "model.safetensors")
    assert any(not torch.equal(before[name], checkpoint[name]) for name in before)
    pretrain(settings, corpus=corpus, out=out, resume=True)
    after = load_file(out / "model.safetensors")
    assert all(torch.equal(after[name], checkpoint[name]) for name in after)


@pytest.mark.parametrize(("device", "rate"), [("cuda:1", 0.1), ("cuda", 0.0), ("cpu", 0.1)])
def test_slow_attention_kernel_on_gpu_is_reported(
    device: str, rate: float, capsys: pytest.CaptureFixture[str]
) -> None:
    warn(Train(steps=10), attention_dropout=rate, device=device)
    is_reported = (
        "attention_dropout = 0.1 disables the fast attention kernel" in capsys.readouterr().err
    )
    assert is_reported == (device == "cuda:1")


def test_batch_warmup_increases_the_batch_size() -> None:
    settings = Train(steps=10, batch_size=12, first_batch_size=4, batch_warmup_steps=4)
    found = [settings.samples(step) for step in range(6)]
    assert found == [(0, 4), (4, 6), (10, 8), (18, 10), (28, 12), (40, 12)]
    assert Train(steps=10, batch_size=12).samples(3) == (36, 12)
    with pytest.raises(ValueError, match="set both, or remove both"):
        Train(steps=10, batch_warmup_steps=4)
    with pytest.raises(
        ValueError, match="first_batch_size must be at most batch_size = 12, got 20"
    ):
        Train(steps=10, batch_size=12, first_batch_size=20, batch_warmup_steps=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"family": "roberts"}, "family = 'roberts' is not supported; did you mean 'roberta'"),
     ({"family": "roberta"}, "sampling.pairs = 'nsp' is not supported by the family roberta"),
     ({"family": "albert"}, "sampling.pairs = 'nsp' is not supported by the family albert"),
     ({**ELECTRA, "family": "bert"}, "model.embedding must be None for bert, got 16"),
     ({"generator": ELECTRA["generator"]},
      "sampling.pairs = 'nsp' is not supported with generator"),
     ({**ELECTRA, "family": "bert", "model": {"embedding": None}},
      "generator is not supported by the family bert"),
     ({"model": {"layer_sharing": [0]}}, "model.layer_sharing must be None for bert, got "),
     ({"model": {"layer_sharing": [0, 0]}}, "layer_sharing must have one index per layer")],
)  # fmt: skip
def test_unsupported_family_settings_are_rejected_before_training(
    settings: dict[str, Any], message: str, corpus: Path, tmp_path: Path
) -> None:
    model = {**SETTINGS["model"], **settings.get("model", {})}
    with pytest.raises(ConfigError, match=message):
        pretrain({**SETTINGS, **settings, "model": model}, corpus=corpus, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
