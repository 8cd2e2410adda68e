"""Names of the hub, against a server of our own that speaks enough of its language."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bertkit.checkpoint.hub import resolve
from bertkit.errors import CheckpointError

COMMITS = {"main": "a" * 40, "old": "b" * 40}
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": b"weights",
    "vocab.txt": b"[PAD]\n",
    "1_Pooling/config.json": b"{}",
    "pytorch_model.bin": b"a pickle",
    "modeling.py": b"code",
}


class Hub(http.server.BaseHTTPRequestHandler):
    """One model, `org/tiny`, with two revisions; `org/closed` asks for permission."""

    asked: ClassVar[list[str]] = []

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0].removeprefix("/")
        parts = path.removeprefix("api/models/").split("/")
        name = "/".join(parts[:2])
        if name == "org/closed":
            return self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if name != "org/tiny":
            return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        revision = parts[3] if len(parts) > 3 else "main"
        commit = COMMITS.get(revision, revision)
        if commit not in COMMITS.values():
            return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if path.startswith("api/"):
            return self.api(parts[2] if len(parts) > 2 else "revision", commit)
        file = "/".join(parts[4:])
        content = self.content(file, commit)
        Hub.asked.append(file)
        etag = hashlib.sha256(content).hexdigest()
        return self.answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

    def content(self, file: str, commit: str) -> bytes:
        return FILES[file] + (b"!" if file == "vocab.txt" and commit == COMMITS["old"] else b"")

    def api(self, kind: str, commit: str) -> None:
        if kind == "tree":
            rows: Any = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(self.content(name, commit)),
                    "oid": hashlib.sha1(name.encode()).hexdigest(),
                }
                for name in FILES
            ]
        else:
            rows = {
                "id": "org/tiny",
                "sha": commit,
                "private": False,
                "siblings": [{"rfilename": name} for name in FILES],
            }
        self.answer(200, json.dumps(rows).encode(), {"Content-Type": "application/json"})

    def answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


ASK = """
import json, sys
from bertkit.checkpoint.hub import resolve
from bertkit.errors import CheckpointError
for name, revision in json.loads(sys.argv[1]):
    try:
        folder = resolve(name, revision)
        files = [p for p in folder.rglob("*") if p.is_file()]
        print(json.dumps({str(p.relative_to(folder)): p.read_text() for p in files}))
    except CheckpointError as error:
        print(json.dumps(str(error)))
"""


def ask(hub: str, cache: Path, *names: tuple[str, str | None]) -> list[Any]:
    """What `resolve` gives for each name, in a process that takes our server for the hub."""
    process = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(names)],
        env={**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_the_hub(hub: str, tmp_path: Path) -> None:
    newest, old, exact, revision, missing, closed = ask(
        hub,
        tmp_path,
        ("org/tiny", None),
        ("org/tiny", "old"),
        ("org/tiny", COMMITS["old"]),
        ("org/tiny", "none"),
        ("org/none", None),
        ("org/closed", None),
    )
    kept = {
        name: data.decode() for name, data in FILES.items() if not name.endswith((".bin", ".py"))
    }
    assert newest == kept
    assert old == exact == {**kept, "vocab.txt": "[PAD]\n!"}
    assert revision == "org/tiny: the hub has no revision 'none' of it"
    assert missing == "org/none: neither a folder here nor a model on the hub"
    assert "the hub asks for permission" in closed
    assert set(Hub.asked) == set(kept)


def test_a_hub_that_is_not_there_gives_what_was_fetched(hub: str, tmp_path: Path) -> None:
    (first,) = ask(hub, tmp_path, ("org/tiny", None))
    nowhere = "http://127.0.0.1:9"
    again, never = ask(nowhere, tmp_path, ("org/tiny", None), ("org/other", None))
    assert again == first
    assert "org/other: " in never
    assert "cannot be" in never


def test_local_names(tmp_path: Path) -> None:
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path)) == tmp_path
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="a file, not the folder of a model"):
        resolve(tmp_path / "file")
    for name in (tmp_path / "none", str(tmp_path / "none"), "a/b/c"):
        with pytest.raises(CheckpointError, match="no such folder"):
            resolve(name)
    with pytest.raises(CheckpointError, match=r"^a--b/c: "):
        resolve("a--b/c")
