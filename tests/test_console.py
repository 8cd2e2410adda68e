"""Words for people are on stderr, data is on stdout and stdin."""

from __future__ import annotations

import io
import sys

import pytest

from bertkit import console
from bertkit.errors import DataError


def test_words_go_to_stderr_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    console.Console(stderr=True).print("[bold]x[/bold]")  # the control: rich reads markup
    console.say("[bold]x[/bold] " + "long " * 60)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["x", "[bold]x[/bold] " + "long " * 60]


def test_nothing_is_said_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    with console.quietly():
        console.say("unheard")
    console.say("heard")
    assert capfd.readouterr().err == "heard\n"


def test_data_is_a_line_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    console.print_json({"a": [1, "é"]})
    assert capfd.readouterr() == ('{"a":[1,"é"]}\n', "")


def test_a_bar_is_silent_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    with console.progress() as bar:
        bar.update(bar.add_task("steps", total=2, note=""), completed=2)
    assert capfd.readouterr() == ("", "")


def test_lines_of_stdin_that_hold_text(monkeypatch: pytest.MonkeyPatch) -> None:
    data = "\ufeffone\r\n\n  \ntwo \n".encode() + b"\xff\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
    assert list(console.lines()) == ["one", "two ", "\udcff"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n \n"))
    with pytest.raises(DataError, match="stdin: no text"):
        list(console.lines())


def test_a_terminal_is_asked_and_a_pipe_is_read(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\ntwo\n"))
    assert list(console.asked("> ")) == ["one", "two"]
    typed = iter(["one", "", "two"])

    def read() -> str:
        for line in typed:
            return line
        raise EOFError

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", read)
    assert list(console.asked("> ")) == ["one", "two"]
    assert capfd.readouterr() == ("", "> > > > \n")
