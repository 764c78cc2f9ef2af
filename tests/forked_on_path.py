"""A `muster` for PATH: shells start a small program, which has the tests' own process fork the real command line."""

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.forked_cli import start_forked, wait_for

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
def muster_on_path(directory: Path) -> Iterator[Path]:
    """Yield the directory to put into PATH."""
    path = directory / "muster.socket"
    program = directory / "muster"
    program.write_text(_PROGRAM.format(python=sys.executable, path=str(path)))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=_serve, args=(listener,)).start()
        try:
            yield directory
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    with suppress(OSError):  # shut down
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection,)).start()


def _answer(connection: socket.socket) -> None:
    with connection:
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        arguments, environment, directory = json.loads(b"".join(iter(partial(connection.recv, 1 << 16), b"")))
        try:
            child = start_forked(tuple(arguments), environment, descriptors, partial(os.chdir, directory))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        connection.sendall(str(wait_for(child, _PATIENCE_S)).encode())
