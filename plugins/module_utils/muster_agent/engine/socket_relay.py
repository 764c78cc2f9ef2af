"""A program that lends a socket of root's to the user who called sudo, for as long as its standard input lasts.

sshd connects to sockets as the user who logged in, so that user gets a socket of their own. The control node sends this
file's text alone (muster/engine/tunnel.py), so nothing of ours is imported.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

_PIECE_BYTES = 1 << 18


def main() -> None:
    """Serve `<directory>/relayed.sock`, made new, for the socket named second, and say "muster:relayed" once it is."""
    directory, target = sys.argv[1:]
    # Nobody but root changes what is in it, and the user may pass whatever root's umask is.
    os.umask(0o022)
    Path(directory).mkdir(mode=0o755)
    try:
        with _listener(directory + "/relayed.sock") as listener:
            threading.Thread(target=_serve, args=(listener, target), daemon=True).start()
            print("muster:relayed", flush=True)  # noqa: T201 - for the control node
            while os.read(0, 1 << 16):
                continue
    finally:
        shutil.rmtree(directory)


def _listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    os.umask(0o177)
    listener.bind(path)
    os.chown(path, int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))
    listener.listen(64)
    return listener


def _serve(listener: socket.socket, target: str) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_relay, args=(client, target), daemon=True).start()


def _relay(client: socket.socket, target: str) -> None:
    """Join a client with a connection of its own to the target. Without one its client sees an end at once."""
    with client, socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(target)
        except OSError:
            return
        answers = threading.Thread(target=_copy, args=(server, client), daemon=True)
        answers.start()
        _copy(client, server)
        answers.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Copy what comes, then its end, and last that the source is gone altogether, which ends both ways."""
    # Where the sink is gone, the other way sees its end.
    with suppress(OSError):
        while piece := source.recv(_PIECE_BYTES):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
        gone = select.poll()
        gone.register(source, 0)
        gone.poll()
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
