"""Tests of the package: the files of wheel and sdist, and the wheel without extras.

The wheel is installed into a new virtual environment that contains only bertkit and what its
requirements install, as links to this environment, which cost no download and no time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
from packaging.requirements import Requirement

import bertkit

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "src")
INFO = f"bertkit-{bertkit.__version__}.dist-info"

COMMANDS = """\
tokenizer train text --size 600 --out tokenizer
prepare text --tokenizer tokenizer --out corpus
pretrain bert-tiny --corpus corpus --out run --train.steps 4 --train.batch_size 8
finetune classify --model run --train rows.jsonl --dev 0.25 --out stars --epochs 1
predict stars "Loops repeat." --out labels.jsonl
embed run "Loops repeat." "Functions return." --out vectors.npy
"""
PROGRAM = """\
bertkit --help
python -c '
import shlex, sys
from bertkit import cli
for line in open("commands"):
    if code := cli.run(shlex.split(line)):
        sys.exit(f"{line}: {code}")'
"""
"""One process runs the commands, so that torch is imported once."""


def build(folder: Path, *options: str) -> Path:
    """Build a copy of the sources, and return the directory of the packages."""
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(
                path, folder / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
            )
        else:
            shutil.copy(path, folder / name)
    command = [sys.executable, "-m", "build", "--no-isolation", *options, str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "dist"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the sdist, and the wheel that is built from the sdist."""
    return build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def wheel(packages: Path) -> Path:
    (path,) = packages.glob("*.whl")
    return path


def source_files() -> set[str]:
    """Return the files of src that belong to the package, relative to src."""
    paths = (ROOT / "src" / "bertkit").rglob("*")
    files = {p.relative_to(ROOT / "src") for p in paths if p.is_file() and p.name != "README.md"}
    return {str(file) for file in files if "__pycache__" not in file.parts}


def test_wheel_contains_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if not name.startswith(INFO)} == source_files()
    assert f"{INFO}/licenses/LICENSE" in names
    assert {"bertkit/py.typed", "bertkit/configs/experiments/glue.toml"} <= source_files()


def test_sdist_contains_no_tests(packages: Path) -> None:
    (sdist,) = packages.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in source_files()} <= names
    assert {name.split("/")[0] for name in names if name} == {*SOURCES, "PKG-INFO", "setup.cfg"}


def test_wheel_of_the_sdist_and_of_the_sources_are_equal(wheel: Path, tmp_path: Path) -> None:
    (other,) = build(tmp_path, "--wheel").glob("*.whl")
    first, second = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, other))
    assert first == second


def required(texts: list[str], found: dict[str, metadata.Distribution]) -> None:
    """Add the distributions that requirements install to `found`, by name."""
    for requirement in map(Requirement, texts):
        marker = requirement.marker
        if requirement.name not in found and (marker is None or marker.evaluate({"extra": ""})):
            found[requirement.name] = metadata.distribution(requirement.name)
            required(found[requirement.name].requires or [], found)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a virtual environment with the wheel, without extras."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/*/site-packages")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["PATH"] = f"{folder / 'bin'}{os.pathsep}{variables['PATH']}"
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    install = [*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, env=variables, check=True)
    (bertkit_itself,) = metadata.distributions(name="bertkit", path=[str(site)])
    found: dict[str, metadata.Distribution] = {}
    required(bertkit_itself.requires or [], found)
    for distribution in found.values():
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(distribution.locate_file(top)))
    return variables


def run(code: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-euo", "pipefail", "-c", code]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


def test_wheel_without_extras_leads_from_text_to_predictions(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "text").mkdir()
    for name, chapter in list(topics.items())[:20]:
        (tmp_path / "text" / f"{name}.txt").write_text(chapter, encoding="utf-8")
    rows = [{"text": f"{word} {n}", "label": word} for n in range(8) for word in ("good", "bad")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "commands").write_text(COMMANDS, encoding="utf-8")
    done = run(PROGRAM, tmp_path, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads((tmp_path / "labels.jsonl").read_text(encoding="utf-8"))
    assert answer["label"] in ("good", "bad")
    vectors = np.load(tmp_path / "vectors.npy")
    assert vectors.shape == (2, 128)
    assert np.isfinite(vectors).all()


def test_environment_contains_the_wheel_and_no_extras(
    environment: dict[str, str], tmp_path: Path
) -> None:
    done = run("python -c 'import bertkit; print(bertkit.__file__)'", tmp_path, environment)
    assert done.stdout.startswith(str(Path(environment["PATH"].split(os.pathsep)[0]).parent))
    done = run("python -c 'import starlette'", tmp_path, environment)
    assert "No module named 'starlette'" in done.stderr
    done = run("bertkit serve run", tmp_path, environment)
    assert done.returncode == 2
    assert "pip install 'bertkit[serving]'" in done.stderr
