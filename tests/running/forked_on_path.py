"""A `muster` for PATH: shells start a small program, which has the tests' own process fork the real command line."""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.running.forked_cli import start_forked, wait_for

_PROGRAM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({path!r})
    socket.send_fds(connection, [b"."], [0, 1, 2])
    connection.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode())
    connection.shutdown(socket.SHUT_WR)
    sys.exit(int(connection.recv(16)))
"""
_PATIENCE_S = 600


@contextmanager
def muster_on_path(
    directory: Path, python: str = sys.executable, prepare: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Yield the directory to put into PATH. `python` is what the program's users may start; `prepare` as there."""
    path = directory / "muster.socket"
    program = directory / "muster"
    program.write_text(_PROGRAM.format(python=python, path=str(path)))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        threading.Thread(target=_serve, args=(listener, prepare)).start()
        try:
            yield directory
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket, prepare: Callable[[], None]) -> None:
    with suppress(OSError):  # shut down
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, prepare)).start()


def _answer(connection: socket.socket, prepare: Callable[[], None]) -> None:
    with connection:
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        arguments, environment, directory = json.loads(b"".join(iter(partial(connection.recv, 1 << 16), b"")))

        def enter() -> None:
            prepare()
            os.chdir(directory)

        try:
            child = start_forked(tuple(arguments), environment, descriptors, enter)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        code = wait_for(child, _PATIENCE_S)
        # ssh ends its proxy command without waiting for it.
        with suppress(BrokenPipeError):
            connection.sendall(str(code).encode())
