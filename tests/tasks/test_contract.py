"""Properties that every task of the registry must have.

A task takes part with an entry in CASES: training rows, and the score that it reaches on them.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.extensions.generation.tasks.test_seq2seq import write_model
from tests.extensions.generation.test_chat_format import vocabulary
from tests.factories import tiny_folder, tiny_tokenizer
from torch import Tensor

import bertkit
from bertkit.checkpoint.directory import load
from bertkit.engine.engine import Engine
from bertkit.errors import DataError
from bertkit.families import FAMILIES
from bertkit.models.model import Model
from bertkit.objectives.loss import totals
from bertkit.storage import sha256
from bertkit.tasks import TASKS, find
from bertkit.tasks.capabilities import NeedsReference, UsesDecoder
from bertkit.tasks.examples import read_examples
from bertkit.tasks.task import (
    Feature,
    Outputs,
    Task,
    by_example,
    group,
    group_for_training,
    make_batch,
    run_head,
)
from bertkit.training.task_model import load_for_finetuning

WORDS = ["the", "cat", "sat", "on", "mat", ".", "ada", "york", "bob", "rome", "saw", "in"]
NAMES, CITIES, VERBS = ("ada", "bob"), ("york", "rome"), ("saw", "in")


@dataclass(frozen=True)
class Case:
    """Training rows of a task, and how well it learns them.

    Args:
        rows: Rows of a JSON Lines file.
        needs: Column that a labeled row cannot lack.
        score: Name of a score that is computed on the training rows.
        least: Smallest value of the score after training.
        model: Name of the model fixture: encoder, writer (causal), or translator (T5).
        keywords: Options and settings of the fine-tuning.
    """

    rows: list[dict[str, Any]]
    needs: str
    score: str
    least: float = 1.0
    model: str = "encoder"
    keywords: dict[str, Any] = field(default_factory=dict)


def sentences() -> list[tuple[str, str, str]]:
    """Return eight sentences with their name and city."""
    pairs = [(name, city) for name in NAMES for city in CITIES]
    return [(f"{name} {verb} {city} .", name, city) for name, city in pairs for verb in VERBS]


def documents() -> list[tuple[str, str, str]]:
    """Return the sentences; the last document is longer than the maximum length of the model."""
    *rows, (text, name, city) = sentences()
    return [*rows, ("the cat sat on the mat . " * 5 + text, name, city)]


def span(text: str, word: str, label: str) -> dict[str, Any]:
    return {"start": text.index(word), "end": text.index(word) + len(word), "label": label}


def messages(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


LABELED = [{"text": text, "label": name} for text, name, _ in sentences()]
SCORED = [{"text": text, "label": float(name == "ada") + 0.5} for text, name, _ in sentences()]
SEVERAL = [{"text": text, "label": json.dumps([name, city])} for text, name, city in sentences()]
ENTITIES = [
    {"text": text, "entities": [span(text, name, "PER"), span(text, city, "LOC")]}
    for text, name, city in documents()
]
QUESTIONS = [
    {"question": "in", "context": text, "answers": {"text": [c], "answer_start": [text.index(c)]}}
    for text, _, c in documents()
]
CHOICES = [
    {"question": text, "choices": ["mat", name], "label": 1} for text, name, _ in sentences()
]
RESPONSES = [
    {"context": text, "response": name, "candidates": ["mat", name]}
    for text, name, _ in sentences()
]
PAIRS = [
    {"sentence1": text, "sentence2": name if row < 4 else "mat", "score": float(row < 4)}
    for row, (text, name, _) in enumerate(sentences())
]
SUMMARIES = [
    {"text": f"{text} the cat sat on the mat .", "summary": text} for text, _, _ in documents()
]
TALKS = [{"messages": messages(text, name)} for text, name, _ in sentences()]
PREFERENCES = [
    {"prompt": text, "chosen": name, "rejected": city} for text, name, city in sentences()
]
TARGETS = [{"source": text, "target": name} for text, name, _ in sentences()]

CASES = {
    "classify": Case(LABELED, "label", "accuracy"),
    "classify contrastive": Case(
        LABELED, "label", "accuracy", keywords={"contrastive": True, "epochs": 2}
    ),
    "classify regression": Case(SCORED, "label", "pearson", 0.99),
    "classify labels": Case(SEVERAL, "label", "best_f1_micro", keywords={"multi_label": True}),
    "tag": Case(ENTITIES, "entities", "f1"),
    "tag crf": Case(ENTITIES, "entities", "f1", keywords={"crf": True}),
    "tag bioes": Case(ENTITIES, "entities", "f1", keywords={"crf": True, "scheme": "bioes"}),
    "answer": Case(QUESTIONS, "answers", "exact"),
    "choose": Case(CHOICES, "label", "accuracy"),
    "respond": Case(RESPONSES, "response", "mrr"),
    "similarity": Case(PAIRS, "sentence2", "spearman", 0.85),
    "similarity cosent": Case(
        PAIRS, "sentence2", "spearman", 0.85, keywords={"loss": "cosent", "epochs": 2}
    ),
    "summarize": Case(SUMMARIES, "summary", "rouge1", 0.6, keywords={"sentences": 1}),
    "chat": Case(TALKS, "messages", "log_probability", -0.4, "writer", {"epochs": 6}),
    "dpo": Case(PREFERENCES, "chosen", "accuracy", model="writer"),
    "seq2seq": Case(TARGETS, "target", "log_probability", -0.4, "translator"),
}
"""Cases by the name of the task and a variant."""

BAD_ROWS = {
    "invalid JSON": ("{", r"rows\.jsonl:9: .*(JSON|truncated)"),
    "no object": ("3", r"rows\.jsonl:9: .*(object|expected)"),
    "no text": ("{}", r"rows\.jsonl:9: "),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of tiny models with random weights, by the names in `Case.model`."""
    folder = tmp_path_factory.mktemp("models")
    shape = {"hidden": 64, "layers": 2, "heads": 4, "intermediate": 128}
    encoder = tiny_folder(
        folder / "encoder", tiny_tokenizer(WORDS), "mlm", "nsp", length=24, dropout=0.0, **shape
    )
    family, more = FAMILIES["llama"], {"length": 256, **shape}
    writer = tiny_folder(folder / "writer", vocabulary("chatml"), "lm", family=family, **more)
    translator = write_model(folder / "t5", "t5")
    return {"encoder": encoder, "writer": writer, "translator": translator}


def task_of(case: str) -> type[Task[Any, Any]]:
    return find(case.partition(" ")[0])


def write_rows(path: Path, rows: list[dict[str, Any]], *lines: str) -> Path:
    path.write_text("\n".join([*map(json.dumps, rows), *lines]), encoding="utf-8")
    return path


def finetune(
    name: str, models: dict[str, Path], folder: Path, **more: Any
) -> tuple[Path, dict[str, float]]:
    case = CASES[name]
    rows = write_rows(folder / "rows.jsonl", case.rows)
    # Each epoch ends with an evaluation, which takes longer than a step.
    train = write_rows(folder / "train.jsonl", case.rows * 10)
    settings: dict[str, Any] = {"epochs": 4, "batch_size": 8, "learning_rate": 3e-3}
    settings |= {"weight_decay": 0.0, "precision": "fp32", **case.keywords, **more}
    out = folder / "out"
    scores = bertkit.finetune(
        task_of(name), models[case.model], train=train, dev=rows, out=out, **settings
    )
    return out, scores


@pytest.fixture(scope="module", params=sorted(CASES))
def tuned(
    request: pytest.FixtureRequest,
    models: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path, dict[str, float]]:
    """A task, the directory of a model that was trained for it, and its scores."""
    torch.set_num_threads(1)
    out, scores = finetune(request.param, models, tmp_path_factory.mktemp(request.param))
    return request.param, out, scores


@dataclass(frozen=True)
class Inputs:
    """Features of a task, and the model that computes its outputs."""

    task: Task[Any, Any]
    model: Model
    features: list[Feature]

    def outputs(self, features: list[Feature], budget: int = 10**6) -> list[Outputs]:
        return run_head(self.task, Engine(self.model, max_batch_tokens=budget), features)

    def loss(self, *parts: list[Feature]) -> Tensor:
        """Return the loss of a step whose batches are the parts."""
        batches = [make_batch(self.task, part) for part in parts]
        sums = totals(batches)
        return torch.stack([self.task.loss(self.model, b, sums).total for b in batches]).sum()


@pytest.fixture(scope="module")
def inputs(tuned: tuple[str, Path, dict[str, float]]) -> Inputs:
    """The labeled training rows of a task, as features, with a model that is partly trained."""
    name, out, _ = tuned
    examples = read_examples(task_of(name), out.parent / "rows.jsonl")
    loaded, _ = load_for_finetuning(out, task := restored(name, out), 0.0)
    length = min(loaded.model.config.max_positions, 256)
    features = task.features(examples, loaded.tokenizer, length, long=task.long[0], labeled=True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # A loss near 0 would hide errors.
        for weight in loaded.model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    found = Inputs(task, loaded.model.eval(), features)
    if isinstance(task, NeedsReference):
        rows = [row + 0.1 for row in found.outputs(features)]
        features = [replace(f, teacher_outputs=r) for f, r in zip(features, rows, strict=True)]
    return replace(found, features=features)


def restored(name: str, out: Path) -> Task[Any, Any]:
    loaded = load(out)
    task = task_of(name).restore(loaded.labels, loaded.settings)
    return task.with_decoder(loaded.begin, loaded.target) if isinstance(task, UsesDecoder) else task


def test_every_task_has_a_case() -> None:
    assert {case.partition(" ")[0] for case in CASES} == set(TASKS)


def test_task_learns_eight_rows(tuned: tuple[str, Path, dict[str, float]]) -> None:
    name, _, scores = tuned
    assert scores[CASES[name].score] >= CASES[name].least - 1e-6, scores


def test_resumed_run_has_the_same_weights(
    tuned: tuple[str, Path, dict[str, float]], models: dict[str, Path], tmp_path: Path
) -> None:
    name, out, scores = tuned
    with pytest.raises(KeyboardInterrupt):
        finetune(name, models, tmp_path, on_epoch=lambda *_: signal.raise_signal(signal.SIGINT))
    assert next((tmp_path / "out" / "checkpoints").glob("step-*"))
    again, same_scores = finetune(name, models, tmp_path, resume=True)
    assert same_scores == scores
    assert sha256(again / "model.safetensors") == sha256(out / "model.safetensors")


def test_saved_model_reproduces_scores_of_run(tuned: tuple[str, Path, dict[str, float]]) -> None:
    name, out, scores = tuned
    found = bertkit.evaluate(out, out.parent / "rows.jsonl")
    expected = {key.removeprefix("best_"): value for key, value in scores.items()}
    shared = set(found) & set(expected)
    # The reference of the scores of DPO is not saved.
    assert CASES[name].score.removeprefix("best_") in shared or name == "dpo"
    for key in shared:
        assert found[key] == pytest.approx(expected[key], abs=1e-5), key


def test_outputs_do_not_depend_on_the_batch(inputs: Inputs) -> None:
    together = inputs.outputs(inputs.features)
    assert np.ptp([row.max() for row in together]) > 1e-3  # otherwise equal outputs prove nothing
    reversed_ = inputs.outputs(inputs.features[::-1])[::-1]
    small = inputs.outputs(inputs.features, budget=1)
    for row, turned, alone in zip(together, reversed_, small, strict=True):
        np.testing.assert_allclose(turned, row, atol=1e-4)
        np.testing.assert_allclose(alone, row, atol=1e-4)


def test_losses_of_batches_add_up_to_step_loss(inputs: Inputs) -> None:
    units = group_for_training(inputs.task, inputs.features)
    parts = [[f for unit in part for f in unit] for part in (units[:3], units[3:])]
    whole = inputs.loss(inputs.features).item()
    assert whole > 1e-3  # otherwise equal losses prove nothing
    adds_up = inputs.loss(*parts).item() == pytest.approx(whole, rel=1e-4)
    assert adds_up or inputs.task.batching == "step"  # its sequences are compared with each other


def test_gradients_are_finite_and_reach_the_encoder(inputs: Inputs) -> None:
    inputs.model.zero_grad()
    inputs.loss(inputs.features).backward()
    gradients = {name: weight.grad for name, weight in inputs.model.named_parameters()}
    found = [gradient for gradient in gradients.values() if gradient is not None]
    assert all(gradient.isfinite().all() for gradient in found)
    embedding = gradients["encoder.embedding.tokens.weight"]
    assert embedding is not None
    assert embedding.any()
    inputs.model.zero_grad()


def test_predictions_are_json_of_their_type(
    tuned: tuple[str, Path, dict[str, float]], inputs: Inputs
) -> None:
    name, out, _ = tuned
    task, features = inputs.task, inputs.features
    examples = read_examples(task_of(name), out.parent / "rows.jsonl")
    rows = by_example(examples, group(features), inputs.outputs(features))
    answers = task.answers(rows, inputs.model.heads[task.head])
    assert len(answers) == len(examples)
    decoded = msgspec.json.decode(msgspec.json.encode(answers), type=list[type(answers[0])])  # type: ignore[misc]
    assert decoded == answers
    records = [task.error_record(a, e) for a, e in zip(answers, examples, strict=True)]
    assert all(record.severity >= 0 for record in records)


@pytest.mark.parametrize("kind", BAD_ROWS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_bad_rows_are_rejected_with_line_number(name: str, kind: str, tmp_path: Path) -> None:
    line, message = BAD_ROWS[kind]
    path = write_rows(tmp_path / "rows.jsonl", CASES[name].rows, line)
    with pytest.raises(DataError, match=message):
        read_examples(task_of(name), path)


@pytest.mark.parametrize("name", sorted(CASES))
def test_rows_without_a_label_are_rejected(name: str, tmp_path: Path) -> None:
    first, *others = CASES[name].rows
    bare = {key: value for key, value in first.items() if key != CASES[name].needs}
    with pytest.raises(DataError, match=r"rows\.jsonl:8: "):
        read_examples(task_of(name), write_rows(tmp_path / "rows.jsonl", [*others, bare]))
    with pytest.raises(DataError, match="empty"):
        read_examples(task_of(name), write_rows(tmp_path / "rows.jsonl", []))
