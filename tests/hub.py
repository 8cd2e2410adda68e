"""Local server that implements a part of the Hub API."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

COMMITS = {"main": "a" * 40, "old": "b" * 40}
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": b"weights",
    "vocab.txt": b"[PAD]\n",
    "1_Pooling/config.json": b"{}",
    "weights.hdf5": b"an ELMo",
    "vectors.txt.gz": b"word vectors",
    "source.spm": b"pieces",
    "pytorch_model.bin": b"a pickle",
    "modeling.py": b"code",
}


TOKEN = "a-token"
"""Token that allows writing."""


class Hub(http.server.BaseHTTPRequestHandler):
    """Hub with one model, `org/tiny`, with two revisions, and the gated `org/closed`.

    Clients with the token can create models.
    """

    asked: ClassVar[list[str]] = []
    pushed: ClassVar[dict[str, dict[str, bytes]]] = {}
    """Files by model name."""
    stored: ClassVar[dict[str, bytes]] = {}
    """Large files by hash."""

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
        if name != "org/tiny" and name not in Hub.pushed:
            return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        revision = parts[3] if len(parts) > 3 else "main"
        commit = COMMITS.get(revision, revision)
        if commit not in COMMITS.values():
            return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if path.startswith("api/"):
            return self.api(name, parts[2] if len(parts) > 2 else "revision", commit)
        file = "/".join(parts[4:])
        content = self.content(name, file, commit)
        Hub.asked.append(file)
        etag = hashlib.sha256(content).hexdigest()
        return self.answer(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

    def content(self, name: str, file: str, commit: str) -> bytes:
        if name in Hub.pushed:
            return Hub.pushed[name][file]
        return FILES[file] + (b"!" if file == "vocab.txt" and commit == COMMITS["old"] else b"")

    def api(self, model: str, kind: str, commit: str) -> None:
        files = Hub.pushed.get(model, FILES)
        if kind == "tree":
            rows: Any = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(self.content(model, name, commit)),
                    "oid": hashlib.sha1(name.encode()).hexdigest(),
                }
                for name in files
            ]
        else:
            rows = {
                "id": model,
                "sha": commit,
                "private": False,
                "siblings": [{"rfilename": name} for name in files],
            }
        self.answer_json(rows)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer(401, b"{}", {})
        parts = self.path.split("?")[0].split("/")
        host = f"http://{self.headers['Host']}"
        if self.path == "/api/repos/create":
            request = json.loads(body)
            name = f"{request['organization']}/{request['name']}"
            if name == "org/closed":
                return self.answer(403, b"{}", {})
            Hub.pushed.setdefault(name, {})
            return self.answer_json({"url": f"{host}/{name}"})
        if self.path == "/api/validate-yaml":
            return self.answer_json({"errors": [], "warnings": []})
        if "preupload" in parts:
            files = json.loads(body)["files"]
            mode = {True: "lfs", False: "regular"}
            rows = [
                {
                    "path": file["path"],
                    "uploadMode": mode[file["path"].endswith(".safetensors")],
                    "shouldIgnore": False,
                }
                for file in files
            ]
            return self.answer_json({"files": rows})
        if parts[-1] == "batch":
            objects = [
                {**item, "actions": {"upload": {"href": f"{host}/stored/{item['oid']}"}}}
                for item in json.loads(body)["objects"]
            ]
            return self.answer_json({"transfer": "basic", "objects": objects})
        lines = [json.loads(line) for line in body.splitlines()]
        name = "/".join(parts[3:5])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                Hub.pushed[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                Hub.pushed[name][value["path"]] = Hub.stored[value["oid"]]
        commit = COMMITS["main"]
        url = f"{host}/{name}/commit/{commit}"
        return self.answer_json({"commitUrl": url, "commitOid": commit, "hookOutput": ""})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == oid
        Hub.stored[oid] = content
        self.answer(200, b"", {})

    def answer_json(self, content: Any) -> None:
        self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving() -> Iterator[str]:
    """Run the server and yield its address."""
    Hub.asked.clear()
    Hub.pushed.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def environment(hub: str, cache: Path, token: str | None = None) -> dict[str, str]:
    """Return the environment of a process that uses the local server as the hub."""
    hub_settings = {"HF_ENDPOINT": hub, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0"}
    plain = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    inherited = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    return {**inherited, **hub_settings, **plain, **({} if token is None else {"HF_TOKEN": token})}
