"""The Dockerfile of the deployment guide names files, extras and options that exist."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from bertkit import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "deploy.md").read_text(encoding="utf-8")
(FILE,) = re.findall(r"```dockerfile\n(.*?)```", PAGE, re.S)
STAGES = re.split(r"^(?=FROM )", FILE, flags=re.M)[1:]


def test_image_has_two_stages_and_only_the_result() -> None:
    build, image = STAGES
    name = re.match(r"FROM (\S+) AS (\w+)\n", build)
    assert name is not None
    assert image.startswith(f"FROM {name[1]}\n")  # the same Python, as environments need
    assert re.findall("^COPY (.*)$", image, re.M) == [f"--from={name[2]} /opt/bertkit /opt/bertkit"]
    assert "pip install" not in image
    assert re.search("^USER bertkit$", image, re.M)


def test_cpu_build_of_torch_is_installed_before_bertkit() -> None:
    build = STAGES[0]
    torch = build.index('--index-url "$TORCH_INDEX" torch')
    assert build.index("ARG TORCH_INDEX") < torch < build.index("'/source[")
    assert all("-c /source/constraints.txt" in line for line in build.splitlines() if "pip" in line)
    assert re.search(r"^\$ docker build --build-arg TORCH_INDEX=\S+ -t bertkit \.$", PAGE, re.M)
    assert re.search(r"^\$ docker run .* bertkit$", PAGE, re.M)


def test_files_and_extras_of_the_image_exist() -> None:
    for line in re.findall("^COPY (?!--from)(.*) /source/", STAGES[0], re.M):
        assert all((ROOT / name).exists() for name in line.split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"/source\[([\w,]+)\]", FILE)
    assert {"serving", "search", "export"} == set(extras.split(","))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_command_of_the_image_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    command, *arguments = json.loads(re.findall("^ENTRYPOINT (.*)$", FILE, re.M)[0])
    assert command == "bertkit"
    assert cli.run([*arguments, "--help"]) == 0
    page = capsys.readouterr().out
    assert all(word in page for word in arguments if word.startswith("--"))
    assert "/health/live" in FILE
