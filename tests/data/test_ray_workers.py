"""Ray: the bytes and errors of one process, whatever becomes of the cluster's workers."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.factories import tiny_tokenizer

from bertkit.data import ray_workers, workers
from bertkit.data.ray_workers import RayPool
from bertkit.data.workers import Message, Step, Unit, Worker
from bertkit.errors import BertkitError, ConfigError, DataError, StorageError
from bertkit.recipes import prepare as recipe
from bertkit.recipes.prepare import prepare
from bertkit.text.tokenizer import Tokenizer

needs_ray = pytest.mark.usefixtures("ray")


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A small cluster of our own, which tests share as if their program had connected it, and which
    leaves nothing behind.
    """
    if importlib.util.find_spec("ray") is None:  # not imported here, but with its environment
        pytest.skip("Ray is requires Ray; run pip install 'bertkit[cleaning]'")
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("HOME", str(home))
        patch.setattr(tempfile, "tempdir", temporary)
        cluster = stack.enter_context(ExitStack())
        yield cluster.enter_context(ray_workers.connected(2))
        with warnings.catch_warnings():  # Ray does not wait for the processes that it ends
            warnings.simplefilter("ignore", ResourceWarning)
            cluster.close()
            gc.collect()
        assert not list(Path(temporary).glob("ray*"))
        assert not (home / ".ray").exists()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer(["the", "of", "and", *"abcdefghijklmnopqrstuvwxyz"])


@pytest.fixture
def texts(tmp_path: Path, english: list[str]) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(6):
        text = "\n\n".join(english[8 * i : 8 * i + 8])
        (folder / f"{i}.txt").write_text(text, encoding="utf-8")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class _Dies(Worker):
    """Killed by the system in the middle of unit 1."""

    def __call__(self, step: Step, number: int, unit: Unit) -> Iterator[Message]:
        if number == 1:
            yield 10
            time.sleep(0.2)  # so that the message gets there
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().__call__(step, number, unit)


class _DiesOnce(_Dies):
    """The first time that it makes one."""

    def __call__(self, step: Step, number: int, unit: Unit) -> Iterator[Message]:
        begun = self.work / f"begun-{number}"
        if step == "make" and not begun.exists():
            begun.touch()
            next(Worker.__call__(self, step, number, unit))  # leaves half a shard
            yield from super().__call__(step, number, unit)
        else:
            yield from Worker.__call__(self, step, number, unit)


class _Fails(Worker):
    def __call__(self, *_: object) -> Iterator[Message]:
        raise ZeroDivisionError("a mistake of ours")


class _Lingers(Worker):
    def __call__(self, *_: object) -> Iterator[Message]:
        yield 10
        time.sleep(60)


def pool(kind: type[Worker], place: Path) -> RayPool:
    settings = workers.CorpusSettings(
        tokenizer="", field="text", blank_lines="paragraphs", language="en", shard_tokens=9
    )
    worker = kind(place / "c", settings)
    worker.work.mkdir(parents=True)
    return RayPool(worker, 2)


def test_a_command_gives_the_bytes_of_one_process_on_the_cluster_that_is_there(
    ray: Any, texts: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    whole = prepare([texts], tokenizer=tokenizer, out=tmp_path / "whole", processes=1)
    tokenizer.save(tmp_path / "t")
    words = f"prepare {texts} --tokenizer t --out c --engine ray"  # relative
    done = subprocess.run(
        [sys.executable, "-m", "bertkit", *words.split()],
        cwd=tmp_path,
        env={**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert content(tmp_path / "c") == content(whole.folder)


@needs_ray
def test_a_worker_that_is_killed_is_replaced_and_the_bytes_stay(
    texts: Path,
    tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given: dict[str, Any] = {"tokenizer": tokenizer, "shard_tokens": 5000}
    whole = prepare([texts], out=tmp_path / "whole", processes=1, **given)
    assert len(whole.manifest.shards) > 5
    monkeypatch.setattr(recipe, "Worker", _DiesOnce)
    out = tmp_path / "killed"
    prepare([texts], out=out, engine="ray", **given)
    assert "a new worker restarts its text" in capsys.readouterr().err
    assert content(out) == content(whole.folder)


@needs_ray
def test_bad_text_is_told_as_by_one_process(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    (texts / "z.txt").write_bytes(b"Good.\n\n\xff\xfe")
    told = []
    for engine in ("processes", "ray"):
        with pytest.raises(DataError, match=r"z\.txt:3: not UTF-8") as caught:
            prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", engine=engine, processes=2)  # type: ignore[arg-type]
        told.append(str(caught.value))
        assert type(caught.value) is DataError
    assert told[0] == told[1]
    assert not (tmp_path / "c").exists()


@needs_ray
def test_a_unit_whose_workers_die_again_and_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MAX_TRIES", 2)  # for each takes seconds
    (tmp_path / "a.txt").write_text("A text.", encoding="utf-8")
    units, told = {1: Unit([(str(tmp_path / "a.txt"), 0, 7)])}, []
    sentence = "worker processes died 2 times on the same text"
    with pool(_Dies, tmp_path) as started, pytest.raises(StorageError, match=sentence):
        told.extend(started.run("check", units))  # keeps what comes before the error
    assert told == [(1, 10), (1, -10), (1, 10)]  # what was done is taken back


@needs_ray
def test_a_mistake_in_a_worker_comes_with_its_place(tmp_path: Path) -> None:
    with pool(_Fails, tmp_path) as started, pytest.raises(ZeroDivisionError) as caught:
        list(started.run("check", {0: Unit([])}))
    assert not isinstance(caught.value, BertkitError)
    assert "in __call__" in caught.value.__notes__[0]


@needs_ray
def test_no_worker_outlives_its_owner(ray: Any, tmp_path: Path) -> None:
    started = pool(_Lingers, tmp_path)
    with started:
        assert next(started.run("make", {0: Unit([])})) == (0, 10)
    began = time.monotonic()
    with started._worker.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits for them
    assert time.monotonic() - began < 20
    assert ray.is_initialized()  # for it is not ours to end


def test_sockets_have_short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for temporary in ("/tmp", str(tmp_path / ("long" * 20))):
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        with ray_workers._folder() as folder:
            session = "r/session_2026-11-25_17-43-43_909539_4194304/sockets/plasma_store"
            assert len(f"{folder}/{session}") <= 107


# ---- refused


def test_an_unknown_engine_is_refused(texts: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine: no such value 'rya'; did you mean 'ray'\?"):
        prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", engine="rya")  # type: ignore[arg-type]


def test_a_missing_package_is_named(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"requires Ray; run pip install 'bertkit\[cleaning\]'"):
        prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", engine="ray")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("127.0.0.1:1", "RAY_ADDRESS = 127.0.0.1:1: .*refused"), ("ray://a:1", "run the command on")],
)
def test_a_cluster_that_cannot_be_reached_is_told(
    address: str, sentence: str, ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=sentence), pool(Worker, tmp_path):
        pass
