"""Preparing: the tokenizer's ids in order, the same bytes whatever happens on the way."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
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
from bertkit.errors import BertkitError, ConfigError, DataError, StorageError
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
    """A folder with text of every kind, about 600 kB."""
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


# ---- what comes out


@pytest.mark.parametrize("blank_lines", ["paragraphs", "documents"])
def test_a_corpus_holds_the_tokenizers_ids_of_every_sentence(
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
def test_where_spaces_are_part_of_words_a_corpus_says_its_documents(
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
    said = [tokenizer.decode(ids) for ids in tokens_of(corpus)]
    assert said == texts if shard_tokens > 300 else "".join(said) == "".join(texts)
    assert any(len(split(text)) > 1 for text in texts)  # else there is no space to lose


def test_a_corpus_knows_where_it_is_from(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", processes=1)
    said = capsys.readouterr().err.splitlines()
    names = [Path(s.file).name for s in corpus.manifest.sources]
    assert names == sorted(p.name for p in texts.iterdir())
    assert corpus.tokenizer().fingerprint == tokenizer.fingerprint
    assert sorted(p.name for p in corpus.folder.iterdir() if "shard" not in p.name) == [
        "manifest.json",
        "tokenizer",
    ]
    assert len(said) == 2
    assert "characters: about" in said[0]
    assert f"{corpus.tokens:,} tokens" in said[1]
    assert "2 documents without tokens skipped" in said[1]
    shards = sum(p.stat().st_size for p in corpus.folder.glob("shard-*"))
    assert shards / corpus.tokens < 2.2


def test_the_estimate_is_near(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", processes=1)
    said = capsys.readouterr().err.splitlines()
    tokens = int(said[0].split("about ")[1].split(" tokens")[0].replace(",", ""))
    assert tokens == pytest.approx(corpus.tokens, rel=0.35, abs=6e4)


def test_large_vocabularies_take_four_bytes(tmp_path: Path, vocab: Path) -> None:
    big = tmp_path / "vocab.txt"
    extra = "".join(f"\nx{i}" for i in range(70_000))
    big.write_text(vocab.read_text(encoding="utf-8") + extra, encoding="utf-8")
    (tmp_path / "a.txt").write_text("the x69999", encoding="utf-8")
    tokenizer = Tokenizer.load(big)
    corpus = prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "c", processes=1)
    assert corpus.manifest.dtype == "uint32"
    assert tokens_of(corpus) == [tokenizer.ids(["the x69999"])[0].tolist()]
    assert tokens_of(corpus)[0][-1] > 1 << 16


# ---- the same bytes


def test_any_number_of_processes_gives_the_same_bytes(
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


def test_parts_done_by_others_give_the_same_bytes(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"tokenizer": tokenizer, "shard_tokens": 5000, "processes": 1}
    whole = prepare([texts], out=tmp_path / "whole", **given)
    out = tmp_path / "parts"
    for part in ("3/3", "1/3", "1/3"):  # what is done is not done again
        assert prepare([texts], out=out, part=part, **given) is None
    told = capsys.readouterr().err
    assert "part 1/3 is finished" in told
    assert "run the same command without --part" in told
    assert not (out / "manifest.json").exists()
    made = inodes(out, ".work/[0-9]*.tokens")
    prepare([texts], out=out, **given)  # and does the part that nobody did
    assert made < inodes(out, "shard-*.tokens")
    assert content(out) == content(whole.folder)


def test_parts_at_once_of_which_some_are_killed_give_the_same_bytes(
    texts: Path, vocab: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    for i in range(24):  # enough work to be killed in
        shutil.copy(texts / "long.txt", texts / f"more{i}.txt")
    whole = prepare(
        [texts], tokenizer=tokenizer, out=tmp_path / "a", shard_tokens=4000, processes=1
    )
    script, out = tmp_path / "run.py", tmp_path / "b"
    script.write_text(SCRIPT)

    def start(number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, script, texts, vocab, out, "1", f"{number}/8"]
        return subprocess.Popen(command)

    runs = {number: start(number) for number in range(1, 9)}
    alive, end = {2, 5}, time.monotonic() + 60
    while alive:
        assert time.monotonic() < end
        for number in [n for n in alive if (out / f".work/{n - 1:06d}.json").exists()]:
            runs[number].kill()
            alive.remove(number)
        time.sleep(0.002)
    for number, run in runs.items():
        assert run.wait() == (-signal.SIGKILL if number in (2, 5) else 0)
    for run in [start(2), start(5)]:
        assert run.wait() == 0
    before = inodes(out, ".work/[0-9]*.tokens")
    corpus = prepare([texts], tokenizer=tokenizer, out=out, shard_tokens=4000, processes=1)
    assert inodes(out, "shard-*.tokens") == before  # nothing was left to do
    assert content(out) == content(whole.folder)
    corpus.verify()


@pytest.mark.parametrize("part", ["0/8", "9/8", "3", "a/b", "-1/8", "/", "²/3"])
def test_a_part_that_is_none_is_refused(
    part: str, texts: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"part must be a fraction such as 3/8"):
        prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", part=part)
    assert not (tmp_path / "c").exists()


def test_long_documents_are_cut_and_counted(
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


@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_run_goes_on_to_the_same_bytes(
    texts: Path,
    vocab: Path,
    tokenizer: Tokenizer,
    tmp_path: Path,
    processes: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for i in range(24):  # enough work to be killed in
        shutil.copy(texts / "long.txt", texts / f"more{i}.txt")
    straight = prepare(
        [texts], tokenizer=tokenizer, out=tmp_path / "a", shard_tokens=4000, processes=1
    )
    script, out = tmp_path / "run.py", tmp_path / "b"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(texts), str(vocab), str(out), str(processes)]
    redone = 0
    for wanted in (1, 20, 60):
        run = subprocess.Popen(command)
        wait_for(lambda n=wanted: len(list((out / ".work").glob("*.json"))) > n, run)
        run.kill()
        run.wait()
        done = {p.stem for p in (out / ".work").glob("[0-9]*.json")}
        kept = {p.name: p.stat().st_ino for d in done for p in (out / ".work").glob(f"{d}-*")}
        redone = redone or len(kept)
    assert not (out / "manifest.json").exists()
    with pytest.raises(DataError, match="not a corpus"):
        Corpus.open(out)
    capsys.readouterr()
    corpus = prepare([texts], tokenizer=tokenizer, out=out, shard_tokens=4000, processes=2)
    assert "remaining)" in capsys.readouterr().err
    assert set(kept.values()) <= inodes(out, "shard-*")  # finished shards were not written again
    assert content(out) == content(straight.folder)
    corpus.verify()


def wait_for(happened: Callable[[], bool], run: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert run.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_run_killed_while_naming_shards_goes_on(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(out: Path) -> Corpus:
        return prepare([texts], tokenizer=tokenizer, out=out, processes=1, shard_tokens=9000)

    straight = run(tmp_path / "a")
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
    assert content(tmp_path / "b") == content(straight.folder)


# ---- refused, with nothing written


def begin(texts: Path, tokenizer: Tokenizer, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave unfinished work there."""
    with monkeypatch.context() as patch:
        patch.setattr(recipe, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare([texts], tokenizer=tokenizer, out=out, processes=1)


def test_unfinished_work_is_not_mixed_with_other_settings_or_text(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "c"
    begin(texts, tokenizer, out, monkeypatch)
    before = content(out)

    def refused(message: str, **changes: Any) -> None:
        options: dict[str, Any] = {"tokenizer": tokenizer, "out": out, "processes": 1} | changes
        with pytest.raises(DataError, match=message):
            prepare(options.pop("paths", [texts]), **options)
        assert content(out) == before

    refused("whose blank_lines was 'paragraphs'; use the original", blank_lines="documents")
    refused("whose tokenizer was different", tokenizer=tiny_tokenizer("a"))
    refused(r"packed.txt.gz was .*long.txt", paths=[texts / "packed.txt.gz"])
    refused(r"on 23 files, not 1", paths=[texts / "long.txt"])
    with (texts / "rows.jsonl").open("a") as file:
        file.write("\n")
    refused("rows.jsonl has changed since")
    (out / ".work" / "plan.json").write_text("{")
    before = content(out)
    refused("plan.json: damaged")


def test_what_stands_in_the_way_is_kept(texts: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    out = tmp_path / "c"
    path = texts / "short00.txt"

    def refused(message: str, paths: list[Path], out: Path) -> None:
        before = content(tmp_path)
        with pytest.raises(ConfigError, match=message):
            prepare(paths, tokenizer=tokenizer, out=out, processes=1)
        assert content(tmp_path) == before

    prepare([path], tokenizer=tokenizer, out=out, processes=1)
    refused("already exists; choose another out= or delete it", [path], out)
    refused("already exists", [path], texts)
    refused("already exists", [path], path)
    refused("is within the input", [texts], texts / "corpus")


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("z.txt", b"Good.\n\n\xff\xfe", r"z\.txt:3: not UTF-8 \(0xff at byte 7\)"),
        ("z.jsonl", b'{"text": "A"}\n{"body": "B"}', r"z\.jsonl:2: no field 'text'"),
        (
            "z.txt.gz",
            gzip.compress(b"text " * 999, mtime=0)[:-9],
            r"z\.txt\.gz: damaged or truncated",
        ),
    ],
)
def test_bad_text_is_refused_before_anything_is_written(
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


def test_text_without_a_token_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\u200b \u200b", encoding="utf-8")
    with pytest.raises(DataError, match=r"a\.txt: the text has no tokens"):
        prepare([path], tokenizer=tokenizer, out=tmp_path / "c", processes=1)
    assert not (tmp_path / "c").exists()


def test_a_disk_too_small_is_refused_before_anything_is_written(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(recipe.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(
        DataError, match=r"the corpus needs about [\d.]+ MB, but only 1 MB are free"
    ):
        prepare([texts], tokenizer=tokenizer, out=tmp_path / "a" / "c", processes=1)
    assert not (tmp_path / "a").exists()


def test_a_full_disk_keeps_what_is_finished(
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


def test_two_at_once_in_one_place_are_refused(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    (out / ".work").mkdir(parents=True)
    with (out / ".work" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process works there"):
            prepare([texts], tokenizer=tokenizer, out=out, processes=1)
    prepare([texts], tokenizer=tokenizer, out=out, processes=1)


# ---- processes


class _Dies:
    """A worker killed by the system, as for want of memory."""

    def __init__(self, work: Path) -> None:
        self.lock = work

    def __call__(self, *_: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class _Fails(_Dies):
    def __call__(self, *_: object) -> Any:
        raise ZeroDivisionError("a mistake of ours")


class _DiesOnce(_Dies):
    """In the middle of a unit, the first time."""

    def __call__(self, step: object, number: int, unit: workers.Unit) -> Any:
        yield 10
        if not (self.lock / f"died-{number}").exists() and number == 1:
            (self.lock / f"died-{number}").touch()
            time.sleep(0.2)  # so that the message gets there
            super().__call__()
        yield unit


def test_a_unit_whose_workers_die_again_and_again_is_given_up(tmp_path: Path) -> None:
    pool = workers.WorkerPool(_Dies(tmp_path), 2)  # type: ignore[arg-type]
    with pool, pytest.raises(StorageError, match="worker processes died 3 times on the same text"):
        list(pool.run("check", {0: workers.Unit([])}))


def test_a_dead_workers_unit_is_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    units = {number: workers.Unit([("text", number, number + 1)]) for number in range(4)}
    with workers.WorkerPool(_DiesOnce(tmp_path), 2) as pool:  # type: ignore[arg-type]
        told = list(pool.run("check", units))
    assert {n: m for n, m in told if isinstance(m, workers.Unit)} == units
    assert sum(m for _, m in told if isinstance(m, int)) == 40
    assert (1, -10) in told
    assert "a new worker restarts its text" in capsys.readouterr().err


def test_a_mistake_in_a_worker_comes_with_its_place(tmp_path: Path) -> None:
    pool = workers.WorkerPool(_Fails(tmp_path), 2)  # type: ignore[arg-type]
    with pool, pytest.raises(ZeroDivisionError) as caught:
        list(pool.run("check", {0: workers.Unit([])}))
    assert not isinstance(caught.value, BertkitError)
    assert "in __call__" in caught.value.__notes__[0]


def test_no_worker_outlives_its_owner(tmp_path: Path, texts: Path, vocab: Path) -> None:
    script, out = tmp_path / "run.py", tmp_path / "c"
    script.write_text(SCRIPT)
    for i in range(8):
        shutil.copy(texts / "long.txt", texts / f"more{i}.txt")
    run = subprocess.Popen([sys.executable, script, texts, vocab, out, "2"])
    wait_for(lambda: len(list((out / ".work").glob("*.json"))) > 3, run)
    run.kill()
    run.wait()
    with (out / ".work" / "workers").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for them
        before = inodes(out / ".work", "*")
        time.sleep(0.2)
        assert inodes(out / ".work", "*") == before
