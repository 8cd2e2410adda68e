"""An exported classifier answers as its model does, and without torch."""

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
"""A command; 77 where torch was imported."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "model"
    labels = ("no", "yes", "so")
    return tiny_folder(place, tiny_tokenizer("abcd"), "classify", labels=labels, length=8)


@pytest.fixture(scope="module")
def exported(model: Path) -> Path:
    export(model, out=model.parent / "exported", task="classify")
    return model.parent / "exported"


def test_the_same_answers(model: Path, exported: Path) -> None:
    ours, answer = bertkit.pipeline("classify", model), ExportedAnswer(exported)
    texts = [*TEXTS, ("a", "b c")]
    for one, other in zip(answer(texts[:3]), ours(texts[:3]), strict=True):
        assert isinstance(one, LabelAnswer)
        assert (one.label, one.truncated) == (other.label, other.truncated)
        assert one.scores == pytest.approx(other.scores, abs=1e-5)
    assert answer(texts[3]).scores == pytest.approx(ours(texts[3]).scores, abs=1e-5)
    assert answer("a b c d a b c d", long="truncate").truncated
    with pytest.raises(DataError, match="10 tokens, but the limit is 8"):
        answer("a b c d a b c d")
    assert [a.label for a in bertkit.predict(exported, TEXTS)] == [a.label for a in ours(TEXTS)]


def test_several_labels_are_probabilities_too(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    place = tmp_path / "model"
    place.mkdir()
    for file in model.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    (place / "config.json").write_text(json.dumps(config))
    export(place, out=tmp_path / "exported", task="classify")
    one, other = ExportedAnswer(tmp_path / "exported")("a b"), bertkit.predict(place, "a b")[0]
    assert one.scores == pytest.approx(other.scores, abs=1e-5)
    assert 0.9 < sum(one.scores.values()) != pytest.approx(1.0)


def test_predict_imports_no_torch(model: Path, exported: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text\na b\nc\n", encoding="utf-8")
    for asked in (["a b", "c"], ["--file", str(rows)]):
        words = [sys.executable, "-c", WITHOUT_TORCH, "predict", str(exported), *asked]
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr
        said = [json.loads(line)["label"] for line in done.stdout.splitlines()]
        assert said == [answer.label for answer in bertkit.predict(model, ["a b", "c"])]
    words[4] = str(model)  # the check itself: with the model's own folder it must fail
    assert subprocess.run(words, capture_output=True, check=False).returncode == 77


def test_what_it_cannot(
    model: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="was exported for classify; remove it"):
        ExportedAnswer(exported, "tag")
    export(model, out=tmp_path / "vectors")
    with pytest.raises(CheckpointError, match="has no head, but predict requires"):
        ExportedAnswer(tmp_path / "vectors")
    assert cli.run(["predict", str(exported), "a", "--precision", "int8"]) == 2
    assert "precision = int8 is not supported" in capsys.readouterr().err
