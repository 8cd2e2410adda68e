"""Tests of the retrieval commands: index, search, evaluate and prepare."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.extensions.export.test_exported_task import WITHOUT_TORCH

from bertkit import cli

Captured = pytest.CaptureFixture[str]


def test_index_and_search_commands_find_documents(
    tiny: Path, tmp_path: Path, capsys: Captured
) -> None:
    rows = [{"id": x, "text": f"{x} {x} {x}", "year": i} for i, x in enumerate("abcdef")]
    docs, store = tmp_path / "docs.jsonl", tmp_path / "store"
    docs.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    words = ["index", str(docs), "--model", str(tiny), "--store", str(store)]
    assert cli.run([*words, "--keep", "year:number"]) == 0
    assert json.loads(capsys.readouterr().out) == {"documents": 6, "unchanged": 0, "passages": 6}

    assert cli.run(["search", str(store), "c c", "--top", "2", "--json"]) == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(hits) == 2
    assert (hits[0]["id"], hits[0]["text"], hits[0]["fields"]) == ("c", "c c c", {"year": 2.0})

    score = str(hits[1]["score"] + 1e-4)  # the second hit has a lower score
    assert cli.run(["search", str(store), "c c", "--min-score", score, "--json"]) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["c"]

    assert cli.run(["search", str(store), "c c", "--where", "year>=4", "--where", "year<5"]) == 0
    assert capsys.readouterr().out.split()[2] == "e"
    assert cli.run(["search", str(store), "c c", "--where", "year>=400"]) == 0
    assert capsys.readouterr() == ("", "no documents found\n")

    (tmp_path / "q.tsv").write_text("1\tb b\n", encoding="utf-8")
    (tmp_path / "j.tsv").write_text("1\tb\t1\n", encoding="utf-8")
    files = ["--queries", str(tmp_path / "q.tsv"), "--judgments", str(tmp_path / "j.tsv")]
    assert cli.run(["evaluate", "retrieval", str(store), *files]) == 0
    assert json.loads(capsys.readouterr().out)["ndcg@10"] == 1.0
    out = tmp_path / "rows.jsonl"
    assert (
        cli.run(["prepare", "negatives", str(store), *files, "--out", str(out), "--negatives", "2"])
        == 0
    )
    assert json.loads(capsys.readouterr().out) == {"queries": 1, "rows": 1}
    assert set(json.loads(out.read_text())) == {"anchor", "positive", "negative1", "negative2"}


@pytest.fixture
def store(tiny: Path, tmp_path: Path, capsys: Captured) -> str:
    (tmp_path / "a.md").write_text("# a\nb c", encoding="utf-8")
    (tmp_path / "d.md").write_text("d e", encoding="utf-8")
    path = str(tmp_path / "store")
    assert cli.run(["index", str(tmp_path), "--model", str(tiny), "--store", path]) == 0
    capsys.readouterr()
    return path


def test_search_reads_queries_from_stdin(
    store: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("b c\n\nd\n"))
    assert cli.run(["search", store, "--top", "1"]) == 0
    first, hit, _, second, other, _ = capsys.readouterr().out.splitlines()
    assert (first, second) == ("> b c", "> d")
    assert hit.endswith("  a.md  [0:7]  a")
    assert other.endswith("  d.md  [0:3]")
    monkeypatch.setattr(sys, "stdin", io.StringIO("b c\n"))
    assert cli.run(["search", store, "--top", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["query"], document["id"], document["heading"]) == ("b c", "a.md", "a")


def test_search_prompts_for_queries_in_terminal(
    store: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d.md").unlink()
    typed = iter(["a " * 100, " ", "d e"])

    def read() -> str:
        for line in typed:
            return line
        raise EOFError

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", read)
    assert cli.run(["search", store, "--top", "1"]) == 0
    out, err = capsys.readouterr()
    assert "2 passages. Enter a query, or press Ctrl-D to quit." in err
    assert "102 tokens, but the limit is 32" in err  # the loop continues after an error
    assert out.split()[2] == "d.md"
    assert "d.md: file not found" in err


def test_search_reports_only_missing_source_files(
    tiny: Path, tmp_path: Path, capsys: Captured
) -> None:
    file, store = tmp_path / "rows.jsonl", str(tmp_path / "store")
    file.write_text('{"id": "a", "text": "a b"}\n{"id": "b", "text": "d e"}\n', encoding="utf-8")
    assert cli.run(["index", str(file), "--model", str(tiny), "--store", store]) == 0
    for exists in (True, False):
        assert cli.run(["search", store, "d e", "--top", "1"]) == 0
        assert ("file not found" in capsys.readouterr().err) != exists
        file.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "nowhere", "x"], "nowhere: not a store"),
        (["index", "nowhere.txt", "--model", "TINY", "--store", "s"], "nowhere.txt: file or dir"),
        (["search", "http://127.0.0.1:1/x", "x"], "Qdrant server cannot be reached"),
    ],
)
def test_search_errors_are_one_line(
    words: list[str],
    message: str,
    tiny: Path,
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run([str(tiny) if word == "TINY" else word for word in words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_exported_model_searches_without_torch(
    store: str, tiny: Path, tmp_path: Path, capsys: Captured
) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason="pip install 'bertkit[export]'")
    exported = str(tmp_path / "exported")
    assert cli.run(["export", str(tiny), "--out", exported]) == 0
    capsys.readouterr()
    assert cli.run(["search", store, "b c", "--json"]) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    words = [sys.executable, "-c", WITHOUT_TORCH, "search", store, "b c", "--json"]
    done = subprocess.run([*words, "--model", exported], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for hit, other in zip(found, expected, strict=True):
        assert hit.pop("score") == pytest.approx(other.pop("score"), abs=1e-5)
        assert hit == other
    # Control: the model directory requires torch.
    assert subprocess.run(words, capture_output=True, check=False).returncode == 77
    other = str(tmp_path / "other")
    assert cli.run(["export", str(tiny), "--out", other, "--pooling", "cls"]) == 0
    assert cli.run(["search", store, "b c", "--model", other]) == 2
    assert "is a different model; set --model" in capsys.readouterr().err


def test_search_reports_an_unquoted_query(capsys: Captured) -> None:
    for words in (["cats", "and", "dogs"], ["two", "words"], ["a", "b", "--top", "2", "c"]):
        assert cli.run(["search", "notes", *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith("bertkit: search: more than one query")
        assert error.endswith("; put the query in quotation marks\n")
