"""Pruning of attention heads and layers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import tiny_folder, tiny_model

import bertkit
from bertkit import cli
from bertkit.checkpoint.directory import load
from bertkit.errors import ConfigError
from bertkit.families import ALBERT
from bertkit.models.surgery import keep_layers, without_heads
from bertkit.objectives.loss import totals
from bertkit.recipes.finetune import Finetune, finetune
from bertkit.recipes.prune import compute_importance, count_prunable_heads, prune, select_heads
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import LabelExample
from bertkit.tasks.task import make_batch
from bertkit.text.vocabulary_training import train

SETTINGS = Finetune(epochs=4, batch_size=8, learning_rate=5e-3, precision="fp32", warmup=0.0)
WORDS = {"good": ("fine", "nice", "great"), "bad": ("awful", "poor", "dull")}


def rows(count: int) -> list[LabelExample]:
    return [
        LabelExample(f"a {WORDS[label][i % 3]} book {i}", None, label, f"row {i}")
        for i in range(count)
        for label in [("good", "bad")[i % 2]]
    ]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("prune")
    texts = [" ".join(row.text for row in rows(60))]
    tokenizer = train(texts, kind="wordpiece", size=120)
    tiny_folder(directory / "base", tokenizer, "mlm", hidden=24, layers=3, heads=3)
    data = {"train": rows(64), "dev": rows(32)}
    finetune(Classify, directory / "base", **data, out=directory / "tuned", settings=SETTINGS)
    return directory / "tuned"


def separate_rows(count: int) -> dict[str, list[LabelExample]]:
    """Return rows that rank heads and separate rows for scoring."""
    return {"data": rows(count), "dev": rows(2 * count)[count:]}


def file(path: Path) -> Path:
    lines = ["text\tlabel", *(f"{row.text}\t{row.label}" for row in rows(24))]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_importance_matches_its_definition(tuned: Path) -> None:
    """Compare with the definition: the gradient of a factor on each head's output, per example."""
    ready = bertkit.pipeline("classify", tuned)
    loaded, task = ready.loaded, ready.task
    features = task.features(rows(6), loaded.tokenizer, 32, long="error", labeled=True)
    importance = compute_importance(loaded.model, task, features)
    sums = torch.zeros(3, 3)
    for feature in features:
        factors = torch.ones(3, 3, requires_grad=True)
        hooks = [
            block.attention.out.register_forward_pre_hook(
                lambda _, x, layer=layer, factors=factors: (
                    (x[0].unflatten(1, (3, -1)) * factors[layer, :, None]).flatten(1),
                )
            )
            for layer, block in enumerate(loaded.model.encoder.blocks)
        ]
        batch = make_batch(task, [feature])
        loss = task.loss(loaded.model, batch, totals([batch])).total
        (change,) = torch.autograd.grad(loss, factors)
        sums += change.abs()
        for hook in hooks:
            hook.remove()
    expected = sums / sums.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(importance, expected.numpy(), atol=1e-5)


def test_select_heads_keeps_one_head_per_layer() -> None:
    scores = np.array([[0.1, 0.2, 0.3], [0.9, 0.5, 0.6]])
    assert select_heads(scores, 2) == [(1, 1), (1, 2)]
    assert select_heads(scores, 3) == [(1, 1), (1, 2), (2, 2)]
    assert select_heads(scores, 9) == [(1, 1), (1, 2), (2, 2), (2, 3)]
    assert select_heads(scores, 2, pruned_heads=[(1, 2)]) == [(1, 1), (2, 2)]


def test_prune_uses_separate_rows_for_ranking_and_scoring(tuned: Path, tmp_path: Path) -> None:
    """`data` affects only head importance, and `dev` affects only scores."""
    data, dev = rows(4), [replace(row, label="good") for row in rows(30)[9:23:3]]
    first = prune(tuned, data=data, dev=rows(24), out=tmp_path / "first", count=4)
    other = prune(tuned, data=dev, dev=rows(24), out=tmp_path / "other", count=4)
    assert first["importance"] != other["importance"]
    assert first["before"] == other["before"]
    again = prune(tuned, data=data, dev=dev, out=tmp_path / "again", count=4)
    assert again["importance"] == first["importance"]
    assert (again["before"]["rows"], first["before"]["rows"]) == (len(dev), 24)
    ready = bertkit.pipeline("classify", tuned)
    features = ready.task.features(data, ready.loaded.tokenizer, 32, long="error", labeled=True)
    importance = compute_importance(ready.loaded.model, ready.task, features)
    np.testing.assert_allclose(first["importance"], importance, atol=1e-4)
    with pytest.raises(ConfigError, match="data: must differ from dev="):
        prune(tuned, data=data, dev=data, out=tmp_path / "no", count=4)


def test_prune_ignores_pruned_heads(tuned: Path, tmp_path: Path) -> None:
    first = prune(tuned, **separate_rows(16), out=tmp_path / "one", count=2)["heads"]
    assert (
        count_prunable_heads(load(tmp_path / "one").model)
        == count_prunable_heads(load(tuned).model) - 2
    )
    again = prune(tmp_path / "one", **separate_rows(16), out=tmp_path / "two", count=2)["heads"]
    assert not {tuple(head) for head in first} & {tuple(head) for head in again}
    with pytest.raises(ConfigError, match="must be from 1 to 2, got 3"):
        prune(tmp_path / "two", **separate_rows(16), out=tmp_path / "three", count=3)


def test_pruned_model_matches_hugging_face(tuned: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    found = prune(tuned, data=rows(16), dev=rows(24), out=tmp_path / "out", count=4)
    assert len(found["heads"]) == 4
    assert np.shape(found["importance"]) == (3, 3)
    text = rows(3)[2].text
    (answer,) = bertkit.pipeline("classify", tmp_path / "out")([text])
    hf_model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(
        text, return_tensors="pt"
    )
    probabilities = torch.softmax(hf_model.eval()(**encoded).logits[0], -1).tolist()
    assert list(answer.scores.values()) == pytest.approx(probabilities, abs=1e-5)
    assert found["after"] == bertkit_scores(tmp_path / "out")


def bertkit_scores(folder: Path) -> dict[str, float]:
    from bertkit.recipes.evaluate import evaluate

    return evaluate(bertkit.pipeline("classify", folder), rows(24))


def test_fine_tuning_keeps_pruned_heads_at_zero(tuned: Path, tmp_path: Path) -> None:
    prune(tuned, dev=rows(24), out=tmp_path / "out", heads=[(1, 2), (3, 1)])
    data = {"train": rows(32), "dev": rows(16)}
    finetune(Classify, tmp_path / "out", **data, out=tmp_path / "again", settings=SETTINGS)
    before, after = (load(tmp_path / name).model for name in ("out", "again"))
    for layer, head in ((0, 1), (2, 0)):
        attention = after.encoder.blocks[layer].attention
        assert not attention.out.weight.unflatten(1, (3, -1))[:, head].any()
        assert not attention.qkv.weight.unflatten(0, (3, 3, -1))[2, head].any()
        assert not attention.qkv.bias.view(3, 3, -1)[2, head].any()
    weights = [m.encoder.blocks[0].attention.out.weight for m in (before, after)]
    assert not torch.equal(*weights)


def test_prune_keeps_layers_in_order(tuned: Path, tmp_path: Path) -> None:
    found = prune(tuned, dev=rows(24), out=tmp_path / "out", layers=[1, 3])
    assert found["layers"] == [1, 3]
    old, new = load(tuned).model.state_dict(), load(tmp_path / "out").model.state_dict()
    assert load(tmp_path / "out").model.config.layers == 2
    for name, weight in new.items():
        other = name.replace("blocks.1.", "blocks.2.")
        assert torch.equal(weight, old[other]), name


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "expected exactly one of count"),
        ({"count": 2, "layers": [1], "data": rows(4)}, "expected exactly one of count"),
        ({"count": 7, "data": rows(4)}, "count: must be from 1 to 6, got 7"),
        ({"count": 0, "data": rows(4)}, "count: must be from 1 to 6, got 0"),
        ({"count": 2}, "count= and data= require each other"),
        ({"layers": [1], "data": rows(4)}, "count= and data= require each other"),
        ({"heads": [(1, 1), (1, 2), (1, 3)]}, "layer 1 must keep at least one head"),
        ({"heads": [(4, 1)]}, "heads must be LAYER.HEAD from 1.1 to 3.3, got 4.1"),
        ({"layers": [2, 1]}, r"ascending numbers from 1 to 3, got \[2, 1\]"),
        ({"layers": [4]}, r"got \[4\]"),
    ],
)
def test_rejected_pruning_writes_nothing(
    parts: dict[str, object], message: str, tuned: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        prune(tuned, dev=rows(8), out=tmp_path / "out", **parts)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_shared_layers_are_pruned_together() -> None:
    model = tiny_model(
        20,
        family=ALBERT,
        layers=4,
        layer_sharing=(0, 0, 1, 1),
        hidden=8,
        embedding=4,
        intermediate=8,
    )
    assert count_prunable_heads(model) == 2
    pruned = without_heads(model, [(2, 1)])
    assert not pruned.encoder.blocks[1].attention.out.weight[:, :4].any()
    with pytest.raises(ConfigError, match="share weights"):
        keep_layers(model, [1])


def test_prune_command_removes_heads(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["edit", "prune", str(tuned), "--dev", str(file(tmp_path / "dev.tsv"))]
    assert cli.run([*words, "--head", "1.2", "--head", "2.3", "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["heads"] == [[1, 2], [2, 3]]
    assert found["before"]["rows"] == 24
    assert cli.run([*words, "--head", "x", "--out", str(tmp_path / "no")]) == 2
    assert "form LAYER.HEAD" in capsys.readouterr().err
    same = ["--data", str(tmp_path / "dev.tsv"), "--count", "1", "--out", str(tmp_path / "no")]
    assert cli.run([*words, *same]) == 2
    assert "--data: must differ from --dev" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
