"""Tests of a package that adds a task, a pipeline, and a model family."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.factories import SPECIALS, tiny_folder, tiny_tokenizer, write_vocab
from torch import Tensor

import bertkit
from bertkit import cli
from bertkit.errors import CheckpointError, ConfigError

EXAMPLE = Path(__file__).parents[2] / "examples" / "stars"
WORDS = ["dire", "fair", "fine"]

KEYWORDS = """
import sys, bertkit, msgspec
keywords = bertkit.pipeline("keywords", sys.argv[1])(sys.argv[2], top_k=3)
print(msgspec.json.encode(keywords).decode())
"""

Run = Callable[..., str]


@pytest.fixture(scope="module")
def run_python(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Install the package next to bertkit; return a function that runs Python with both."""
    folder = tmp_path_factory.mktemp("environment")
    # The build writes into its source directory.
    ignore = shutil.ignore_patterns("build", "*.egg-info")
    shutil.copytree(EXAMPLE, folder / "source", ignore=ignore)
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options]
    subprocess.run([*pip, "--target", folder / "site", folder / "source"], check=True, timeout=120)
    path = [folder / "site", Path(bertkit.__file__).parents[1]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}

    def run(*arguments: str | Path) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model directory."""
    shape = {"hidden": 32, "intermediate": 64, "length": 16}
    return tiny_folder(tmp_path / "model", tiny_tokenizer(WORDS), "mlm", **shape)


@pytest.fixture
def prelayernorm(tmp_path: Path) -> tuple[Path, Any]:
    """A model directory that transformers saved, and its model."""
    transformers = pytest.importorskip("transformers", reason="pip install 'bertkit[dev]'")
    config = transformers.RobertaPreLayerNormConfig(
        vocab_size=len(SPECIALS) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=34,
    )
    hf_model = transformers.RobertaPreLayerNormForMaskedLM(config).eval()
    with torch.no_grad():
        # New norms have equal weights, which would hide an exchange of two norms.
        for parameter in hf_model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = tmp_path / "prelayernorm"
    hf_model.save_pretrained(folder)
    bertkit.Tokenizer.load(write_vocab(tmp_path, WORDS, pad=1)).save(folder)
    return folder, hf_model


def hf_outputs(model: Any, ids: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the hidden states of all layers, (layers + 1, T, D), and the logits, (T, vocab)."""
    with torch.no_grad():
        outputs = model(ids[None], output_hidden_states=True)
    return torch.cat(outputs.hidden_states).numpy(), outputs.logits[0].numpy()


def test_finetune_trains_the_task(run_python: Run, model: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "rows.tsv", tmp_path / "stars"
    data.write_text("text\tlabel\ndire\t1\nfair\t2\nfine\t3\n", encoding="utf-8")
    files = ["--model", model, "--train", data, "--dev", data, "--out", out]
    scores = run_python("-m", "bertkit", "finetune", "stars", *files, "--epochs", "1")
    assert set(json.loads(scores)) == {"accuracy", "mean_error", "epoch"}
    predictions = run_python("-m", "bertkit", "predict", out, "fine fine", "dire dire")
    stars = [json.loads(line)["stars"] for line in predictions.splitlines()]
    assert len(stars) == 2
    assert set(stars) <= {1, 2, 3}


def test_pipeline_returns_keywords(run_python: Run, model: Path) -> None:
    text = "fine fair. Dire"
    keywords = json.loads(run_python("-c", KEYWORDS, model, text))
    phrases = ["fine", "fair", "fine fair", "Dire"]
    vectors = bertkit.pipeline("embed", model)([text, *phrases])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similarities = dict(zip(phrases, vectors[1:] @ vectors[0], strict=True))
    best = sorted(phrases, key=lambda phrase: -similarities[phrase])[:3]
    assert [keyword["phrase"] for keyword in keywords] == best
    for keyword in keywords:
        assert keyword["score"] == pytest.approx(similarities[keyword["phrase"]], abs=1e-6)


SERVER = """
import json, sys
from starlette.testclient import TestClient
from bertkit.extensions.serving.admission import AdmissionMiddleware
from bertkit.extensions.serving.app import install_app
from bertkit.extensions.serving.batcher import Batcher
from bertkit.extensions.serving.api_keys import ApiKeys
from bertkit.extensions.serving.limits import Limits
from bertkit.extensions.serving.metrics import Metrics
from bertkit.extensions.serving.models import ModelRegistry

metrics = Metrics()
batcher = Batcher(queue_tokens=1000, batch_tokens=100, metrics=metrics)
admission = AdmissionMiddleware(limits=Limits(), keys=ApiKeys([]), metrics=metrics)
install_app(admission, ModelRegistry([sys.argv[1]], None), batcher)
with TestClient(admission) as client:
    asked = {"inputs": ["fine fair. Dire", "fair"], "top_k": 3}
    fields = {"what": "keywords", "text": "fine fair. Dire", "top_k": "3"}
    results = {
        "json": client.post("/keywords", json=asked).json(),
        "error": client.post("/keywords", json={**asked, "top_k": 0}).json(),
        "openapi": client.get("/openapi.json").json(),
        "form": client.get("/ask", params={"what": "keywords"}).text,
        "page": client.post("/ask", data=fields).text,
    }
batcher.close()
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def served(run_python: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Responses of a server with the package."""
    pytest.importorskip("starlette", reason="pip install 'bertkit[serving]'")
    shape = {"hidden": 32, "intermediate": 64, "length": 16}
    folder = tmp_path_factory.mktemp("served") / "model"
    tiny_folder(folder, tiny_tokenizer(WORDS), "mlm", **shape)
    results: dict[str, Any] = json.loads(run_python("-c", SERVER, folder).splitlines()[-1])
    results["keywords"] = json.loads(run_python("-c", KEYWORDS, folder, "fine fair. Dire"))
    command = ["predict", folder, "fine fair. Dire", "--pipeline", "keywords", "--top-k", "3"]
    results["command"] = json.loads(run_python("-m", "bertkit", *command))
    return results


def test_server_has_a_route_of_the_pipeline(served: dict[str, Any]) -> None:
    first, second = served["json"]
    assert [keyword["phrase"] for keyword in first] == [
        keyword["phrase"] for keyword in served["keywords"]
    ]
    assert [keyword["phrase"] for keyword in second] == ["fair"]
    assert served["error"]["field"] == "top_k"


def test_command_predicts_with_the_pipeline(served: dict[str, Any]) -> None:
    assert served["command"] == served["keywords"]


def test_openapi_describes_the_types_of_the_pipeline(served: dict[str, Any]) -> None:
    schemas = served["openapi"]["components"]["schemas"]
    assert served["openapi"]["paths"]["/keywords"]["post"]["description"].startswith("Find the")
    assert set(schemas["Keyword"]["properties"]) == {"phrase", "score"}
    assert schemas["KeywordsAsk"]["properties"]["top_k"]["description"]
    assert schemas["KeywordsAsk"]["examples"] == [{"inputs": "The ship left Bergen in heavy rain."}]


def test_web_form_has_the_options_of_the_pipeline(served: dict[str, Any]) -> None:
    assert 'name="top_k"' in served["form"]
    rows = re.findall(r'<th scope="row">(.*?)</th>', served["page"])
    assert rows == [keyword["phrase"] for keyword in served["keywords"]]


def test_family_matches_transformers(
    run_python: Run, prelayernorm: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, hf_model = prelayernorm
    script = (
        "import sys, bertkit, numpy\n"
        "text, folder, states, saved = sys.argv[1:]\n"
        "model = bertkit.load(folder)\n"
        "pipeline = bertkit.pipeline('token-embeddings', model)\n"
        "numpy.save(states, pipeline(text, layer=[0, 1, 2])[0].embeddings)\n"
        "model.save(saved)"
    )
    text = "dire fair fine"
    run_python("-c", script, text, folder, tmp_path / "states.npy", tmp_path / "saved")
    ids = torch.from_numpy(bertkit.Tokenizer.load(folder).encode(text).ids)
    states, logits = hf_outputs(hf_model, ids)
    bertkit_states = np.load(tmp_path / "states.npy")
    assert abs(bertkit_states - states).max() <= 1e-5
    saved_states, saved_logits = hf_outputs(type(hf_model).from_pretrained(tmp_path / "saved"), ids)
    assert abs(saved_states - states).max() <= 1e-5
    assert abs(saved_logits - logits).max() <= 1e-5
    # The control exchanges the two norms of each layer.
    for layer in hf_model.roberta_prelayernorm.encoder.layer:
        first, second = layer.attention, layer.intermediate
        first.LayerNorm, second.LayerNorm = second.LayerNorm, first.LayerNorm
    assert abs(bertkit_states - hf_outputs(hf_model, ids)[0]).max() > 1e-3


def test_additions_need_the_package(
    prelayernorm: tuple[Path, Any], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["finetune", "stars"]) == 2
    assert "unknown task 'stars'" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="unknown pipeline 'keywords'"):
        bertkit.pipeline("keywords", model)
    with pytest.raises(CheckpointError, match="model_type = 'roberta-prelayernorm'"):
        bertkit.load(prelayernorm[0])
