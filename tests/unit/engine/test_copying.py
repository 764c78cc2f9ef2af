"""Copying over a connection to the engine that is silent for longer than the SDK's timeout."""

import socket
import struct
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

from muster.engine.copying import probe
from muster.engine.execution import ContainerPrograms

_TIMEOUT_S = 0.2


def frame(stream: int, data: bytes) -> bytes:
    """Return output framed as by the engine: a byte for the stream, four for the length."""
    return struct.pack(">BxxxL", stream, len(data)) + data


def container_that_answers(connection: socket.socket, exit_code: int = 0) -> ContainerPrograms:
    """Return the programs of a container whose engine has this other end of the connection."""
    api = SimpleNamespace(
        exec_create=lambda *_, **__: {"Id": "1"},
        exec_start=lambda *_, **__: connection,
        exec_inspect=lambda _: {"ExitCode": exit_code},
    )
    return ContainerPrograms(cast("Any", SimpleNamespace(id="c1", client=SimpleNamespace(api=api))))


def test_a_program_may_be_silent_for_longer_than_the_engines_timeout():
    ours, engines = socket.socketpair()
    ours.settimeout(_TIMEOUT_S)

    def answer() -> None:
        engines.sendall(frame(1, b"directory\n")[:5])
        time.sleep(3 * _TIMEOUT_S)
        engines.sendall(frame(1, b"directory\n")[5:] + frame(2, b"a warning\n") + frame(1, b"/data\n"))
        engines.close()

    thread = threading.Thread(target=answer)
    thread.start()
    assert probe(container_that_answers(ours), "/link") == ("directory", "/data")
    thread.join()
