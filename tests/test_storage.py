"""Storage: atomic writes and bounded reads."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import CheckpointError, ConfigError, StorageError
from bertkit.storage import (
    DEPTH,
    append_text,
    check_out,
    csv_line,
    distinct_names,
    link_or_copy,
    new_folder,
    read_json,
    sha256,
    sweep,
    write_json,
    write_text,
    writing,
)


def test_write_replaces_file_atomically(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_text(path, "old")
    with pytest.raises(RuntimeError), writing(path) as partial:  # noqa: PT012
        partial.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_new_folder_is_atomic(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with pytest.raises(RuntimeError), new_folder(path) as partial:  # noqa: PT012
        (partial / "a").write_text("a")
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with new_folder(path) as partial:
        (partial / "a").write_text("a")
        assert not path.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_write_reports_unwritable_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for write in (write_text, append_text):
        with pytest.raises(StorageError, match=r"file/x: cannot be written \(.*\); choose another"):
            write(tmp_path / "file" / "x", "text")
    with (
        pytest.raises(StorageError, match="cannot be written"),
        new_folder(tmp_path / "file" / "x"),
    ):
        raise AssertionError("never reached")
    with pytest.raises(StorageError), new_folder(tmp_path):
        (tmp_path / "file").touch()
    assert (tmp_path / "file").read_text() == "mine"


def test_write_json_keeps_order_and_unicode(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"ü": 1, "a": [2]})
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == (
        '{\n  "ü": 1,\n  "a": [\n    2\n  ]\n}\n'
    )


def test_sha256_matches_fips_example(tmp_path: Path) -> None:
    # The first example of FIPS 180-4.
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_sweep_removes_files_of_exited_processes(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".a.partial-{dead.pid}").write_text("half")
    (tmp_path / f".b.partial-{dead.pid}").mkdir()
    (tmp_path / f".b.partial-{dead.pid}" / "x").write_text("half")
    (tmp_path / f".c.partial-{os.getpid()}").write_text("half")
    expected = {f".d.partial-{os.getppid()}", ".e.partial-mine", "f.partial-1", "whole"}
    for name in expected:
        (tmp_path / name).write_text("kept")
    sweep(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == expected
    sweep(tmp_path / "none")


def test_writing_replaces_leftover_of_same_process_id(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("new")
    (tmp_path / f".file.partial-{os.getpid()}").write_text("half")
    with writing(tmp_path / "file") as partial:
        os.link(tmp_path / "source", partial)
    assert (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'\xef\xbb\xbf{"a": ["[[", "\\\\", "\\"]"]}', {"a": ["[[", "\\", '"]']}),
        (b"[" * DEPTH + b"]" * DEPTH, None),
        (b'["' + b"[" * 1000 + b'"]', ["[" * 1000]),
        (b"[" + b'{"a": []},' * 1000 + b"1]", None),
        (b"1" + b"0" * 30, 10**30),
        (b"1" + b"0" * 5000, float("inf")),
    ],
)
def test_read_json_accepts_content_within_limits(
    content: bytes, found: object, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_bytes(content)
    read = read_json(tmp_path / "a.json", CheckpointError, "fetch it again")
    assert found is None or read == found


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1), "more than 64 levels"),
        (b"[" + b"[]," * 200_000 + b"1]", "more than 131,072 lists"),
        (b"NaN", "NaN is not valid JSON"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b'"\xff"', "can't decode byte"),
        (b"1" * 9_000_000, "9,000,000 bytes"),
    ],
)
def test_read_json_rejects_content_beyond_limits(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"a\.json: .*{reason}.*again$"):
        read_json(tmp_path / "a.json", CheckpointError, "fetch it again")


def test_read_json_rejects_devices_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "b.json")
    for name in ("a.json", "b.json"):
        with pytest.raises(CheckpointError, match="not a file"):
            read_json(tmp_path / name, CheckpointError, "fetch it again")


@pytest.mark.parametrize(
    ("paths", "names"),
    [("runs/a other/b", "a b"), ("runs/a", "a"), ("a/seed-0 b/seed-0", "a b"),
     ("a/seed-0 a/seed-1 b/seed-0", "a/seed-0 a/seed-1 b/seed-0"), ("a/x/model b/model", "a/x b"),
     ("a a/a", "a a/a")],
)  # fmt: skip
def test_distinct_names_are_as_short_as_possible(paths: str, names: str) -> None:
    named = distinct_names([Path(path) for path in paths.split()])
    assert named == names.split()
    assert len(set(named)) == len(named)


def test_check_out_requires_new_or_resumed_run(tmp_path: Path) -> None:
    directory = tmp_path / "out"
    check_out(directory, resume=False)
    check_out(directory, resume="auto")
    with pytest.raises(ConfigError, match="contains no run to resume"):
        check_out(directory, resume=True)
    directory.mkdir()
    # A process that has exited left it.
    (directory / ".run.json.partial-99999999").touch()
    check_out(directory, resume=False)
    (directory / "run.json").touch()
    check_out(directory, resume=True)
    check_out(directory, resume="auto")
    with pytest.raises(ConfigError, match="already exists"):
        check_out(directory, resume=False)


@given(st.lists(st.lists(st.text(st.sampled_from("a,\"'\r\n \t;\ufeff")), min_size=1)))
def test_csv_line_round_trips(rows: list[list[str]]) -> None:
    text = "".join(map(csv_line, rows))
    assert list(csv.reader(io.StringIO(text, newline=""))) == rows


def test_link_or_copy_resolves_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "blob").write_text("weights")
    (tmp_path / "link").symlink_to("cache/blob")
    (tmp_path / "out").mkdir()
    link_or_copy(tmp_path / "link", tmp_path / "out" / "file")
    assert not (tmp_path / "out" / "file").is_symlink()
    assert (tmp_path / "out" / "file").read_text() == "weights"
