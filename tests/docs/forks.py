"""A process that has imported bertkit and forks for each command and Python block of a page.

The pages have more than a hundred blocks, and each would spend seconds on importing torch.
`fork_server` creates an executable `bertkit` that connects to that process. A fork gets the
arguments, directory, environment, and open files of the executable and returns its exit status.
`bertkit -c CODE` runs Python.
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

EXECUTABLE = """#!{python} -SE
import json, os, socket, sys
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({at!r})
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    os._exit(int.from_bytes(server.recv(1) or bytes([1]), "big"))
"""


@contextmanager
def fork_server(folder: Path) -> Iterator[Path]:
    """Run the process and yield the directory with the executable."""
    at, command = folder / "socket", folder / "bertkit"
    command.write_text(EXECUTABLE.format(python=sys.executable, at=str(at)), encoding="utf-8")
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(at))
        listening.listen()
        command_line = [sys.executable, __file__, str(listening.fileno())]
        # Tiny models are not faster with more threads, and slower if cores are shared.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            command_line, pass_fds=[listening.fileno()], env=environment
        ) as server:
            try:
                yield folder
            finally:
                server.terminate()


def serve(listening: socket.socket) -> None:
    """Fork for each connection."""
    import torch._dynamo  # noqa: F401  (imported by optimizers)

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
        finally:  # a fork must never continue as the server
            with contextlib.suppress(OSError):
                sys.stderr.flush()
                connection.sendall(bytes([code]))
            os._exit(code)


def _become(connection: socket.socket) -> list[str]:
    """Adopt the directory, environment, and files of the client, and return its arguments."""
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    request = b""
    while len(request) < int.from_bytes(size, "big"):
        request += connection.recv(1 << 20)
    arguments, here, environment = json.loads(request)
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
