"""A proxy before a PostgreSQL server, which cuts a connection at the very moment that a test chooses."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import NamedTuple

_SIZE = 1 << 16
_COMMIT = b"COMMIT\0"


class Cut(Enum):
    """A moment of a COMMIT: before the server gets it, after it has carried it out, and after it has said so."""

    BEFORE = auto()
    AFTER = auto()
    ANSWERED = auto()


class _Cut(NamedTuple):
    when: Cut
    stays_away: bool


class PostgresqlProxy:
    """A proxy that leads to the server at a port, or nowhere."""

    def __init__(self, target: int) -> None:
        self._target: int | None = target
        self.cut_commits = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._cuts: dict[bytes, _Cut] = {}
        self._ends: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    def cut_next_commit_after(self, statement: str, when: Cut, *, stays_away: bool = False) -> None:
        """Cut the next connection that commits a transaction with this statement; then lead nowhere if it says so."""
        with self._lock:
            self._cuts[statement.encode()] = _Cut(when, stays_away)

    def lead_to(self, target: int | None) -> None:
        """Lead all to another server, or nowhere: cut the connections that there are."""
        self._target = target
        self._cut_all()

    def close(self) -> None:
        _close(self._listener)
        self._cut_all()

    def _cut_all(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, set()
        _close(*ends)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target or 0))
                except OSError:
                    _close(client)
                    continue
                with self._lock:
                    self._ends |= {client, server}
                connection = _Connection(client, server, self._cut_of, self._note_cut)
                for pump in (connection.pass_requests_on, connection.pass_answers_on):
                    threading.Thread(target=pump, daemon=True).start()

    def _cut_of(self, data: bytes) -> _Cut | None:
        with self._lock:
            found = next((statement for statement in self._cuts if statement in data), None)
            return None if found is None else self._cuts.pop(found)

    def _note_cut(self, cut: _Cut) -> None:
        self.cut_commits += 1
        if cut.stays_away:
            self._target = None


class _Connection:
    """A connection through the proxy. libpq sends a statement in one piece, and waits for the answer."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        cut_of: Callable[[bytes], _Cut | None],
        note_cut: Callable[[_Cut], None],
    ) -> None:
        self._client = client
        self._server = server
        self._cut_of = cut_of
        self._note_cut = note_cut
        self._last: _Cut | None = None

    def pass_requests_on(self) -> None:
        cut: _Cut | None = None
        with suppress(OSError):
            while data := self._client.recv(_SIZE):
                cut = self._cut_of(data) or cut
                if cut is not None and _COMMIT in data:
                    self._note_cut(cut)
                    if cut.when is Cut.BEFORE:
                        break
                    self._last = cut
                self._server.sendall(data)
        if self._last is None:
            _close(self._client, self._server)

    def pass_answers_on(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(_SIZE):
                last = self._last
                if last is None or last.when is Cut.ANSWERED:
                    self._client.sendall(data)
                if last is not None:
                    break
        _close(self._client, self._server)


def _close(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def postgresql_proxy(target: int) -> Iterator[PostgresqlProxy]:
    proxy = PostgresqlProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
