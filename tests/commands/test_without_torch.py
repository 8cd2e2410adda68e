"""Tests that exported models and the client run with only the packages of tutorial 10."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from tests.factories import tiny_folder, tiny_tokenizer

import bertkit
from bertkit import cli
from bertkit.extensions.export.export import export

for _name in ("onnx", "onnxscript", "onnxruntime", "lancedb"):
    pytest.importorskip(_name, reason="pip install 'bertkit[export,search]'")

ROOT = Path(bertkit.__file__).parents[2]
SECTION = (ROOT / "docs/tutorial/10-vectors.md").read_text(encoding="utf-8").split("## 3.")[1]
DEPENDENCIES = {"cyclopts": {"docstring_parser", "rich"}, "tokenizers": {"huggingface_hub"}}
"""Packages that other packages install."""
BLOCKED = """
import json, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv.pop(1))))
"""
COMMAND = f"{BLOCKED}\nfrom bertkit import cli\nsys.exit(cli.run(sys.argv[1:]))"
CLIENT = f"""{BLOCKED}
import httpx
from bertkit.extensions.serving.client import Client
server = httpx.MockTransport(lambda request: httpx.Response(200, json=[[1, 2]]))
print(Client("http://127.0.0.1", transport=server).embed("a").tolist())
"""


def not_installed(*more: str) -> str:
    """Return the dependencies of bertkit that the tutorial does not install, as JSON."""
    installed = set(more)
    for package in re.findall(r"^\$ pip install (numpy .*)$", SECTION, re.M)[0].split():
        installed |= {package, *DEPENDENCIES.get(package, ())}
    installed |= {"fsspec"} if "huggingface_hub" in installed else set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["serving"], *extras["search"]]
    names = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in lines}
    blocked = names - installed
    assert {"torch", "safetensors", "jinja2"} <= blocked
    return json.dumps(sorted(blocked))


def run(code: str, *words: str | Path, installed: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, not_installed(*installed), *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, tokenizer = tmp_path_factory.mktemp("without"), tiny_tokenizer("abcd")
    tiny_folder(root / "labels", tokenizer, "classify", labels=("x", "y"), length=16)
    tiny_folder(root / "vectors", tokenizer, length=16)
    export(root / "labels", out=root / "classifier", task="classify")
    export(root / "vectors", out=root / "graph")
    return root


def test_embed_runs_without_torch(folder: Path) -> None:
    run(COMMAND, "embed", folder / "graph", "a b", "--out", folder / "one.npy")
    expected = bertkit.pipeline("embed", folder / "vectors")(["a b"])
    np.testing.assert_allclose(np.load(folder / "one.npy"), expected, atol=1e-5)


def test_predict_runs_without_torch(folder: Path) -> None:
    (folder / "rows.csv").write_text("text\na b\nc\n", encoding="utf-8")
    for words in (["a b", "c"], ["--file", str(folder / "rows.csv")]):
        lines = run(COMMAND, "predict", folder / "classifier", *words).splitlines()
        labels = [answer.label for answer in bertkit.predict(folder / "labels", ["a b", "c"])]
        assert [json.loads(line)["label"] for line in lines] == labels


def test_search_runs_without_torch(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.md").write_text("# a\nb c", encoding="utf-8")
    store, model = str(folder / "store"), str(folder / "vectors")
    assert cli.run(["index", str(folder / "a.md"), "--model", model, "--store", store]) == 0
    capsys.readouterr()
    words = ["search", store, "b c", "--json", "--model", str(folder / "graph")]
    found = run(COMMAND, *words, installed=("sentencex", "lancedb", "pyarrow"))
    assert json.loads(found)["text"].endswith("b c")


def test_client_runs_without_torch() -> None:
    assert run(CLIENT, installed=("httpx",)) == "[[1.0, 2.0]]\n"


def test_control_model_directory_requires_torch(folder: Path) -> None:
    with pytest.raises(AssertionError, match="torch"):
        run(COMMAND, "embed", folder / "vectors", "a b")


@pytest.mark.parametrize("command", ["info", "predict", "evaluate"])
def test_other_commands_name_the_commands_for_exported_models(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {
        "info": [],
        "predict": ["a [MASK]", "--pipeline", "fill-mask"],
        "evaluate": [str(folder / "rows.csv")],
    }
    assert cli.run([command, str(folder / "graph"), *arguments[command]]) == 2
    assert (
        "use it with `bertkit embed`, `predict` or `search`, or pass the" in capsys.readouterr().err
    )
