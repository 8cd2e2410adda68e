"""The Dockerfile names files, extras, commands and routes that exist."""

from __future__ import annotations

import json
import re
import string
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.extensions.serving.test_processes import process
from tests.factories import tiny_folder, tiny_tokenizer

from bertkit import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "deploy.md").read_text(encoding="utf-8")
FILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
STAGES = re.split(r"^(?=FROM )", FILE, flags=re.M)[1:]


def instructions(stage: str) -> list[tuple[str, str]]:
    """Return the keyword and the arguments of each line of a stage."""
    lines = [line for line in stage.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_image_has_two_stages_and_only_the_result() -> None:
    build, image = STAGES
    name = re.match(r"FROM (\S+) AS (\w+)\n", build)
    assert name is not None
    assert image.startswith(f"FROM {name[1]}\n")  # the same Python, as environments need
    assert re.findall("^COPY (.*)$", image, re.M) == [f"--from={name[2]} /opt/bertkit /opt/bertkit"]
    assert "pip install" not in image
    keywords = {word for stage in STAGES for word, _ in instructions(stage)}
    known = "FROM ARG RUN ENV COPY USER EXPOSE HEALTHCHECK ENTRYPOINT CMD"
    assert keywords == set(known.split())


def test_image_runs_a_tested_python_as_an_ordinary_user() -> None:
    version = re.findall(r"^FROM python:([\d.]+)-slim\b", FILE, re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"Programming Language :: Python :: {version[0]}" in project["classifiers"]
    words = [word for word, _ in instructions(STAGES[1])]
    assert dict(instructions(STAGES[1]))["USER"] == "bertkit"
    assert words.index("USER") > words.index("RUN")
    assert "RUN" not in words[words.index("USER") :]
    assert "useradd --create-home bertkit" in STAGES[1]


def test_torch_of_the_argument_is_installed_before_bertkit() -> None:
    build = STAGES[0]
    torch = build.index('${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch')
    assert build.index("ARG TORCH_INDEX=\n") < torch < build.index('"/source[')
    installs = [line for line in build.splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert all("-c /source/constraints.txt" in line for line in installs)
    assert re.search(r"^\$ docker build --build-arg TORCH_INDEX=\S+ -t bertkit \.$", PAGE, re.M)
    assert re.search(r"^\$ docker run .* bertkit$", PAGE, re.M)


def test_files_and_extras_of_the_image_exist() -> None:
    copied = [
        name
        for line in re.findall("^COPY (?!--from)(.*) /source/", STAGES[0], re.M)
        for name in line.split()
    ]
    assert copied
    assert all((ROOT / name).exists() for name in copied)
    sent = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.M)
    assert set(copied) == set(sent)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"^ARG EXTRAS=([\w,]+)$", FILE, re.M)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert f"`{extras}`" in PAGE


def test_command_of_the_image_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    command, *arguments = json.loads(re.findall("^ENTRYPOINT (.*)$", FILE, re.M)[0])
    assert command == "bertkit"
    assert cli.run([*arguments, "--help"]) == 0
    page = capsys.readouterr().out
    assert all(word in page for word in arguments if word.startswith("--"))


def test_health_check_succeeds_only_while_the_server_runs(tmp_path: Path) -> None:
    ((program, *arguments),) = map(json.loads, re.findall("^HEALTHCHECK .*CMD (.*)$", FILE, re.M))
    assert program == "python"

    def check(address: str) -> int:
        code = [word.replace("http://127.0.0.1:8000", address) for word in arguments]
        return subprocess.run([sys.executable, *code], capture_output=True, check=False).returncode

    tiny_folder(tmp_path / "minilm", tiny_tokenizer([*string.ascii_lowercase, "."]))
    with process(str(tmp_path / "minilm")) as (_, address):
        assert check(address) == 0
    assert check(address) == 1
