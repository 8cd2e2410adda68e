"""Tests of functions as commands: options, validation and printed results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bertkit import cli
from bertkit.commands.command import command
from bertkit.config import Count, PythonOnly, Seed, Settings
from bertkit.errors import ConfigError

Captured = pytest.CaptureFixture[str]


class Bread(Settings, frozen=True):
    loaves: Count = 1
    """Number of loaves."""
    flour: tuple[str, ...] = ()
    oil: str | None = msgspec.field(default=None, name="oil_kind")
    """Type of oil; the Python name differs."""
    seeds: tuple[str, ...] = msgspec.field(default=(), name="seed_kind")


KINDS = {"oil_kind": None, "seed_kind": []}


class Shop:
    """Type that no command-line word can be converted to."""


def bake(
    shop: str | Path | Shop,
    /,
    *,
    ovens: Sequence[int | Shop] = (),
    hot: bool = False,
    seed: Seed = 0,
    bread: Bread | None = None,
    say: Callable[[str], None] = print,
    crust: PythonOnly[int | None] = None,
    **more: Any,
) -> dict[str, Any]:
    """Bake bread. The summary ends before this sentence.

    Args:
        shop: Name of the shop.
        ovens: Numbers of the ovens.
        hot: Whether the bread is hot.
        seed: Random seed.
        bread: The bread.
        say: Function that prints.
        crust: Thickness of the crust.
        **more: Further keywords.
    """
    return {"shop": shop, "ovens": ovens, "hot": hot, "seed": seed, "bread": bread}


@pytest.fixture
def baked(capsys: Captured) -> Iterator[Callable[..., dict[str, Any]]]:
    def run(*words: str) -> dict[str, Any]:
        assert cli.run(["bake", *words]) == 0
        result = json.loads(capsys.readouterr().out)
        assert isinstance(result, dict)
        return result

    cli.app.command(command(bake), name="bake")
    yield run
    del cli.app["bake"]


def cut_texts(
    texts: list[str] | None = None,
    /,
    *,
    knife: str = "",
    share: float = 1.0,
    at: Path | None = None,
) -> dict[str, Any]:
    """Slice texts.

    Args:
        texts: Texts to slice.
        knife: Name of the knife.
        share: Fraction of the slice.
        at: Path of the slice.
    """
    return {"texts": texts, "knife": knife, "share": share, "at": str(at)}


@pytest.fixture
def sliced() -> Iterator[None]:
    cli.app.command(command(cut_texts), name="cut")
    yield
    del cli.app["cut"]


@pytest.mark.parametrize(
    ("words", "texts", "knife", "at"),
    [
        (["-"], None, "", "None"),
        (["a", "-"], ["a", "-"], "", "None"),
        (["a", "--knife", "-", "--at", "-"], ["a"], "-", "/dev/stdin"),
    ],
)
def test_dash_is_stdin_except_among_other_texts(
    words: list[str], texts: list[str] | None, knife: str, at: str, sliced: None, capsys: Captured
) -> None:
    assert cli.run(["cut", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"texts": texts, "knife": knife, "share": 1.0, "at": at}


def rise(pan: str, /, *words: str, hot: bool = False) -> list[str]:
    """Rise."""
    return [pan, *words]


def test_command_receives_all_words_of_list(capsys: Captured) -> None:
    cli.app.command(command(rise), name="rise")
    try:
        assert cli.run(["rise", "a", *"bcdefg"]) == 0
    finally:
        del cli.app["rise"]
    assert json.loads(capsys.readouterr().out) == list("abcdefg")


@pytest.mark.parametrize("share", ["inf", "nan"])
def test_command_rejects_infinite_and_nan_numbers(
    share: str, sliced: None, capsys: Captured
) -> None:
    assert cli.run(["cut", "--share", share]) == 2
    assert f"share: expected a finite number, got {share}" in capsys.readouterr().err


def test_words_are_converted_to_arguments(baked: Callable[..., dict[str, Any]]) -> None:
    assert baked("here") == {"shop": "here", "ovens": [], "hot": False, "seed": 0, "bread": None}
    result = baked("here", "--loaves", "3", "--oven", "1", "--oven", "2", "--hot", "--flour", "rye")
    assert result["bread"] == {"loaves": 3, "flour": ["rye"], **KINDS}
    assert (result["ovens"], result["hot"]) == ([1, 2], True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["here", "--loaves", "0"], "loaves: expected `int` >= 1"),
        (["here", "--seed", "-1"], "seed: expected `int` >= 0"),
        (["here", "--oven", "hot"], 'unable to convert "hot" into int'),
        (["here", "--say", "x"], "Unknown option: --say"),
        (["here", "--crust", "1"], "Unknown option: --crust"),
        (["here", "--more", "1"], "Unknown option: --more"),
        (["--loaves", "2"], "SHOP is missing; `bertkit bake --help`"),
    ],
)
@pytest.mark.usefixtures("baked")
def test_command_rejects_invalid_words(words: list[str], message: str, capsys: Captured) -> None:
    assert cli.run(["bake", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("baked")
def test_help_describes_every_option(capsys: Captured) -> None:
    assert cli.run(["bake", "--help"]) == 0
    page = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "SHOP Name of the shop." in page
    assert "--loaves INT Number of loaves. [default: 1]" in page
    assert "--oven INT... Numbers of the ovens." in page
    assert "crust" not in page


def test_results_are_printed_when_they_are_yielded(capsys: Captured) -> None:
    def count() -> Iterator[int]:
        yield 1
        assert capsys.readouterr().out == "1\n"
        yield 2

    command(count)()
    assert capsys.readouterr().out == "2\n"
    command(lambda: Path("report.html"))()
    assert capsys.readouterr().out == "report.html\n"
    command(lambda: Shop())()
    assert capsys.readouterr().out == ""


class Score(msgspec.Struct):
    f1: float
    by_label: dict[str, float]


def test_result_is_table_in_terminal_and_json_otherwise(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score() -> dict[str, Any] | Score:
        """Score it."""
        return Score(0.5, {"a": 1.0})

    cli.app.command(command(score), name="score")
    try:
        line = '{"f1":0.5,"by_label":{"a":1.0}}\n'
        assert cli.run(["score"]) == 0
        assert capsys.readouterr().out == line
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert cli.run(["score"]) == 0
        assert capsys.readouterr().out == "f1  0.5000\n"
        assert cli.run(["score", "--json"]) == 0
        assert capsys.readouterr().out == line
        assert cli.run(["score", "--help"]) == 0
        assert "--json" in capsys.readouterr().out
    finally:
        del cli.app["score"]


def test_command_rejects_duplicate_option_names() -> None:
    class More(Settings, frozen=True):
        loaves: int = 1

    def twice(bread: Bread, more: More) -> None:
        """Bake twice."""

    twice.__annotations__ = {"bread": Bread, "more": More, "return": None}
    with pytest.raises(ConfigError, match=r"More\.loaves: another setting has this name"):
        command(twice)
