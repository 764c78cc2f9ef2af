"""TLS for the client of WebSockets, which reads in one thread while another writes.

In Python 3.11 nothing keeps two threads from using the TLS of one connection at the same moment. Reading and writing do
get along, but for what a server sends right after the handshake: the tickets of TLS 1.3. One opening of some thousand
broke: its request never left, or the stream was spoilt. So the first read waits for the first write.
"""

import ssl
import threading
from typing import Any


def orderly(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context; connections that it makes from now on read nothing before they have written."""
    context.sslsocket_class = _OrderlySocket
    return context


class _OrderlySocket(ssl.SSLSocket):
    """A connection whose tickets are read while nothing is written: they come before the first answer."""

    @property
    def _has_written(self) -> threading.Event:
        # `ssl` calls no __init__ of its sockets. Of two threads that come here first, one makes the event.
        return self.__dict__.setdefault("_event", threading.Event())  # type: ignore[no-any-return]

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        self._has_written.wait()
        return super().recv(buflen, flags)

    def send(self, data: Any, flags: int = 0) -> int:  # noqa: ANN401 - whatever has bytes
        # `sendall` calls it as well. A request's head fits into one.
        sent = super().send(data, flags)
        self._has_written.set()
        return sent

    def shutdown(self, how: int) -> None:
        self._has_written.set()
        super().shutdown(how)

    def close(self) -> None:
        self._has_written.set()
        super().close()
