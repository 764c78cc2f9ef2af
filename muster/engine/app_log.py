"""What an app of a running session has written: main1 keeps it in memory, beside the kernel's own log."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from docker.models.containers import Container

from muster.engine.execution import ContainerPrograms, output_pieces

# The older of the two files first.
_ALL = 'cd /run/muster-apps && for f in "$2.log.1" "$2.log"; do [ ! -e "$f" ] || "$1" cat "$f"; done'
_LAST = f'({_ALL}) | "$1" tail -n "$3"'
# By name: a new file takes the old one's place when that is full. It ends with its input, when the reader has left.
_FOLLOW = '"$1" tail -n "$3" -F "/run/muster-apps/$2.log" & "$1" cat >/dev/null; kill $!'


class AppLog:
    """The pieces of an app's output, until they end or any thread closes them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __iter__(self) -> Iterator[bytes]:
        # The engine may leave in the middle.
        with suppress(OSError):
            yield from output_pieces(self._connection)

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def app_log(container: Container, runtime_path: str, app: str, *, tail: int | None, follow: bool) -> Iterator[AppLog]:
    """Open the app's output; only the last `tail` lines, and on until main1 ends with `follow`."""
    busybox = f"{runtime_path}/bin/busybox"
    script = _FOLLOW if follow else _ALL if tail is None else _LAST
    lines = "+1" if tail is None else str(tail)
    with ContainerPrograms(container).start([busybox, "sh", "-c", script, "sh", busybox, app, lines]) as execution:
        yield AppLog(execution.connection)
