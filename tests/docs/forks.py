"""A process that has imported bertkit, and forks for each command and program of a page.

Each would spend seconds on importing torch, and the pages have more than a hundred of them. `place`
makes an executable `bertkit` that asks that process: a fork gets its arguments, folder, environment
and open files, and its exit status comes back. `bertkit -c CODE` runs Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ASKS = """#!{python} -SE
import json, os, socket, sys
asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({at!r})
    socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(asked)
    os._exit(int.from_bytes(server.recv(1) or bytes([1]), "big"))
"""


@contextmanager
def place(folder: Path) -> Iterator[Path]:
    """The folder with the executable, while the process runs."""
    at, command = folder / "socket", folder / "bertkit"
    command.write_text(ASKS.format(python=sys.executable, at=str(at)), encoding="utf-8")
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(at))
        listening.listen()
        told = [sys.executable, __file__, str(listening.fileno())]
        # models this small gain nothing from more threads, and lose much where cores are shared
        one = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(told, pass_fds=[listening.fileno()], env=one) as server:
            try:
                yield folder
            finally:
                server.terminate()


def serve(listening: socket.socket) -> None:
    """Fork for each that asks."""
    import torch._dynamo  # noqa: F401  (what optimizers import)

    from bertkit import cli

    while True:
        connection, _ = listening.accept()
        if os.fork():
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            continue
        code = 1
        try:
            arguments = _become(connection)
            if arguments[0] == "-c":
                exec(compile(arguments[1], "<block>", "exec"), {"__name__": "__main__"})
                code = 0
            else:
                code = cli.run(arguments)
            sys.stdout.flush()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:  # a fork must never go on as the server
            with contextlib.suppress(OSError):
                sys.stderr.flush()
                connection.sendall(bytes([code]))
            os._exit(code)


def _become(connection: socket.socket) -> list[str]:
    """Take the place of the process that asks; its arguments."""
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    asked = b""
    while len(asked) < int.from_bytes(size, "big"):
        asked += connection.recv(1 << 20)
    arguments, here, environment = json.loads(asked)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(here)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["bertkit", *arguments]
    return list(arguments)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
