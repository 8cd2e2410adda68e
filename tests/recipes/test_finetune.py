"""Fine-tuning: results, best epoch, resuming, adapters, and saved files."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import shutil
import signal
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from tests.factories import tiny_folder

import bertkit
from bertkit import cli
from bertkit.checkpoint.directory import load
from bertkit.data.question_answering import Question
from bertkit.errors import CheckpointError, ConfigError, DataError, StorageError, TrainingError
from bertkit.extensions.classic.families.lstm import LSTM_LM
from bertkit.families import BERT, Family
from bertkit.models.heads import CRFTagger
from bertkit.models.lora import LoRA, depths
from bertkit.recipes import finetune as recipe
from bertkit.recipes import finetune_report
from bertkit.recipes.evaluate import evaluate
from bertkit.recipes.finetune import Finetune, default_learning_rate, finetune
from bertkit.tasks import classify, similarity, tag
from bertkit.tasks.answer import Answer
from bertkit.tasks.classify import Classify
from bertkit.tasks.labeled_text import LabelExample
from bertkit.tasks.similarity import Similarity
from bertkit.tasks.task import run_head
from bertkit.text.vocabulary_training import train as train_tokenizer
from bertkit.training.epochs import read_scores
from bertkit.training.loop import steps
from bertkit.training.task_model import load_for_finetuning

SETTINGS = Finetune(epochs=4, batch_size=8, learning_rate=5e-3, precision="fp32", warmup=0.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    tokenizer = train_tokenizer(english[:5], kind="wordpiece", size=300)
    folder = tmp_path_factory.mktemp("base") / "model"
    return tiny_folder(folder, tokenizer, "mlm", "nsp", hidden=32, intermediate=64)


def rows(count: int, first: int = 0) -> list[LabelExample]:
    """Return texts about a class or a loop, with their labels."""
    found = []
    for i in range(first, first + count):
        word, label = ("class", "thing") if i % 2 else ("loop", "doing")
        found.append(
            LabelExample(f"the {word} number {i} of the statement", None, label, f"rows:{i + 2}")
        )
    return found


def tsv(path: Path, examples: list[LabelExample]) -> Path:
    lines = [f"{row.text}\t{row.label}\n" for row in examples]
    path.write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tuned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("tuned") / "out"
    settings = Finetune(
        epochs=8, batch_size=8, learning_rate=1e-2, precision="fp32", weight_decay=0.0
    )
    train, dev = rows(120), rows(16, 200)
    scores = finetune(Classify, base, train=train, dev=dev, out=out, settings=settings)
    return out, scores


def test_finetune_learns_and_records_scores(tuned: tuple[Path, dict[str, float]]) -> None:
    out, scores = tuned
    assert scores["accuracy"] == 1.0
    record = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert record["dev"] == scores
    counts = {name: data["rows"] for name, data in record["data"].items()}
    assert counts == {"train": 120, "dev": 16}
    assert record["settings"]["learning_rate"] == 1e-2
    assert load(out).labels == ("doing", "thing")


def test_data_frames_and_keywords_match_files_and_settings(base: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    train, dev = (
        pandas.DataFrame({"body": [e.text for e in examples], "about": [e.label for e in examples]})
        for examples in (rows(40), rows(8, 200))
    )
    columns = {"text_column": "body", "label_column": "about"}
    keywords: dict[str, Any] = {"epochs": 2, "learning_rate": 5e-3, "class_weights": "balanced"}
    recorded = []
    scores = finetune(
        "classify", base, train=train, dev=dev, out=tmp_path / "one", on_epoch=lambda epoch,
        found: recorded.append((epoch, found["accuracy"])), **columns, **keywords,
    )  # fmt: skip
    record = json.loads((tmp_path / "one" / "scores.json").read_text(encoding="utf-8"))
    assert recorded == [(e["epoch"], e["accuracy"]) for e in record["epochs"]]
    files = {
        name: tsv(tmp_path / f"{name}.tsv", examples)
        for name, examples in (("train", rows(40)), ("dev", rows(8, 200)))
    }
    settings = {"epochs": 2, "learning_rate": 5e-3}
    options = {"class_weights": "balanced"}
    same = finetune(
        "classify", base, out=tmp_path / "two", settings=settings, options=options, **files
    )
    assert scores == same
    first, second = (load_file(tmp_path / out / "model.safetensors") for out in ("one", "two"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    named = json.loads((tmp_path / "one" / "config.json").read_text())["bertkit"]["task"]["columns"]
    assert named == {"text_column": "body", "label_column": "about"}
    scored = bertkit.evaluate(tmp_path / "one", dev.assign(remark=dev["body"]))
    assert scored["accuracy"] == scores["accuracy"]
    answers = bertkit.predict(tmp_path / "one", dev, text_column="body")
    table = bertkit.frame(answers, dev)
    assert (table["label"] == table["about"]).mean() == pytest.approx(scores["accuracy"])


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"learning_rat": 1.0}, "learning_rat: finetune has no such .* mean 'learning_rate'"),
        ({"epochs": 0}, "^epochs: expected `int` >= 1"),
        ({"track": "wandbb"}, "^track: invalid enum value 'wandbb'; did you mean 'wandb'"),
        ({"lora": {"rnk": 8}}, r"^lora\.rnk: no such setting; did you mean 'rank'"),
        ({"lora": {"alpha": 8.0}}, "lora.rank is 0, so the other settings of lora have no effect"),
        ({"settings": {"epoch": 2}}, "^epoch: no such setting; did you mean 'epochs'"),
        ({"text_column": "bdy"}, "^train: no column 'bdy'; did you mean 'body'"),
        (
            {"text_column": "body", "label_column": "wh"},
            "^train: no column 'wh'; known: 'body', 'about'",
        ),
    ],
)
def test_finetune_rejects_unknown_keywords_and_columns(
    base: Path, tmp_path: Path, keywords: dict[str, Any], message: str
) -> None:
    table = {"body": ["a film", "a book"], "about": ["x", "y"]}
    with pytest.raises((ConfigError, DataError), match=message):
        finetune("classify", base, train=table, dev=table, out=tmp_path / "no", **keywords)
    assert not (tmp_path / "no").exists()


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)
def test_tracker_records_losses_and_scores(base: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = replace(SETTINGS, epochs=2, track="tensorboard")
    train, dev = rows(16), rows(8, 200)
    scores = finetune(Classify, base, train=train, dev=dev, out=tmp_path / "out", settings=settings)
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("loss")] == [1, 2, 3, 4]
    recorded = [e.value for e in events.Scalars("scores/accuracy")]
    assert max(recorded) == pytest.approx(scores["accuracy"])


def test_logits_match_hugging_face(tuned: tuple[Path, dict[str, float]]) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    out, _ = tuned
    texts = [row.text for row in rows(6, 200)]
    hf_model = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    encoded = transformers.AutoTokenizer.from_pretrained(out)(
        texts, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        logits = hf_model(**encoded).logits
    ready = bertkit.pipeline("classify", out)
    rows_of = [LabelExample(text) for text in texts]
    features = ready.task.features(rows_of, ready.tokenizer, 32, long="error", labeled=False)
    bertkit_logits = np.concatenate(run_head(ready.task, ready.engine, features))
    torch.testing.assert_close(torch.from_numpy(bertkit_logits), logits, atol=1e-5, rtol=0.0)
    assert hf_model.config.id2label == {0: "doing", 1: "thing"}
    assert abs(bertkit_logits[0] - logits[1].numpy()).max() > 1e-3  # Control: another row differs.


def test_evaluate_and_predict_agree(
    tuned: tuple[Path, dict[str, float]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, scores = tuned
    file = tsv(tmp_path / "dev.tsv", rows(16, 100))
    assert cli.run(["evaluate", str(out), str(file)]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert {k: evaluated[k] for k in ("accuracy", "f1", "matthews")} == pytest.approx(
        {k: scores[k] for k in ("accuracy", "f1", "matthews")}
    )
    assert evaluated["rows"] == 16
    assert cli.run(["predict", str(out), "--file", str(file)]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    actual = [row.label for row in rows(16, 100)]
    right = sum(a["label"] == b for a, b in zip(answers, actual, strict=True))
    assert right / 16 == evaluated["accuracy"]
    assert all(sum(a["scores"].values()) == pytest.approx(1.0) for a in answers)


@pytest.mark.parametrize(
    ("hidden", "rate"),
    [(1024, 5e-5), (768, 5e-5), (512, 7.5e-5), (384, 1e-4), (256, 1.5e-4), (128, 3e-4), (32, 3e-4)],
)
def test_default_learning_rate_decreases_with_hidden_size(hidden: int, rate: float) -> None:
    """Tasks that compare the embeddings of a step use a constant learning rate."""
    labels, vectors = Classify.from_examples(rows(4), classify.ClassifyOptions()), Similarity()
    assert default_learning_rate(labels, hidden) == pytest.approx(rate, rel=1e-12)
    assert default_learning_rate(vectors, hidden) == 5e-5
    assert default_learning_rate(labels, hidden, 8) == pytest.approx(10 * rate, rel=1e-12)
    assert default_learning_rate(vectors, hidden, 8) == 5e-5


def test_epoch_with_nan_score_is_never_best(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(*accuracies: float) -> dict[str, float]:
        left = iter(accuracies)
        scores = lambda *_: {"accuracy": next(left), "f1": math.nan}  # noqa: E731
        monkeypatch.setattr(Classify, "score", scores)
        settings = replace(SETTINGS, epochs=len(accuracies))
        out = tmp_path / str(accuracies)
        given = {"train": rows(16), "dev": rows(4), "settings": settings}
        return finetune(Classify, base, **given, out=out)

    assert scored(math.nan, 0.25, 0.125)["epoch"] == 2
    record = read_scores(tmp_path / str((math.nan, 0.25, 0.125)) / "scores.json")
    assert record["dev"] == {"accuracy": 0.25, "epoch": 2}
    assert [epoch.get("accuracy") for epoch in record["epochs"]] == [None, 0.25, 0.125]
    with pytest.raises(TrainingError, match="dev: accuracy is not finite in any epoch; reduce"):
        scored(math.nan, math.nan)


def test_repeated_epoch_replaces_its_saved_weights(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated epoch can reach a lower score, for example on another machine. The model
    directory must then contain the weights and the score of the repeated epoch.
    """
    given: dict[str, Any] = {"train": rows(16), "dev": rows(4), "out": tmp_path / "out"}
    given["settings"] = replace(SETTINGS, epochs=3, save_minutes=60.0)

    def scored(accuracy: float) -> None:
        monkeypatch.setattr(Classify, "score", lambda *_: {"accuracy": accuracy})

    def stop(epoch: int, _: object) -> None:
        if epoch == 1:
            signal.raise_signal(signal.SIGINT)
        scored(0.5)
        if epoch == 2:
            raise ZeroDivisionError

    scored(0.25)
    with pytest.raises(KeyboardInterrupt):
        finetune(Classify, base, **given, on_epoch=stop)
    with pytest.raises(ZeroDivisionError):
        finetune(Classify, base, **given, on_epoch=stop, resume=True)
    scored(0.125)

    def stop_again(epoch: int, _: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        finetune(Classify, base, **given, on_epoch=stop_again, resume=True)
    scored(0.0625)  # The third epoch is worse than the saved epoch.
    # Control: this file is not part of the model.
    (tmp_path / "out" / "notes.json").write_text("{}")
    result = finetune(Classify, base, **given, resume=True)
    assert result == {"accuracy": 0.125, "epoch": 2}


def test_loaded_model_gets_a_missing_head(base: Path, tmp_path: Path) -> None:
    settings, data = replace(SETTINGS, epochs=1), {"train": rows(16), "dev": rows(4)}
    task = Classify.from_examples(rows(4), classify.ClassifyOptions())
    heads = []
    for model in (base, load(base)):
        torch.manual_seed(0)
        heads.append(load_for_finetuning(model, task, None)[0].model.heads["classify"].state_dict())
    assert all(torch.equal(weight, heads[1][name]) for name, weight in heads[0].items())
    pooler = load(base).model.heads["nsp"].state_dict()["pooler.transform.dense.weight"]
    assert torch.equal(heads[1]["pooler.transform.dense.weight"], pooler)
    scores = finetune(Classify, load(base), **data, out=tmp_path / "one", settings=settings)
    assert set(scores) >= {"accuracy", "f1"}
    other = [LabelExample(row.text, None, f"not {row.label}", row.where) for row in rows(16)]
    tuned = load(tmp_path / "one")
    finetune(Classify, tuned, train=other, dev=other, out=tmp_path / "two", settings=settings)
    assert load(tmp_path / "two").labels == ("not doing", "not thing")
    assert tuned.labels == ("doing", "thing")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the settings of the optimizer."""
    settings: dict[str, Any] = {}
    real = recipe.adamw
    monkeypatch.setattr(
        recipe, "adamw", lambda weights, **given: real(weights, **(settings.update(given) or given))
    )
    return settings


@pytest.mark.parametrize(("rank", "rate"), [(0, 1e-4), (2, 1e-3)])
def test_crf_learning_rate_is_independent_of_adapters(
    rank: int, rate: float, base: Path, tmp_path: Path, recorded: dict[str, Any]
) -> None:
    settings = replace(SETTINGS, epochs=1, learning_rate=rate, lora=LoRA(rank=rank))
    finetune(Classify, base, train=rows(8), dev=rows(4), out=tmp_path / "out", settings=settings)
    assert recorded["learning_rate"] == rate
    assert recorded["learning_rate"] * recorded["crf_rate"] == pytest.approx(0.01)


def test_missing_learning_rate_uses_the_default(
    base: Path, tmp_path: Path, recorded: dict[str, Any]
) -> None:
    settings, out = replace(SETTINGS, epochs=1, learning_rate=None), tmp_path / "out"
    data: dict[str, Any] = {"train": rows(16), "dev": rows(4), "out": out, "settings": settings}
    finetune(Classify, base, **data)
    assert recorded["learning_rate"] == 3e-4
    requested, used = (
        json.loads((out / file).read_text(encoding="utf-8"))["settings"]["learning_rate"]
        for file in ("run.json", "scores.json")
    )
    assert (requested, used) == (None, 3e-4)
    assert "- learning_rate = 0.0003\n" in (out / "README.md").read_text(encoding="utf-8")
    finetune(Classify, base, **data, resume=True)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.bf16)])
def test_embeddings_of_unused_tokens_are_unchanged(
    precision: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other weights match training of the complete embedding."""
    table = "bert.embeddings.word_embeddings.weight"

    def learned(name: str, weight_decay: float) -> dict[str, torch.Tensor]:
        settings = replace(
            SETTINGS, precision=precision, learning_rate=1e-3, weight_decay=weight_decay
        )
        out = tmp_path / f"{name}-{weight_decay}"
        finetune("classify", base, train=rows(40), dev=rows(8, 200), out=out, settings=settings)
        return load_file(out / "model.safetensors")

    used, decayed = learned("rows", 0.0), learned("rows", 1.0)
    monkeypatch.setattr(recipe, "find_used_rows", lambda *given: {})
    every, control = learned("whole", 0.0), learned("whole", 1.0)
    assert all(torch.allclose(used[name], every[name], atol=2e-5) for name in every)
    before, tokenizer = load_file(base / "model.safetensors")[table], load(base).tokenizer
    shown = sorted({int(i) for row in rows(40) for i in tokenizer.encode(row.text).ids})
    assert 5 < len(shown) < len(before)
    assert (decayed[table] != before).any(1).nonzero().flatten().tolist() == shown
    assert (control[table] != before).any(1).all()  # Weight decay would change the other rows.


def test_best_epoch_is_kept_and_reported(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The saved model is the second epoch if later scores are lower."""
    given = iter([0.5, 0.75, 0.6, 0.7])
    kept: list[bytes] = []

    def score(self: Any, outputs: Any, examples: Any) -> dict[str, float]:
        file = tmp_path / "out" / "model.safetensors"
        kept.append(file.read_bytes() if file.exists() else b"")
        return {"accuracy": next(given)}

    monkeypatch.setattr(Classify, "score", score)
    best = finetune(
        Classify, base, train=rows(16), dev=rows(4), out=tmp_path / "out", settings=SETTINGS
    )
    assert best == {"accuracy": 0.75, "epoch": 2}
    final = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert kept[0] == b""
    assert kept[1] != kept[2] == kept[3] == final
    assert "out contains epoch 2, the best by accuracy" in capsys.readouterr().err


def test_best_epoch_is_kept_after_an_error(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter([{"accuracy": 0.5}])

    def score(self: Any, outputs: Any, examples: Any) -> dict[str, float]:
        try:
            return next(calls)
        except StopIteration:
            raise DataError("the disk fell over") from None

    monkeypatch.setattr(Classify, "score", score)
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"fell over; .*out contains epoch 1, the best"):
        finetune(Classify, base, train=rows(16), dev=rows(4), out=out, settings=SETTINGS)
    assert load(out).labels == ("doing", "thing")


def test_truncated_examples_are_reported(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = [*rows(4), LabelExample("rain " * 99, None, "doing")]
    settings = Finetune(epochs=1, batch_size=8, precision="fp32")
    finetune(Classify, base, train=examples, dev=rows(4), out=tmp_path / "out", settings=settings)
    err = capsys.readouterr().err
    assert "train: 1 examples were truncated to 32 tokens" in err
    assert err.index("epoch 1: ") < err.index("warning: dev: all predictions are ")


def test_pipeline_rejects_an_untrained_head(base: Path) -> None:
    loaded = load(base, heads=("classify",), labels=("doing", "thing"))
    with pytest.raises(CheckpointError, match="was never trained"):
        bertkit.pipeline("classify", loaded)


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def stopping(*words: Any, at: int, **named: Any) -> Any:
    """Yield the steps of a run, and stop after one of them, whose checkpoint is saved."""
    for step in steps(*words, **named):
        yield step
        if step.number == at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("gradually", [False, True])
def test_resumed_run_reaches_the_same_weights(
    gradually: bool, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run uses dropout, and is stopped in its first and in its second epoch."""
    settings = Finetune(
        epochs=2, batch_size=8, learning_rate=5e-3, precision="fp32", save_minutes=0.0,
        gradual_unfreezing=gradually,
    )  # fmt: skip
    data = {"train": rows(24), "dev": rows(4)}
    whole = finetune(Classify, base, **data, out=tmp_path / "whole", settings=settings)
    assert not (tmp_path / "whole" / "checkpoints").exists()

    for at in (1, 4):
        out = tmp_path / f"stopped-{at}"
        monkeypatch.setattr(recipe, "steps", partial(stopping, at=at))
        with pytest.raises(KeyboardInterrupt):
            finetune(Classify, base, **data, out=out, settings=settings)
        monkeypatch.setattr(recipe, "steps", steps)
        if at == 1:
            other = replace(settings, learning_rate=1e-3)
            with pytest.raises(ConfigError, match=r"learning_rate \(was 0\.005\): changed since"):
                finetune(Classify, base, **data, out=out, settings=other, resume=True)
            with pytest.raises(ConfigError, match=r"already exists.*resume=True"):
                finetune(Classify, base, **data, out=out, settings=settings)
        again = finetune(Classify, base, **data, out=out, settings=settings, resume=True)
        assert again == whole
        assert weights_of(out) == weights_of(tmp_path / "whole")
        assert (out / "errors.jsonl").read_bytes() == (tmp_path / "whole/errors.jsonl").read_bytes()
    assert finetune(Classify, base, **data, out=out, settings=settings, resume=True) == whole
    with pytest.raises(ConfigError, match="no run to resume"):
        finetune(Classify, base, **data, out=tmp_path / "none", settings=settings, resume=True)


def test_scores_with_tuned_threshold_have_best_prefix(base: Path, tmp_path: Path) -> None:
    given = [
        Question("a class ?", "the class of", (("class", 4),) if i % 2 else (), f"q{i}")
        for i in range(8)
    ]
    settings = Finetune(epochs=2, batch_size=4, learning_rate=1e-3, precision="fp32")
    chosen: list[dict[str, Any]] = [{}, {"null_threshold": 0.0}]
    for name, options in zip(("tuned", "fixed"), chosen, strict=True):
        out = tmp_path / name
        data: dict[str, Any] = {"train": given, "dev": given, "settings": settings}
        found = finetune("answer", base, **data, options=options, out=out)
        kept = json.loads((out / "scores.json").read_text(encoding="utf-8"))
        begins = {True: "best_", False: ""}[name == "tuned"]
        assert kept["metric"] == f"{begins}f1"
        assert {"exact", "f1"} <= {key.removeprefix("best_") for key in found}
        assert all(key.startswith(begins) or key == "epoch" for key in kept["dev"])
        assert not begins or "f1" not in kept["dev"]
        task = Answer.restore((), load(out).settings)
        assert (task.options.null_threshold == 0.0) == (name == "fixed")
        again = evaluate(bertkit.pipeline("answer", out, precision="fp32"), given)
        assert again["f1"] == pytest.approx(kept["dev"][f"{begins}f1"], abs=1e-6)
        card = (out / "README.md").read_text(encoding="utf-8")
        assert ("the threshold were selected on dev" in card) == (name == "tuned")


def sentences(count: int) -> list[tag.Example]:
    text, spans = "the class number of", [(0, 3), (4, 9), (10, 16), (17, 19)]
    return [
        tag.Example(text, spans, ["O", "B-x", "I-x", "O"], f"rows:{i + 1}") for i in range(count)
    ]


def test_crf_uses_a_high_learning_rate(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Finetune(
        epochs=4,
        batch_size=4,
        learning_rate=1e-3,
        layer_decay=0.9,
        frozen_layers=1,
        precision="fp32",
    )
    given: dict[str, Any] = {"settings": settings, "options": {"crf": True}}
    given |= {"train": sentences(8), "dev": sentences(2)}
    # The last epoch is the best.
    scored = iter(range(100))
    monkeypatch.setattr(tag.Tag, "score", lambda *_: {"f1": float(next(scored))})
    finetune(tag.Tag, base, **given, out=tmp_path / "whole")
    head = load(tmp_path / "whole").model.heads["crf"]
    assert isinstance(head, CRFTagger)
    # AdamW cannot change a weight by more in 8 steps at the rate of other weights.
    assert head.crf.transitions.abs().max() > 8 * settings.learning_rate


@pytest.mark.bf16
def test_scores_of_bf16_training_match_the_saved_model(base: Path, tmp_path: Path) -> None:
    """The fp32 master weights are saved."""
    rows_of = [LabelExample(f"the loop {i}", None, f"{i % 7 + 0.5}") for i in range(24)]
    settings = replace(SETTINGS, precision="bf16", epochs=2)
    given: dict[str, Any] = {"train": rows_of, "dev": rows_of, "settings": settings}
    scores = finetune(Classify, base, out=tmp_path / "out", **given)
    found = evaluate(bertkit.pipeline("classify", tmp_path / "out"), rows_of)
    assert found["pearson"] == pytest.approx(scores["pearson"], abs=1e-6)


def test_run_resumes_after_a_full_disk(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, epochs=2, save_minutes=0.0)
    data = {"train": rows(16), "dev": rows(4)}
    whole = finetune(Classify, base, **data, out=tmp_path / "whole", settings=settings)

    def full(*_: Any) -> None:
        raise StorageError("errors.jsonl: the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(finetune_report, "write_mistakes", full)
        with pytest.raises(StorageError, match="the disk is full"):
            finetune(Classify, base, **data, out=tmp_path / "out", settings=settings)
    assert (tmp_path / "out" / "checkpoints").exists()
    out = tmp_path / "out"
    assert finetune(Classify, base, **data, out=out, settings=settings, resume=True) == whole
    assert weights_of(out) == weights_of(tmp_path / "whole")


def test_run_records_a_hash_of_its_data(base: Path, tmp_path: Path) -> None:
    settings = Finetune(epochs=1, batch_size=8, precision="fp32")
    hashes = []
    for name, count in (("a", 8), ("b", 8), ("c", 10)):
        (tmp_path / name).mkdir()
        train = tsv(tmp_path / name / "train.tsv", rows(count))
        finetune(
            Classify, base, train=train, dev=train, out=tmp_path / f"out-{name}", settings=settings
        )
        kept = json.loads((tmp_path / f"out-{name}" / "run.json").read_text(encoding="utf-8"))
        hashes.append(kept["data"]["train"]["sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_patience_stops_a_run_early(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = iter([0.5, 0.75, 0.6, 0.75])
    monkeypatch.setattr(Classify, "score", lambda *_: {"accuracy": next(given)})
    settings = replace(SETTINGS, patience=1)
    out = tmp_path / "out"
    best = finetune(Classify, base, train=rows(16), dev=rows(4), out=out, settings=settings)
    assert best == {"accuracy": 0.75, "epoch": 2}
    kept = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert [epoch["accuracy"] for epoch in kept["epochs"]] == [0.5, 0.75, 0.6]


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.bf16)])
def test_frozen_layers_are_not_updated(base: Path, tmp_path: Path, precision: str) -> None:
    settings = replace(SETTINGS, frozen_layers=1, precision=precision)
    finetune(Classify, base, train=rows(16), dev=rows(4), out=tmp_path / "out", settings=settings)
    before, after = load(base).model.state_dict(), load(tmp_path / "out").model.state_dict()
    for name, weight in before.items():
        if name.startswith("encoder."):
            assert torch.equal(weight, after[name]), name
    pooler = (
        "heads.nsp.pooler.transform.dense.weight",
        "heads.classify.pooler.transform.dense.weight",
    )
    assert not torch.equal(before[pooler[0]], after[pooler[1]])
    too_many = replace(SETTINGS, frozen_layers=2)
    with pytest.raises(ConfigError, match="frozen_layers must be at most 1, got 2"):
        finetune(Classify, base, train=rows(4), dev=rows(4), out=tmp_path / "no", settings=too_many)
    pairs = [similarity.SimilarityExample((f"a {i}", f"class {i}")) for i in range(4)]
    with pytest.raises(ConfigError, match="frozen_layers = 1 leaves no trainable weights"):
        finetune(Similarity, base, train=pairs, dev=pairs, out=tmp_path / "no", settings=settings)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.bf16)])
@pytest.mark.parametrize("family", [BERT, LSTM_LM], ids=lambda family: family.name)
def test_gradual_unfreezing_trains_one_more_layer_per_epoch(
    family: Family,
    precision: str,
    english: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The head is trained first, then one more layer per epoch from the top. Frozen layers do
    not change, even with weight decay.
    """
    writes = family is LSTM_LM
    tokenizer = train_tokenizer(
        english[:5], kind="bpe" if writes else "wordpiece", size=300,
        use="write" if writes else "encode",
    )  # fmt: skip
    shape: dict[str, Any] = {"family": family, "hidden": 32, "layers": 3}
    folder = tiny_folder(tmp_path / "m", tokenizer, "lm" if writes else "mlm", **shape)
    before = load(folder).model.state_dict()
    better = itertools.count()  # The last epoch is the best and is kept.
    monkeypatch.setattr(Classify, "score", lambda *given: {"accuracy": next(better)})

    def moved(epochs: int, *, gradually: bool) -> set[int]:
        """Return the depths whose weights changed."""
        out = tmp_path / f"{epochs}-{gradually}"
        settings = replace(
            SETTINGS, epochs=epochs, gradual_unfreezing=gradually, precision=precision
        )
        finetune(Classify, folder, train=rows(8), dev=rows(4), out=out, settings=settings)
        after = load(out).model.state_dict()
        depth_of = depths([name for name in before if name.startswith("encoder.")])
        return {
            depth
            for name, depth in depth_of.items()
            if not torch.equal(before[name], after[name][: len(before[name])])
        }

    for epochs in (2, 4):
        assert moved(epochs, gradually=True) == {n for n in range(4) if n > 4 - epochs}
    assert moved(1, gradually=False) == {0, 1, 2, 3}  # Control.


def logits(folder: Path) -> np.ndarray[Any, Any]:
    ready = bertkit.pipeline("classify", bertkit.load(folder), precision="fp32")
    examples = [LabelExample(row.text) for row in rows(8, 200)]
    features = ready.task.features(examples, ready.tokenizer, 32, long="error", labeled=False)
    return np.concatenate(run_head(ready.task, ready.engine, features))


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.bf16)])
def test_lora_trains_adapters_and_keeps_the_model(
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    precision: Any,
) -> None:
    """Checkpoints contain only adapters and the head; a resumed run reaches the same weights."""
    lora = LoRA(rank=2, dropout=0.1, layers=("qkv", "up"))
    settings = replace(SETTINGS, epochs=6, lora=lora, precision=precision)
    data: dict[str, Any] = {"train": rows(120), "dev": rows(16, 200)}
    out = tmp_path / "whole"
    scores = finetune(Classify, base, **data, out=out, settings=settings)
    assert scores["accuracy"] > 0.75  # Random predictions reach 0.5.
    before, after = load(base).model.state_dict(), load(out).model.state_dict()
    for name, weight in before.items():
        if name.startswith("encoder.") and name.endswith(("qkv.weight", "up.weight")):
            assert np.linalg.matrix_rank((after[name] - weight).numpy(), tol=1e-4) in range(1, 7)
        elif name.startswith("encoder."):
            assert torch.equal(weight, after[name]), name
    for part, warns in (("", False), ("adapter", True)):
        capsys.readouterr()
        assert abs(logits(out / part) - logits(out)).max() <= 1e-5
        warning = "warning: an adapter contains neither the names of labels"
        assert (warning in capsys.readouterr().err) == warns
    assert load(out / "adapter").base == base.resolve()

    monkeypatch.setattr(recipe, "steps", partial(stopping, at=8))
    again = replace(settings, save_minutes=0.0)
    with pytest.raises(KeyboardInterrupt):
        finetune(Classify, base, **data, out=tmp_path / "stopped", settings=again)
    monkeypatch.setattr(recipe, "steps", steps)
    kept = load_file(next((tmp_path / "stopped/checkpoints").glob("step-*/model.safetensors")))
    assert {name.rpartition(".")[2] for name in kept if "encoder." in name} == {"lora_a", "lora_b"}
    assert (
        finetune(Classify, base, **data, out=tmp_path / "stopped", settings=again, resume=True)
        == scores
    )
    assert weights_of(tmp_path / "stopped") == weights_of(out)
    files = [folder / "adapter/adapter_model.safetensors" for folder in (out, tmp_path / "stopped")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_resume_of_adapters_rejects_changed_frozen_weights(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    shutil.copytree(base, model)
    settings = replace(SETTINGS, lora=LoRA(rank=1), save_minutes=0.0)
    given: dict[str, Any] = {"train": rows(16), "dev": rows(4), "out": tmp_path / "out"}

    monkeypatch.setattr(recipe, "steps", partial(stopping, at=2))
    with pytest.raises(KeyboardInterrupt):
        finetune(Classify, model, **given, settings=settings)
    weights = load_file(model / "model.safetensors")
    weights["bert.embeddings.word_embeddings.weight"] += 1.0
    save_file(weights, model / "model.safetensors")
    with pytest.raises(
        CheckpointError, match="the frozen weights, which the checkpoint does not contain"
    ):
        finetune(Classify, model, **given, settings=settings, resume=True)


def test_lora_options_of_the_finetune_command(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tsv(tmp_path / "rows.tsv", rows(8))
    command = ["finetune", "classify", "--model", str(base), "--train", str(file)]
    command += ["--dev", str(file), "--epochs", "1", "--out", str(tmp_path / "out")]
    assert cli.run([*command, "--lora.rank", "2", "--lora.layers", "qkv"]) == 0
    run = json.loads((tmp_path / "out/run.json").read_text(encoding="utf-8"))
    lora = {"rank": 2, "alpha": 16.0, "dropout": 0.0, "layers": ["qkv"]}
    assert run["settings"]["lora"] == lora
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "- lora.rank = 2" in card
    assert "`adapter/` contains them in peft format" in card
    capsys.readouterr()
    assert cli.run([*command, "--lora.rank", "-1"]) == 2
    assert "lora.rank: expected `int` >= 0" in capsys.readouterr().err


def test_model_card_code_runs(tuned: tuple[Path, dict[str, float]]) -> None:
    out, _ = tuned
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "| accuracy | 1.0000 |" in card
    assert "AutoModelForSequenceClassification" in card
    code = card[card.index("```python") + 9 : card.index("```", card.index("```python") + 9)]
    names: dict[str, Any] = {}
    with chdir(out.parent):
        exec(code, names)
    assert names["pipeline"]("the loop number 3").label == "doing"
