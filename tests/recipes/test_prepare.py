"""Corpus preparation: content, resuming, rejected input, and worker processes."""

from __future__ import annotations

import fcntl
import gzip
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import tiny_tokenizer, write_vocab

from bertkit.data import workers
from bertkit.data.corpus import Corpus
from bertkit.data.document_readers import BlankLines, documents
from bertkit.data.sentences import split
from bertkit.errors import ConfigError, DataError, StorageError
from bertkit.recipes import prepare as recipe
from bertkit.recipes.prepare import prepare
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary_training import train


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pydoc_data import topics

    words = Counter(" ".join(topics.topics.values()).lower().split())
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    common = [w for w, _ in words.most_common(800) if w.isalpha() and len(w) > 1]
    inside = [f"##{letter}" for letter in letters if letter.isalnum()]
    return write_vocab(tmp_path_factory.mktemp("vocab"), [*letters, *inside, *common])


@pytest.fixture(scope="module")
def tokenizer(vocab: Path) -> Tokenizer:
    return Tokenizer.load(vocab)


@pytest.fixture
def texts(tmp_path: Path, english: list[str]) -> Path:
    """Return a directory with about 600 kB of text in all supported formats."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "long.txt").write_text("\n\n".join(english[:30]), encoding="utf-8")
    for i, chapter in enumerate(english[30:50]):
        (folder / f"short{i:02d}.txt").write_text(chapter, encoding="utf-8")
    rows = [json.dumps({"id": i, "text": t}) for i, t in enumerate([*english[50:65], "", "\u200b"])]
    (folder / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    with gzip.open(folder / "packed.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n\n".join(english[65:75]))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def tokens_of(corpus: Corpus) -> list[list[int]]:
    bounds = corpus.document_starts
    return [corpus.slice(int(a), int(b)).tolist() for a, b in pairwise(bounds)]


# ---- Content of the corpus


@pytest.mark.parametrize("blank_lines", ["paragraphs", "documents"])
def test_corpus_contains_token_ids_of_all_sentences(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, blank_lines: BlankLines
) -> None:
    corpus = prepare(
        [texts], tokenizer=tokenizer, out=tmp_path / "c", blank_lines=blank_lines, processes=1
    )
    expected = []
    for document in documents([texts], blank_lines=blank_lines):
        assert not document.continues
        expected.append([tokenizer.ids([s])[0].tolist() for s in split(document.text)])
    whole = [[t for s in d for t in s] for d in expected]
    assert tokens_of(corpus) == [d for d in whole if d]
    assert corpus.manifest.left_out == len([d for d in whole if not d]) > 0
    lengths = [len(s) for d in expected for s in d if s]
    if max(lengths) <= 128:
        assert np.diff(corpus.starts).tolist() == lengths
    assert corpus.sentences == sum(-(-n // 128) for n in lengths)
    corpus.verify()


@pytest.mark.parametrize("shard_tokens", [1 << 20, 300])
def test_corpus_of_bpe_tokens_decodes_to_its_documents(
    tmp_path: Path, english: list[str], shard_tokens: int
) -> None:
    texts = [" ".join(split(text)) for text in english[:8]]
    rows = "\n".join(json.dumps({"text": text}) for text in texts)
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    tokenizer = train(texts, kind="bpe", use="write", size=300)
    corpus = prepare(
        [tmp_path / "rows.jsonl"], tokenizer=tokenizer, out=tmp_path / "c", processes=1,
        shard_tokens=shard_tokens,
    )  # fmt: skip
    decoded = [tokenizer.decode(ids) for ids in tokens_of(corpus)]
    assert decoded == texts if shard_tokens > 300 else "".join(decoded) == "".join(texts)
    assert any(len(split(text)) > 1 for text in texts)  # Otherwise no space could be lost.


def test_corpus_records_its_sources_and_tokenizer(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", processes=1)
    lines = capsys.readouterr().err.splitlines()
    names = [Path(s.file).name for s in corpus.manifest.sources]
    assert names == sorted(p.name for p in texts.iterdir())
    assert corpus.tokenizer().fingerprint == tokenizer.fingerprint
    assert sorted(p.name for p in corpus.folder.iterdir() if "shard" not in p.name) == [
        "manifest.json",
        "tokenizer",
    ]
    assert len(lines) == 2
    assert "characters: about" in lines[0]
    assert f"{corpus.tokens:,} tokens" in lines[1]
    assert "2 documents without tokens skipped" in lines[1]
    shards = sum(p.stat().st_size for p in corpus.folder.glob("shard-*"))
    assert shards / corpus.tokens < 2.2


def test_token_estimate_is_close_to_the_count(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", processes=1)
    lines = capsys.readouterr().err.splitlines()
    tokens = int(lines[0].split("about ")[1].split(" tokens")[0].replace(",", ""))
    assert tokens == pytest.approx(corpus.tokens, rel=0.35, abs=6e4)


def test_large_vocabularies_use_four_bytes_per_token(tmp_path: Path, vocab: Path) -> None:
    big = tmp_path / "vocab.txt"
    extra = "".join(f"\nx{i}" for i in range(70_000))
    big.write_text(vocab.read_text(encoding="utf-8") + extra, encoding="utf-8")
    (tmp_path / "a.txt").write_text("the x69999", encoding="utf-8")
    tokenizer = Tokenizer.load(big)
    corpus = prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "c", processes=1)
    assert corpus.manifest.dtype == "uint32"
    assert tokens_of(corpus) == [tokenizer.ids(["the x69999"])[0].tolist()]
    assert tokens_of(corpus)[0][-1] > 1 << 16


# ---- Identical bytes


def test_corpus_is_independent_of_the_number_of_processes(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    found = []
    for processes in (1, 3):
        out = tmp_path / f"c{processes}"
        corpus = prepare(
            [texts], tokenizer=tokenizer, out=out, processes=processes, shard_tokens=5000
        )
        assert len(corpus.manifest.shards) > 10
        found.append(content(out))
    assert found[0] == found[1]


def test_separate_parts_match_a_complete_run(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"tokenizer": tokenizer, "shard_tokens": 5000, "processes": 1}
    whole = prepare([texts], out=tmp_path / "whole", **given)
    out = tmp_path / "parts"
    for part in ("3/3", "1/3", "1/3"):  # Finished parts are not repeated.
        assert prepare([texts], out=out, part=part, **given) is None
    messages = capsys.readouterr().err
    assert "part 1/3 is finished" in messages
    assert "run the same command without --part" in messages
    assert not (out / "manifest.json").exists()
    finished_inodes = inodes(out, ".work/[0-9]*.tokens")
    prepare([texts], out=out, **given)  # This call processes the missing part.
    assert finished_inodes < inodes(out, "shard-*.tokens")
    assert content(out) == content(whole.folder)


def test_parallel_parts_match_after_kill_and_restart(
    texts: Path, vocab: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    for i in range(24):  # The run must be long enough to be killed.
        shutil.copy(texts / "long.txt", texts / f"more{i}.txt")
    whole = prepare(
        [texts], tokenizer=tokenizer, out=tmp_path / "a", shard_tokens=4000, processes=1
    )
    script, out = tmp_path / "run.py", tmp_path / "b"
    script.write_text(SCRIPT)

    def start(number: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, script, texts, vocab, out, "1", f"{number}/4"])

    runs = {number: start(number) for number in range(1, 5)}
    unkilled, end = {2, 3}, time.monotonic() + 60
    while unkilled:
        assert time.monotonic() < end
        for number in [n for n in unkilled if (out / f".work/{n - 1:06d}.json").exists()]:
            runs[number].kill()
            unkilled.remove(number)
        time.sleep(0.002)
    for number, run in runs.items():
        assert run.wait() == (-signal.SIGKILL if number in (2, 3) else 0)
    for run in [start(2), start(3)]:
        assert run.wait() == 0
    before = inodes(out, ".work/[0-9]*.tokens")
    corpus = prepare([texts], tokenizer=tokenizer, out=out, shard_tokens=4000, processes=1)
    assert inodes(out, "shard-*.tokens") == before  # No work was left.
    assert content(out) == content(whole.folder)
    corpus.verify()


@pytest.mark.parametrize("part", ["0/8", "9/8", "3", "a/b", "-1/8", "/", "²/3"])
def test_prepare_rejects_invalid_parts(
    part: str, texts: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"part must be a fraction such as 3/8"):
        prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", part=part)
    assert not (tmp_path / "c").exists()


def test_long_documents_are_split_and_counted(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = texts / "long.txt"
    whole = prepare([path], tokenizer=tokenizer, out=tmp_path / "a", processes=1)
    assert (whole.documents, whole.manifest.cut) == (1, 0)
    cut = prepare([path], tokenizer=tokenizer, out=tmp_path / "b", processes=1, shard_tokens=9000)
    assert cut.documents == cut.manifest.cut + 1 >= 3
    assert [t for d in tokens_of(cut) for t in d] == tokens_of(whole)[0]
    assert max(len(d) for d in tokens_of(cut)) < 5 * 9000


SCRIPT = """
import sys
from pathlib import Path
from bertkit.recipes.prepare import prepare
from bertkit.text.tokenizer import Tokenizer
if __name__ == "__main__":
    texts, vocab, out = map(Path, sys.argv[1:4])
    prepare([texts], tokenizer=Tokenizer.load(vocab), out=out, shard_tokens=4000,
            processes=int(sys.argv[4]), part=(sys.argv[5:] or [None])[0])
"""


def inodes(folder: Path, pattern: str) -> set[int]:
    return {p.stat().st_ino for p in folder.glob(pattern)}


def test_killed_run_resumes_to_the_same_bytes(
    texts: Path,
    vocab: Path,
    tokenizer: Tokenizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for i in range(24):  # The run must be long enough to be killed.
        shutil.copy(texts / "long.txt", texts / f"more{i}.txt")
    uninterrupted = prepare(
        [texts], tokenizer=tokenizer, out=tmp_path / "a", shard_tokens=4000, processes=1
    )
    script, out = tmp_path / "run.py", tmp_path / "b"
    script.write_text(SCRIPT)
    for finished_units in (1, 40):
        run = subprocess.Popen([sys.executable, script, texts, vocab, out, "2"])
        wait_for(lambda n=finished_units: len(list((out / ".work").glob("*.json"))) > n, run)
        run.kill()
        run.wait()
        done = {p.stem for p in (out / ".work").glob("[0-9]*.json")}
        kept = {p.name: p.stat().st_ino for d in done for p in (out / ".work").glob(f"{d}-*")}
    assert not (out / "manifest.json").exists()
    with pytest.raises(DataError, match="not a corpus"):
        Corpus.open(out)
    capsys.readouterr()
    corpus = prepare([texts], tokenizer=tokenizer, out=out, shard_tokens=4000, processes=2)
    assert "remaining)" in capsys.readouterr().err
    assert set(kept.values()) <= inodes(out, "shard-*")  # Finished shards are not written again.
    assert content(out) == content(uninterrupted.folder)
    corpus.verify()


def wait_for(happened: Callable[[], bool], run: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert run.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.002)


def test_run_killed_while_renaming_shards_resumes(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(out: Path) -> Corpus:
        return prepare([texts], tokenizer=tokenizer, out=out, processes=1, shard_tokens=9000)

    uninterrupted = run(tmp_path / "a")
    replace, left = Path.replace, [7]

    def failing(self: Path, target: Path) -> Path:
        if "shard" in str(target):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", failing)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "b")
    assert len(list((tmp_path / "b").glob("shard-*"))) == 7
    run(tmp_path / "b")
    assert content(tmp_path / "b") == content(uninterrupted.folder)


# ---- Rejected without output


def leave_unfinished_work(
    texts: Path, tokenizer: Tokenizer, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start a run and interrupt it before it finishes."""
    with monkeypatch.context() as patch:
        patch.setattr(recipe, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare([texts], tokenizer=tokenizer, out=out, processes=1)


def test_resume_rejects_changed_settings_or_text(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "c"
    leave_unfinished_work(texts, tokenizer, out, monkeypatch)
    before = content(out)

    def check_rejected(message: str, **changes: Any) -> None:
        options: dict[str, Any] = {"tokenizer": tokenizer, "out": out, "processes": 1} | changes
        with pytest.raises(DataError, match=message):
            prepare(options.pop("paths", [texts]), **options)
        assert content(out) == before

    check_rejected("whose blank_lines was 'paragraphs'; use the original", blank_lines="documents")
    check_rejected("whose tokenizer was different", tokenizer=tiny_tokenizer("a"))
    check_rejected(r"packed.txt.gz was .*long.txt", paths=[texts / "packed.txt.gz"])
    check_rejected(r"on 23 files, not 1", paths=[texts / "long.txt"])
    with (texts / "rows.jsonl").open("a") as file:
        file.write("\n")
    check_rejected("rows.jsonl has changed since")
    (out / ".work" / "plan.json").write_text("{")
    before = content(out)
    check_rejected("plan.json: damaged")


def test_prepare_keeps_existing_output_and_input(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    path = texts / "short00.txt"

    def check_rejected(message: str, paths: list[Path], out: Path) -> None:
        before = content(tmp_path)
        with pytest.raises(ConfigError, match=message):
            prepare(paths, tokenizer=tokenizer, out=out, processes=1)
        assert content(tmp_path) == before

    prepare([path], tokenizer=tokenizer, out=out, processes=1)
    check_rejected("already exists; choose another out= or delete it", [path], out)
    check_rejected("already exists", [path], texts)
    check_rejected("already exists", [path], path)
    check_rejected("is within the input", [texts], texts / "corpus")


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("name", "data", "message"),
    [("z.txt", b"Good.\n\n\xff\xfe", r"z\.txt:3: not UTF-8 \(0xff at byte 7\)"),
     ("z.jsonl", b'{"text": "A"}\n{"body": "B"}', r"z\.jsonl:2: no field 'text'"),
     ("z.txt.gz", gzip.compress(b"text " * 999, mtime=0)[:-9],
      r"z\.txt\.gz: damaged or truncated")],
)  # fmt: skip
def test_prepare_rejects_invalid_text_before_writing(
    texts: Path,
    tokenizer: Tokenizer,
    tmp_path: Path,
    processes: int,
    name: str,
    data: bytes,
    message: str,
) -> None:
    (texts / name).write_bytes(data)
    out = tmp_path / "c"
    with pytest.raises(DataError, match=message):
        prepare([texts], tokenizer=tokenizer, out=out, processes=processes, shard_tokens=9000)
    assert not out.exists()


def test_prepare_rejects_text_without_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\u200b \u200b", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.txt: the text has no tokens"):
        prepare([path], tokenizer=tokenizer, out=tmp_path / "c", processes=1)
    assert not (tmp_path / "c").exists()


def test_prepare_rejects_insufficient_disk_space_before_writing(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(recipe.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        DataError, match=r"the corpus needs about [\d.]+ MB, but only 1 MB are free"
    ):
        prepare([texts], tokenizer=tokenizer, out=tmp_path / "a" / "c", processes=1)
    assert not (tmp_path / "a").exists()


def test_full_disk_keeps_finished_shards(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "c"
    with monkeypatch.context() as patch:
        add, calls = workers.Shards.add, [0]

        def full(self: Any, *args: Any) -> None:
            calls[0] += 1
            if calls[0] == 5:
                raise OSError(28, "No space left on device")
            add(self, *args)

        patch.setattr(workers.Shards, "add", full)
        with pytest.raises(StorageError, match=r"the disk is full; .*; finished shards are kept"):
            prepare([texts], tokenizer=tokenizer, out=out, processes=1, shard_tokens=9000)
    kept = inodes(out, ".work/[0-9]*.tokens") - {0}
    finished = len(list((out / ".work").glob("[0-9]*.json")))
    assert finished == 4
    prepare([texts], tokenizer=tokenizer, out=out, processes=1, shard_tokens=9000)
    assert len(kept & inodes(out, "shard-*.tokens")) >= finished


def test_prepare_rejects_a_second_process(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    (out / ".work").mkdir(parents=True)
    with (out / ".work" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="in use by another process"):
            prepare([texts], tokenizer=tokenizer, out=out, processes=1)
    prepare([texts], tokenizer=tokenizer, out=out, processes=1)


def test_workers_stop_with_their_parent_process(tmp_path: Path, texts: Path, vocab: Path) -> None:
    script, out = tmp_path / "run.py", tmp_path / "c"
    script.write_text(SCRIPT)
    for i in range(8):
        shutil.copy(texts / "long.txt", texts / f"more{i}.txt")
    run = subprocess.Popen([sys.executable, script, texts, vocab, out, "2"])
    wait_for(lambda: len(list((out / ".work").glob("*.json"))) > 3, run)
    run.kill()
    run.wait()
    with (out / ".work" / "workers").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Wait until the workers have stopped.
        before = inodes(out / ".work", "*")
        time.sleep(0.2)
        assert inodes(out / ".work", "*") == before
