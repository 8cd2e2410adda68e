"""Messages on stderr, data on stdout and stdin."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from bertkit import console
from bertkit.errors import DataError


def test_say_prints_unchanged_text_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    # The control: rich interprets markup.
    console.console().print("[bold]x[/bold]")
    console.say("[bold]x[/bold] " + "long " * 60)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["x", "[bold]x[/bold] " + "long " * 60]


def test_say_does_not_insert_emoji(capfd: pytest.CaptureFixture[str]) -> None:
    # The control.
    Console(stderr=True).print("rows.csv:100: bad", markup=False)
    console.say("rows.csv:100: bad")
    assert capfd.readouterr().err == "rows.csv💯 bad\nrows.csv:100: bad\n"


def test_write_line_writes_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    class File(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            written.append(bytes(data))
            return len(written[-1])

    # Python opens stderr like this if PYTHONUNBUFFERED is set.
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(File(), write_through=True))
    # The control.
    print("x", file=sys.stderr)
    assert written == [b"x", b"\n"]
    written.clear()
    console.write_line("x")
    assert [part for part in written if part] == [b"x\n"]


def test_quietly_suppresses_messages(capfd: pytest.CaptureFixture[str]) -> None:
    with console.quietly():
        console.say("unheard")
    console.say("heard")
    assert capfd.readouterr().err == "heard\n"


def test_print_json_writes_one_line_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    console.print_json({"a": [1, "é"]})
    assert capfd.readouterr() == ('{"a":[1,"é"]}\n', "")


def test_print_table_formats_nested_data(capfd: pytest.CaptureFixture[str]) -> None:
    console.print_table(
        {"rows": 1200, "f1": 0.91239, "rate": 3e-5, "best": "a b", "none": None, "seeds": [1, 0.5],
         "kinds": {"one": {"more": True}, "other": 2}, "pairs": [[1], [2]],
         "by": {"x": {"n": 1, "long name": 0.25}, "yy": {"n": 22_000, "long name": 1.0}}},
    )  # fmt: skip
    assert capfd.readouterr().out.split("\n") == [
        "rows            1,200",
        "f1              0.9124",
        "rate            3e-05",
        "best            a b",
        "none            null",
        "seeds           1, 0.5000",
        "kinds.one.more  true",
        "kinds.other     2",
        "pairs           [[1],[2]]",
        "",
        "by",
        "         n  long name",
        "x        1     0.2500",
        "yy  22,000     1.0000",
        "",
    ]
    console.print_table({"a": {"mean": 1.0}, "b": {"mean": 2.0}})
    assert capfd.readouterr().out.split() == ["mean", "a", "1.0000", "b", "2.0000"]


def test_lines_skips_blank_lines_of_stdin(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    data = "\ufeffone\r\n\n  \ntwo é \n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
    assert list(console.lines()) == ["one", "two é "]
    assert capfd.readouterr().err == "stdin: skipped lines without text: 2\n"
    bad = io.TextIOWrapper(io.BytesIO(data + b"caf\xe9\n"), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", bad)
    texts = console.lines()
    assert [next(texts), next(texts)] == ["one", "two é "]
    with pytest.raises(DataError, match=r"^stdin:5: not UTF-8 \(0xe9\); convert it"):
        next(texts)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n \n"))
    with pytest.raises(DataError, match="stdin: no text"):
        list(console.lines())
    monkeypatch.setattr(sys, "stdin", io.StringIO("\na\n \nb"))
    assert list(console.numbered_lines()) == [(2, "a"), (4, "b")]


def test_prompt_lines_reads_terminals_and_pipes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\ntwo\n"))
    assert list(console.prompt_lines("> ")) == ["one", "two"]
    assert capfd.readouterr() == ("", "stdin: skipped lines without text: 1\n")
    typed = iter(["one", "", "two"])

    def read() -> str:
        for line in typed:
            return line
        raise EOFError

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", read)
    assert list(console.prompt_lines("> ")) == ["one", "two"]
    assert capfd.readouterr() == ("", "> > > > \n")
