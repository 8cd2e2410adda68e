"""Exported classifiers match the model's predictions without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit import cli
from bertkit.errors import CheckpointError, ConfigError, DataError
from bertkit.extensions.export.export import export
from bertkit.extensions.export.exported_task import ExportedAnswer
from bertkit.tasks.labeled_text import LabelAnswer

for _name in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(_name, reason="pip install 'bertkit[export]'")

TEXTS = ["a", "b c", "d d d a b"]

WITHOUT_TORCH = (
    "import sys; from bertkit import cli; code = cli.run(sys.argv[1:]); "
    "sys.exit(code or 77 * ('torch' in sys.modules))"
)
"""Code that runs a command and exits with 77 if torch was imported."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    labels = ("no", "yes", "so")
    return tiny_folder(path, tiny_tokenizer("abcd"), "classify", labels=labels, length=8)


@pytest.fixture(scope="module")
def exported(model: Path) -> Path:
    export(model, out=model.parent / "exported", task="classify")
    return model.parent / "exported"


def test_exported_classifier_matches_model(model: Path, exported: Path) -> None:
    classify, exported_classify = bertkit.pipeline("classify", model), ExportedAnswer(exported)
    texts = [*TEXTS, ("a", "b c")]
    for actual, expected in zip(exported_classify(texts[:3]), classify(texts[:3]), strict=True):
        assert isinstance(actual, LabelAnswer)
        assert (actual.label, actual.truncated) == (expected.label, expected.truncated)
        assert actual.scores == pytest.approx(expected.scores, abs=1e-5)
    assert exported_classify(texts[3]).scores == pytest.approx(classify(texts[3]).scores, abs=1e-5)
    assert exported_classify("a b c d a b c d", long="truncate").truncated
    with pytest.raises(DataError, match="10 tokens, but the limit is 8"):
        exported_classify("a b c d a b c d")
    assert [a.label for a in bertkit.predict(exported, TEXTS)] == [a.label for a in classify(TEXTS)]


def test_exported_multilabel_scores_match_model(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    directory = tmp_path / "model"
    directory.mkdir()
    for file in model.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    (directory / "config.json").write_text(json.dumps(config))
    export(directory, out=tmp_path / "exported", task="classify")
    actual, expected = (
        ExportedAnswer(tmp_path / "exported")("a b"),
        bertkit.predict(directory, "a b")[0],
    )
    assert actual.scores == pytest.approx(expected.scores, abs=1e-5)
    assert 0.9 < sum(actual.scores.values()) != pytest.approx(1.0)


def test_predict_does_not_import_torch(model: Path, exported: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text\na b\nc\n", encoding="utf-8")
    for inputs in (["a b", "c"], ["--file", str(rows)]):
        args = [sys.executable, "-c", WITHOUT_TORCH, "predict", str(exported), *inputs]
        process = subprocess.run(args, capture_output=True, check=False, text=True)
        assert process.returncode == 0, process.stderr
        labels = [json.loads(line)["label"] for line in process.stdout.splitlines()]
        assert labels == [prediction.label for prediction in bertkit.predict(model, ["a b", "c"])]
    args[4] = str(model)  # Control: the model directory itself requires torch.
    assert subprocess.run(args, capture_output=True, check=False).returncode == 77


def test_exported_task_rejects_unsupported_requests(
    model: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="was exported for classify; remove this"):
        ExportedAnswer(exported, "tag")
    export(model, out=tmp_path / "vectors")
    with pytest.raises(CheckpointError, match="has no head, but predict requires"):
        ExportedAnswer(tmp_path / "vectors")
    assert cli.run(["predict", str(exported), "a", "--precision", "int8"]) == 2
    assert "do not support precision = int8" in capsys.readouterr().err
