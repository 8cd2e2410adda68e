"""Ray workers: results and errors equal those of a single process."""

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
    """Start a small cluster that the tests share, and check that it removes its files."""
    # The environment must be prepared before Ray is imported.
    if importlib.util.find_spec("ray") is None:
        pytest.skip("requires Ray; run pip install 'bertkit[cleaning]'")
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("HOME", str(home))
        patch.setattr(tempfile, "tempdir", temporary)
        cluster = stack.enter_context(ExitStack())
        yield cluster.enter_context(ray_workers.connected(2))
        # Ray does not wait for the processes that it stops.
        with warnings.catch_warnings():
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
    """Worker that is killed during unit 1."""

    def __call__(self, step: Step, number: int, unit: Unit) -> Iterator[Message]:
        if number == 1:
            yield 10
            # The message arrives before the kill.
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().__call__(step, number, unit)


class _DiesOnce(_Dies):
    """Worker that is killed only in its first attempt."""

    def __call__(self, step: Step, number: int, unit: Unit) -> Iterator[Message]:
        begun = self.work / f"begun-{number}"
        if step == "make" and not begun.exists():
            begun.touch()
            # This leaves half a shard.
            next(Worker.__call__(self, step, number, unit))
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


def pool(kind: type[Worker], directory: Path) -> RayPool:
    settings = workers.CorpusSettings(
        tokenizer="", field="text", blank_lines="paragraphs", language="en", shard_tokens=9
    )
    worker = kind(directory / "c", settings)
    worker.work.mkdir(parents=True)
    return RayPool(worker, 2)


def test_prepare_on_existing_cluster_matches_one_process(
    ray: Any, texts: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    whole = prepare([texts], tokenizer=tokenizer, out=tmp_path / "whole", processes=1)
    tokenizer.save(tmp_path / "t")
    # The paths are relative.
    words = f"prepare {texts} --tokenizer t --out c --engine ray"
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
def test_killed_worker_is_replaced_without_changing_output(
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
    assert "a new worker process restarts its part" in capsys.readouterr().err
    assert content(out) == content(whole.folder)


@needs_ray
def test_text_errors_match_one_process(texts: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (texts / "z.txt").write_bytes(b"Good.\n\n\xff\xfe")
    messages = []
    for engine in ("processes", "ray"):
        with pytest.raises(DataError, match=r"z\.txt:3: not UTF-8") as caught:
            prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", engine=engine, processes=2)  # type: ignore[arg-type]
        messages.append(str(caught.value))
        assert type(caught.value) is DataError
    assert messages[0] == messages[1]
    assert not (tmp_path / "c").exists()


@needs_ray
def test_run_fails_if_workers_die_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each attempt takes seconds.
    monkeypatch.setattr(workers, "MAX_TRIES", 2)
    (tmp_path / "a.txt").write_text("A text.", encoding="utf-8")
    units, messages = {1: Unit([(str(tmp_path / "a.txt"), 0, 7)])}, []
    sentence = "worker processes died 2 times on the same text"
    with pool(_Dies, tmp_path) as started, pytest.raises(StorageError, match=sentence):
        # The list keeps the results before the error.
        messages.extend(started.run("check", units))
    # The negative count reverts the progress.
    assert messages == [(1, 10), (1, -10), (1, 10)]


@needs_ray
def test_worker_exception_includes_its_traceback(tmp_path: Path) -> None:
    with pool(_Fails, tmp_path) as started, pytest.raises(ZeroDivisionError) as caught:
        list(started.run("check", {0: Unit([])}))
    assert not isinstance(caught.value, BertkitError)
    assert "in __call__" in caught.value.__notes__[0]


@needs_ray
def test_workers_exit_with_their_pool(ray: Any, tmp_path: Path) -> None:
    started = pool(_Lingers, tmp_path)
    with started:
        assert next(started.run("make", {0: Unit([])})) == (0, 10)
    began = time.monotonic()
    with started._worker.lock.open("w") as lock:
        # The lock waits for the workers to exit.
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert time.monotonic() - began < 20
    # The test did not start the cluster.
    assert ray.is_initialized()


def test_sockets_have_short_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for temporary in ("/tmp", str(tmp_path / ("long" * 20))):
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        with ray_workers._folder() as folder:
            session = "r/session_2026-11-25_17-43-43_909539_4194304/sockets/plasma_store"
            assert len(f"{folder}/{session}") <= 107


# ---- Errors


def test_prepare_rejects_unknown_engine(texts: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine: no such value 'rya'; did you mean 'ray'\?"):
        prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", engine="rya")  # type: ignore[arg-type]


def test_prepare_reports_missing_ray(
    texts: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        BertkitError, match=r"ray is not installed; run `pip install 'bertkit\[cleaning\]'"
    ):
        prepare([texts], tokenizer=tokenizer, out=tmp_path / "c", engine="ray")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [("127.0.0.1:1", "RAY_ADDRESS = 127.0.0.1:1: .*refused"), ("ray://a:1", "run the command on")],
)
def test_pool_reports_unreachable_cluster(
    address: str, sentence: str, ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=sentence), pool(Worker, tmp_path):
        pass
