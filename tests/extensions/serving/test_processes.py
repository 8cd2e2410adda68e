"""Server processes: start, signals, workers, keys, and invalid arguments."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from bertkit import cli, threads
from bertkit.errors import ServeError
from bertkit.extensions.serving import processes as run
from bertkit.extensions.serving.client import Client
from bertkit.extensions.serving.models import ModelRegistry


@contextmanager
def process(
    *arguments: str, logged: list[str] | None = None, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server, yield it and its address, and add its log lines to `logged`."""
    logged = [] if logged is None else logged
    command = [sys.executable, "-m", "bertkit", "serve", *arguments, "--port", "0"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    ) as running:
        log = threading.Thread(target=lambda: logged.extend(running.stderr or ()))
        try:
            assert running.stderr is not None
            log_text = ""
            for line in running.stderr:
                log_text += line
                address = re.search(r"served at (\S+)", line)
                if address:
                    break
            else:
                raise AssertionError(log_text)
            log.start()
            yield running, address[1]
        finally:
            # Workers keep the log open, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            if log.is_alive():
                log.join(10)


def test_server_responds_requires_its_key_and_stops(folders: Path, tmp_path: Path) -> None:
    model_dir = tmp_path / "model"
    shutil.copytree(folders / "pretrained", model_dir)
    with (
        process(str(model_dir), BERTKIT_KEY="k") as (running, address),
        Client(address, key="k") as client,
    ):
        assert client.ask("/health/ready") == {"status": "ready"}
        before = client.embed(["a b", "c"])
        assert before.shape == (2, 16)
        assert client.fill_mask("[MASK] a", top=2)[0]["candidates"]
        assert 0 <= client.next_sentence("a", "b")["next"] <= 1
        assert client.similarity("a", ["a", "b"])[0] == pytest.approx(1.0)
        assert client.info()["models"][0]["name"] == "model"
        with pytest.raises(ServeError, match=r"exceeds the maximum of 16 tokens.*\(inputs\)"):
            client.embed("a " * 20)
        with (
            Client(address, key="other") as other,
            pytest.raises(ServeError, match="missing or unknown"),
        ):
            other.embed("a")
        # The served model is in memory.
        shutil.rmtree(model_dir)
        assert (client.embed(["a b", "c"]) == before).all()
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
        with pytest.raises(ServeError, match="cannot reach the server"):
            client.embed("a")


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        *((number, 1) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
        *((number, 2) for number in (signal.SIGTERM, signal.SIGINT)),
        pytest.param(signal.SIGHUP, 2, marks=pytest.mark.slow),
    ],
)
def test_accepted_requests_are_answered_after_signal(
    folders: Path, number: signal.Signals, workers: int
) -> None:
    """After a signal, the server answers all requests that it has accepted.

    The log contains the accepted requests. A request is not accepted if its connection is closed
    before the server reads the request. SIGHUP replaces the workers if there are several.
    """
    replies: list[int] = []
    logged: list[str] = []
    body = {"inputs": ["a b c d e f g"] * 256}

    def send_requests(address: str) -> None:
        with contextlib.suppress(httpx.TransportError), httpx.Client(timeout=30) as client:
            while True:
                replies.append(client.post(f"{address}/embed", json=body).status_code)

    arguments = str(folders / "pretrained"), "--workers", str(workers)
    with process(*arguments, logged=logged) as (running, address):
        threads = [threading.Thread(target=send_requests, args=(address,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        while len(replies) < 12:
            time.sleep(0.01)
        running.send_signal(number)
        if number == signal.SIGHUP and workers > 1:
            end = time.monotonic() + 60
            # `process` reads the first of these lines before `logged` is filled.
            while sum("served at" in line for line in logged) < 3:
                assert time.monotonic() < end
                time.sleep(0.05)
            running.send_signal(signal.SIGTERM)
        interrupted = number == signal.SIGINT and workers == 1
        assert running.wait(60) == (130 if interrupted else 0)
        for thread in threads:
            thread.join()
    statuses = [json.loads(line)["status"] for line in logged if line.startswith("{")]
    assert statuses.count(200) > 12
    assert Counter(statuses) == Counter(replies)
    assert set(statuses) <= {200, 503}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_server_answers_requests_after_terminal_closes(folders: Path, workers: str) -> None:
    """The terminal sends SIGHUP to the parent and to all workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    model = str(folders / "pretrained")
    arguments = ["-m", "bertkit", "serve", model, "--port", port, "--workers", workers]
    terminal, terminal_end = pty.openpty()
    control = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    code = f"{control}os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", code, sys.executable, *arguments]
    streams = {"stdin": terminal_end, "stdout": terminal_end, "stderr": terminal_end}
    running = subprocess.Popen(command, start_new_session=True, **streams)
    os.close(terminal_end)
    reader = threading.Thread(target=_read_all, args=(terminal,), daemon=True)
    reader.start()
    try:
        address, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
        with Client(address, patience=60) as client:
            while time.monotonic() < end:
                with contextlib.suppress(ServeError):
                    client.ask("/health/ready")
                    break
                time.sleep(0.2)
        replies: list[int] = []
        body = {"inputs": ["a b c d e f g"] * 512}
        connected = threading.Barrier(12)

        def send_request() -> None:
            with httpx.Client(base_url=address, timeout=60) as client:
                client.get("/health/live")
                connected.wait()
                replies.append(client.post("/embed", json=body).status_code)

        threads = [threading.Thread(target=send_request) for _ in range(12)]
        for thread in threads:
            thread.start()
        while not replies:
            time.sleep(0.01)
        os.close(terminal)
        for thread in threads:
            thread.join()
        assert replies == [200] * 12
        running.wait(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait(10)


def _read_all(terminal: int) -> None:
    # Reading from a closed terminal raises OSError.
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass


def test_workers_are_replaced_after_sighup(folders: Path) -> None:
    logged: list[str] = []
    arguments = str(folders / "pretrained"), "--workers", "2"
    with process(*arguments, logged=logged) as (running, address):
        with Client(address, patience=0) as client:
            assert client.embed("a").shape == (1, 16)
            running.send_signal(signal.SIGHUP)
            end = time.monotonic() + 60
            # `process` reads the first of these lines before `logged` is filled.
            while sum("served at" in line for line in logged) < 3:
                assert client.embed("a").shape == (1, 16)
                assert time.monotonic() < end
                time.sleep(0.05)
        # Each request uses a new connection, which any worker may accept.
        for _ in range(20):
            httpx.post(f"{address}/tokenize", json={"inputs": "a"}).raise_for_status()
        for _ in range(6):
            counted = httpx.get(f"{address}/metrics").text
            assert 'bertkit_requests_total{route="/tokenize",status="200"} 20.0' in counted
            assert "bertkit_open_requests 1.0" in counted
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0


def test_serve_and_view_require_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("serve", "view"):
        assert cli.run([command]) == 2
        assert "there is nothing to serve; pass a model" in capsys.readouterr().err


def test_view_opens_the_browser(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[run.ServerSettings] = []
    monkeypatch.setattr(run, "serve", plans.append)
    assert cli.run(["view", str(folders / "pretrained")]) == 0
    (plan,) = plans
    assert (plan.host, plan.port, plan.browser) == ("127.0.0.1", 0, True)
    shown: list[str] = []
    monkeypatch.setattr(run.webbrowser, "open", shown.append)
    admission, batcher = run._create_admission(plan)
    run._load_models(admission, batcher, plan, "http://127.0.0.1:1")
    batcher.close()
    assert shown == ["http://127.0.0.1:1"]
    assert admission.app is not None


def test_workers_share_cores_before_loading_models(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread_counts: list[tuple[int, int]] = []

    class RecordingRegistry(ModelRegistry):
        def __init__(self, *arguments: Any) -> None:
            thread_counts.append((threads.own_cores(), torch.get_num_threads()))
            super().__init__(*arguments)

    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "cores", lambda: 6)
    monkeypatch.setattr(threads, "_workers", 1)
    monkeypatch.setattr(run, "ModelRegistry", RecordingRegistry)
    plan = run.ServerSettings(models=[str(folders / "pretrained")], workers=3)
    admission, batcher = run._create_admission(plan)
    try:
        run._load_models(admission, batcher, plan, "http://127.0.0.1:1")
    finally:
        batcher.close()
        torch.set_num_threads(before)
    assert thread_counts == [(2, 2)]


def test_server_reports_invalid_arguments(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as used_port:
        used_port.bind(("127.0.0.1", 0))
        used_port.listen()
        port = str(used_port.getsockname()[1])
        for arguments, message in (
            ((tmp_path / "none", "--port", "0"), "no such"),
            ((folders / "pretrained", "--port", port), "use another --port"),
            ((folders / "ranker", "--keys", tmp_path / "keys.toml"), "keys.toml"),
        ):
            assert cli.run(["serve", *map(str, arguments)]) == 2
            assert message in capsys.readouterr().err


@pytest.mark.parametrize(("key", "is_open"), [("", True), ("k", False)])
def test_public_host_without_key_logs_warning(
    key: str, is_open: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop() -> int:
        raise ServeError("stopped")

    listener = SimpleNamespace(getsockname=lambda: ("0.0.0.0", 80))
    monkeypatch.setattr(run, "_listen", lambda host, port: listener)
    monkeypatch.setattr(run, "raise_file_limit", stop)
    monkeypatch.setenv("BERTKIT_KEY", key)
    assert cli.run(["serve", "model", "--host", "0.0.0.0"]) == 2
    message = "warning: the server has no API keys, so everyone who reaches http://0.0.0.0:80 can"
    assert (message in capsys.readouterr().err) == is_open
