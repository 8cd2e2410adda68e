"""Distillation of fine-tuned teachers, and rejected settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file
from tests.factories import tiny_folder, tiny_model

from bertkit import cli
from bertkit.batch import Batch
from bertkit.checkpoint.directory import load
from bertkit.errors import BertkitError, ConfigError
from bertkit.families import MODERNBERT
from bertkit.models.model import Model
from bertkit.objectives.distill import TEACHER_OUTPUTS, Distillation, Terms
from bertkit.objectives.loss import Loss, Totals
from bertkit.recipes.distill import distill
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.tasks import answer, similarity
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import LabelExample
from bertkit.text.vocabulary_training import train as train_tokenizer
from bertkit.training.teacher import check_length

SETTINGS = Finetune(epochs=2, batch_size=8, learning_rate=5e-3, precision="fp32", warmup=0.0)


def folder_of(out: Path, texts: list[str], size: int, **shape: int) -> Path:
    tokenizer = train_tokenizer(texts, kind="wordpiece", size=size)
    shape = {"hidden": 32, "layers": 4, "intermediate": 64, **shape}
    return tiny_folder(out, tokenizer, "mlm", "nsp", **shape)


def rows(count: int, labels: tuple[str, str] = ("doing", "thing")) -> list[LabelExample]:
    words = ("loop", "class")
    return [
        LabelExample(
            f"the {words[i % 2]} number {i % 5} of it", None, labels[i % 2], f"rows:{i + 2}"
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    directory = tmp_path_factory.mktemp("teacher")
    base = folder_of(directory / "base", english[:5], 300)
    settings = Finetune(epochs=4, batch_size=8, learning_rate=1e-2, precision="fp32")
    finetune(
        Classify, base, train=rows(64), dev=rows(16), out=directory / "tuned", settings=settings
    )
    return directory / "tuned"


def test_student_with_some_teacher_layers_learns(teacher: Path, tmp_path: Path) -> None:
    scores = distill(
        teacher, layers=2, train=rows(64), dev=rows(16), out=tmp_path / "s", settings=SETTINGS
    )
    made = load(tmp_path / "s")
    assert made.model.config.layers == 2
    assert made.labels == ("doing", "thing")
    assert scores["accuracy"] == 1.0
    record = json.loads((tmp_path / "s" / "run.json").read_text(encoding="utf-8"))
    assert record["teacher"] == str(teacher)
    assert record["terms"]["temperature"] == 2.0


def test_student_starts_from_teacher_layers(teacher: Path, tmp_path: Path) -> None:
    frozen = Finetune(epochs=1, batch_size=64, learning_rate=1e-12, precision="fp32")
    distill(teacher, layers=2, train=rows(8), dev=rows(8), out=tmp_path / "s", settings=frozen)
    student_weights, teacher_weights = (
        load(f).model.state_dict() for f in (tmp_path / "s", teacher)
    )
    for new, old in ((0, 1), (1, 3)):
        name = "encoder.blocks.{}.feedforward.up.weight"
        torch.testing.assert_close(
            student_weights[name.format(new)], teacher_weights[name.format(old)], atol=1e-6, rtol=0
        )


def test_teacher_outputs_are_computed_once_without_other_terms(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = Distillation.__call__

    def recorded(self: Distillation, network: Model, batch: Batch, totals: Totals) -> Loss:
        calls.append(TEACHER_OUTPUTS in batch.targets)
        return original(self, network, batch, totals)

    monkeypatch.setattr(Distillation, "__call__", recorded)
    data = {"train": rows(16), "dev": rows(8), "settings": SETTINGS}
    outputs_only = Terms(labels=0.0, states=0.0)
    scores = distill(teacher, layers=1, out=tmp_path / "stored", terms=outputs_only, **data)
    assert calls == [True] * 4
    calls.clear()
    distill(teacher, layers=1, out=tmp_path / "computed", **data)  # Hidden states are not stored.
    assert calls == [False] * 4
    assert scores["accuracy"] > 0.5


def test_small_student_is_saved_without_projections(
    teacher: Path, english: list[str], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    student = folder_of(tmp_path / "base", english[:5], 300, hidden=16, layers=1)
    terms = Terms(attention=1.0, relations=1.0)
    distill(
        teacher,
        student=student,
        train=rows(16),
        dev=rows(8),
        out=tmp_path / "s",
        settings=SETTINGS,
        terms=terms,
    )
    made = load(tmp_path / "s")
    assert tuple(made.model.heads) == ("classify",)
    assert not made.report.unused
    transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "s")


def test_resume_rejects_changed_teacher_weights(teacher: Path, tmp_path: Path) -> None:
    directory, out = shutil.copytree(teacher, tmp_path / "teacher"), tmp_path / "s"
    data = {"train": rows(16), "dev": rows(8), "out": out, "settings": SETTINGS}
    scores = distill(directory, layers=1, **data)
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert distill(directory, layers=1, resume=True, **data) == scores
    assert set(record["weights"]) == {"teacher"}
    weights = load_file(directory / "model.safetensors")
    weights["classifier.bias"] += 1  # Only its head differs.
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"weights\.teacher \(was '[0-9a-f]{64}'\): changed"):
        distill(directory, layers=1, resume=True, **data)


def test_distillation_is_deterministic(teacher: Path, english: list[str], tmp_path: Path) -> None:
    """The head and the projections of the student are newly initialized."""
    student = folder_of(tmp_path / "base", english[:5], 300, hidden=16, layers=1)
    data = {"train": rows(16), "dev": rows(8), "student": student}
    for name in ("a", "b"):
        distill(teacher, settings=SETTINGS, out=tmp_path / name, **data)
    first, second = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("a", "b"))
    assert first == second


def test_distill_rejects_incompatible_settings_before_writing(
    teacher: Path, english: list[str], tmp_path: Path
) -> None:
    other = folder_of(tmp_path / "other", english[:5], 280)
    data = {"train": rows(16), "dev": rows(8), "out": tmp_path / "s"}
    strange = rows(16, ("x", "y"))
    faults = [
        ({"layers": 9}, "at most 4 layers, as its teacher has, got 9"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"layers": 2, "follow": [1, 9]}, "must list a teacher layer, 1 to 4"),
        ({"student": other}, "the vocabulary of .* differs from the teacher's"),
        ({}, "set either student or layers"),
        ({"layers": 1, "student": other}, "set either student or layers"),
        ({"layers": 1, "train": strange, "dev": strange}, "the teacher's labels doing, thing"),
    ]
    for more, message in faults:
        with pytest.raises(BertkitError, match=message):
            distill(teacher, **{**data, **more})  # type: ignore[arg-type]
        assert not (tmp_path / "s").exists()
    with pytest.raises(BertkitError, match=r"was not fine-tuned|use `bertkit finetune`"):
        distill(tmp_path / "other", layers=1, **data)  # type: ignore[arg-type]


def test_distill_command_writes_scores(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{row.text}\t{row.label}" for row in rows(16)]
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "\n".join(lines), encoding="utf-8")
    command = ["distill", "--teacher", str(teacher), "--layers", "1", "--epochs", "1"]
    files = [f"--{name}={tmp_path / 'rows.tsv'}" for name in ("train", "dev", "test")]
    assert cli.run([*command, *files, "--out", str(tmp_path / "s"), "--precision", "fp32"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert {"accuracy", "test_accuracy"} <= set(scores)
    assert json.loads((tmp_path / "s" / "test.json").read_text(encoding="utf-8"))["rows"] == 16


def test_output_loss_requires_equal_embedding_sizes(
    tmp_path: Path, english: list[str], teacher: Path
) -> None:
    pairs = [
        similarity.SimilarityExample(("a loop", f"the class {i}"), None, f"r{i}") for i in range(8)
    ]
    data: dict[str, Any] = {"train": pairs, "dev": pairs, "settings": SETTINGS}
    base = folder_of(tmp_path / "base", english[:5], 300)
    small = folder_of(tmp_path / "small", english[:5], 300, hidden=16, layers=2)
    finetune("similarity", base, **data, out=tmp_path / "tuned")
    with pytest.raises(ConfigError, match=r"got 16 \(student\) and 32 \(teacher\)"):
        distill(tmp_path / "tuned", student=small, **data, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()
    distill(tmp_path / "tuned", student=small, **data, terms=Terms(outputs=0.0), out=tmp_path / "s")


def test_uncalibrated_answer_task_resets_the_threshold() -> None:
    task = answer.Answer((), answer.AnswerOptions(no_answer=True, null_threshold=-4.5))
    assert task.uncalibrated() == answer.AnswerOptions(no_answer=True)


def test_distill_rejects_lengths_above_the_teacher_maximum(
    teacher: Path, english: list[str], tmp_path: Path
) -> None:
    student = folder_of(tmp_path / "base", english[:5], 300, length=64)
    long = [LabelExample("loop " * 70, None, row.label, row.where) for row in rows(8)]
    data: dict[str, Any] = {"student": student, "train": long, "dev": rows(8)}
    for length in (None, 33):
        settings = structs.replace(SETTINGS, max_length=length)
        with pytest.raises(
            ConfigError, match=f"^max_length must .* of 32 tokens, got {length or 64};"
        ):
            distill(teacher, **data, out=tmp_path / "s", settings=settings)
        assert not (tmp_path / "s").exists()
    distill(teacher, **data, out=tmp_path / "s", settings=structs.replace(SETTINGS, max_length=32))


def test_rotary_teacher_accepts_any_length() -> None:
    check_length(tiny_model(20, "mlm", length=32, family=MODERNBERT), 64, "length")
    with pytest.raises(ConfigError, match=r"length must be .* got 64"):  # Control.
        check_length(tiny_model(20, "mlm", length=32), 64, "length")
