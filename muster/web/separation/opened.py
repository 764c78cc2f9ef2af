"""What the broker has opened for the web server: logs, terminals, programs, apps and files, as a socket each."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster.core.model.apps import App
from muster.core.model.session import Session
from muster.service.reach.terminal import TerminalEnd, check_size
from muster.web.separation.line import NoBrokerError, answer_to, value_of
from muster.web.separation.operations import EXIT_CODE
from muster.web.separation.wire import MOST_PIECE_BYTES, receive


class BrokeredUpload:
    """The brokered `Upload`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            answer_to(self._connection, bytes(view[:MOST_PIECE_BYTES]))
            view = view[MOST_PIECE_BYTES:]

    def finish(self) -> None:
        answer_to(self._connection, b"")


class BrokeredPieces:
    """The pieces of a file. Reading raises NoBrokerError where they break off, and the broker's error."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __iter__(self) -> Iterator[bytes]:
        while True:
            try:
                answer = receive(self._connection)
            except OSError as error:
                raise NoBrokerError from error
            if answer is None:
                raise NoBrokerError
            piece = value_of(answer)
            if piece is None:
                return
            yield piece


class BrokeredLog:
    """The pieces of a log, until it ends or any thread closes it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __iter__(self) -> Iterator[bytes]:
        while (answer := self._next()) is not None and (piece := value_of(answer)) is not None:
            yield piece

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _next(self) -> bytes | None:
        try:
            return receive(self._connection)
        except OSError:
            return None


class BrokeredTerminal(TerminalEnd):
    """A terminal whose program is the broker's: what is typed and shown goes by its file, the rest by the broker."""

    def __init__(self, session: Session, master: int, connection: socket.socket) -> None:
        super().__init__(session, master)
        self._connection = connection

    def resize(self, columns: int, rows: int) -> None:
        """Raises BadInputError and NoBrokerError."""
        # The broker ends what sends it anything but two numbers.
        check_size(columns, rows)
        answer_to(self._connection, f"{columns} {rows}".encode())

    def end(self) -> None:
        self.close()
        self._connection.close()


class _Asked:
    """A connection on which any thread asks: each gets the answer to its own question."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def answer_to(self, message: bytes) -> Any:  # noqa: ANN401 - each question's own
        """Raises as `line.answer_to`."""
        with self._lock:
            return answer_to(self._connection, message)

    def close(self) -> None:
        self._connection.close()


class BrokeredProgram:
    """The brokered `Program`. Its terminal may be resized while its exit code is waited for."""

    def __init__(self, session: Session, broker: socket.socket, connection: socket.socket) -> None:
        self.session = session
        self.connection = connection
        self._broker = _Asked(broker)

    def resize(self, columns: int, rows: int) -> None:
        """Raises MusterError."""
        self._broker.answer_to(f"{columns} {rows}".encode())

    def exit_code(self) -> int:
        """Raises MusterError."""
        return int(self._broker.answer_to(EXIT_CODE))

    def close(self) -> None:
        self.connection.close()
        self._broker.close()


class BrokeredTunnel:
    """The brokered `AppTunnel`, whose socket the broker has given to this process."""

    def __init__(self, connection: socket.socket, opened: tuple[Session, App, str, Path]) -> None:
        self.session, self.app, self.token, self.socket = opened
        self._broker = _Asked(connection)

    def is_open(self) -> bool:
        """Return whether it is open; the watch over all apps and a page may ask at once."""
        try:
            return bool(self._broker.answer_to(b"?"))
        except NoBrokerError:
            return False

    def close(self) -> None:
        self._broker.close()
