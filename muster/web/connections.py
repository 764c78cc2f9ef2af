"""Protocols of connections whose clients are slow, or are about to leave.

uvicorn itself waits forever for a request's head and for a reader. `protection.RequestSize` limits the time of a
request's body.
"""

import asyncio
import socket
import struct
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

# Of `struct tcp_info`: tcpi_probes, of windows without room, tcpi_unacked and tcpi_last_ack_recv.
_TCP_INFO = struct.Struct("=3xB20xI28xI")
_MOST_PROBES = 3
_SILENCE_MS = 15_000


class ImpatientHttp(H11Protocol):
    """A protocol of HTTP/1.1 that closes connections of slow clients; uvicorn's keep-alive closes idle ones."""

    HEAD_TIMEOUT_S: ClassVar[float] = 20.0
    # In this time a reader takes at least 48 KiB, or what is left of the answer.
    READ_TIMEOUT_S: ClassVar[float] = 60.0

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as it is there
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_timer = self.loop.call_later(self.READ_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_read_timer()

    def _time_head(self) -> None:
        """Count from the first byte of a head, or from the connection's beginning, until the head is whole."""
        if not self._waits_for_head:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.HEAD_TIMEOUT_S, self.transport.close)

    @property
    def _waits_for_head(self) -> bool:
        # A WebSocket has a protocol of its own from its beginning on.
        is_http = self.transport.get_protocol() is self and not self.transport.is_closing()
        return is_http and (self.cycle is None or self.cycle.response_complete)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


class LeavableWebSocket(WebSocketsSansIOProtocol):
    """A protocol of WebSockets that a server can end at any time, and whose readers may pause.

    Of uvicorn's three protocols, only the one below slows down a sender in both directions when its reader is slow. By
    itself it fails, and the whole server with it, where the server ends while a client is closing its WebSocket. And it
    takes a reader for gone who pauses, as `less` does: pings are read after all that was sent before.
    """

    def keepalive_timeout(self) -> None:
        if is_there(self.transport.get_extra_info("socket")):
            self.pong_timer = None
            self.schedule_ping()
        else:
            super().keepalive_timeout()

    def shutdown(self) -> None:
        if self.handshake_complete and self.conn.state is not State.OPEN:
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()


def is_there(connection: Any) -> bool:  # noqa: ANN401 - a socket, or what asyncio gives in its place
    """Return whether the other side's system takes what is sent, or says that its reader has no room."""
    if connection.family not in {socket.AF_INET, socket.AF_INET6}:
        # It is on this machine: it is there as long as the connection is.
        return True
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    unanswered_probes, unacknowledged, last_acknowledged_ms = _TCP_INFO.unpack(info)
    is_silent = unacknowledged > 0 or unanswered_probes >= _MOST_PROBES
    return not is_silent or last_acknowledged_ms < _SILENCE_MS
