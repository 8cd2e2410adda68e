"""Selection among equal dev scores by the dev loss."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.factories import tiny_folder, tiny_model, tiny_tokenizer

import bertkit
from bertkit.checkpoint.run_directory import SCORES
from bertkit.tasks.choose import Choose
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import ClassifyOptions, LabelExample
from bertkit.tasks.similarity import Similarity
from bertkit.tasks.similarity import SimilarityExample as Pair
from bertkit.tasks.task import make_batch
from bertkit.training.dev_loss import dev_loss

WORDS = "abcdefghij"
ROWS = [{"text": f"{word} {word}", "label": "xy"[i % 2]} for i, word in enumerate(WORDS)]
SETTINGS: dict[str, Any] = {"batch_size": 4, "precision": "fp32", "epochs": 3}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("base"), tiny_tokenizer(WORDS), dropout=0.0)


def recorded(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / SCORES).read_text(encoding="utf-8"))
    return record


@pytest.mark.parametrize("resume", [False, True])
def test_epochs_with_equal_scores_are_chosen_by_loss(
    base: Path, tmp_path: Path, resume: bool
) -> None:
    """A low learning rate changes the loss but no prediction."""
    out = tmp_path / "out"
    given: dict[str, Any] = {"train": ROWS, "dev": ROWS, "learning_rate": 1e-6, **SETTINGS}
    if resume:

        def stop(epoch: int, scores: Any) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            bertkit.finetune("classify", base, out=out, on_epoch=stop, **given)
    bertkit.finetune("classify", base, out=out, resume="auto" if resume else False, **given)
    record = recorded(out)
    scores = [
        {name: v for name, v in epoch.items() if name != "epoch"} for epoch in record["epochs"]
    ]
    assert scores[0] == scores[1] == scores[2]
    assert record["dev"]["epoch"] == 3


def test_rising_loss_keeps_the_earlier_epoch(base: Path, tmp_path: Path) -> None:
    """Training on one label raises the loss of rows with the other label."""
    train, dev = (
        [{**row, "label": rare if i == 0 else common} for i, row in enumerate(ROWS)]
        for rare, common in ("xy", "yx")
    )
    out = tmp_path / "out"
    bertkit.finetune(
        "classify", base, train=train, dev=dev, out=out, learning_rate=1e-5, **SETTINGS
    )
    record = recorded(out)
    assert len({epoch["accuracy"] for epoch in record["epochs"]}) == 1
    assert record["dev"]["epoch"] == 1


def test_combinations_with_equal_scores_are_chosen_by_loss(base: Path, tmp_path: Path) -> None:
    settings = {"task": "classify", "model": str(base), "train": ROWS, "dev": ROWS, **SETTINGS}
    grid = {"learning_rate": [1e-6, 3e-6, 2e-6]}
    result = bertkit.experiment({"settings": settings, "grid": grid}, out=tmp_path / "out")
    runs = (tmp_path / "out").glob("*/seed-0")
    assert len({recorded(run)["dev"]["accuracy"] for run in runs}) == 1
    assert result[""]["best"] == "learning_rate=3e-06"


def test_loss_is_the_mean_cross_entropy() -> None:
    tokenizer = tiny_tokenizer(WORDS)
    task = Classify(("x", "y"), ClassifyOptions(pairs=False))
    model = tiny_model(tokenizer, "classify", labels=task.labels, spread=0.5).train()
    examples = [LabelExample(f"{a} " * (i + 1), None, "xy"[i % 2]) for i, a in enumerate(WORDS)]
    features = task.features(examples, tokenizer, 32, long="error", labeled=True)
    model.eval()
    batch = make_batch(task, features)
    logits = task.outputs(model, batch)
    expected = torch.nn.functional.cross_entropy(logits, batch.targets["classify"]).item()
    model.train()
    for budget in (1000, 20, 1):
        assert dev_loss(task, model, features, budget) == pytest.approx(expected, rel=1e-5)
    assert model.training
    unlabeled = task.features(examples, tokenizer, 32, long="error", labeled=False)
    assert dev_loss(task, model, unlabeled, 100) == math.inf


@pytest.mark.parametrize("kind", ["similarity", "choose"])
def test_similarity_and_choice_tasks_have_a_loss(kind: str) -> None:
    tokenizer = tiny_tokenizer(WORDS)
    if kind == "similarity":
        examples: list[Any] = [Pair((a, f"{a} b"), None, a) for a in WORDS]
        task: Any = Similarity.from_examples(examples, Similarity.Options())
    else:
        from bertkit.data.multiple_choice import ChoiceQuestion

        task, examples = Choose(), [ChoiceQuestion(a, ("b", "c d"), 1) for a in WORDS]
    model = tiny_model(tokenizer, labels=task.labels)
    model.heads[task.head] = task.build_head(model.transformer)
    features = task.features(examples, tokenizer, 32, long="error", labeled=True)
    assert 0 < dev_loss(task, model, features, 64) < 10
