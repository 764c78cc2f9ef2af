"""A program that runs in a kernel's container: its input and output, its terminal, its exit code."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from docker.models.containers import Container


class Execution(Protocol):
    """A program, until the other side of `connection` closes it.

    What is written to the connection is its input, to the end that a shutdown makes. What is read is its output: with a
    terminal as it is, otherwise in the engine's frames, which tell its output from its errors.
    """

    @property
    def connection(self) -> socket.socket: ...

    def resize(self, columns: int, rows: int) -> None: ...

    def exit_code(self) -> int:
        """Return the exit code of a program that has closed its output."""
        ...


class Programs(Protocol):
    """What starts programs in one kernel."""

    def start(self, command: Sequence[str], *, terminal: bool = False) -> AbstractContextManager[Execution]: ...


class _EngineExecution:
    """A program by the engine that runs the container."""

    def __init__(self, container: "Container", execution: str, connection: socket.socket) -> None:
        if container.client is None:
            raise ValueError("the container was not made by a client")
        self._api = container.client.api
        self._execution = execution
        self.connection = connection

    def resize(self, columns: int, rows: int) -> None:
        """Change its terminal's size, unless it has ended."""
        from muster.engine.agent_engine import ENGINE_ERRORS  # noqa: PLC0415 - the Docker SDK loads slowly

        with suppress(*ENGINE_ERRORS):
            self._api.exec_resize(self._execution, rows, columns)

    def exit_code(self) -> int:
        return int(self._api.exec_inspect(self._execution)["ExitCode"])


class ContainerPrograms:
    """Programs of a container."""

    def __init__(self, container: "Container") -> None:
        self._container = container

    @contextmanager
    def start(self, command: Sequence[str], *, terminal: bool = False) -> Iterator[Execution]:
        if self._container.client is None:
            raise ValueError("the container was not made by a client")
        api = self._container.client.api
        execution = api.exec_create(self._container.id, list(command), stdin=True, tty=terminal)["Id"]
        stream = api.exec_start(execution, tty=terminal, socket=True)
        connection = cast("socket.socket", getattr(stream, "_sock", stream))
        # The SDK's patience is for answers: a program may say nothing for days, or read nothing.
        connection.settimeout(None)
        try:
            yield _EngineExecution(self._container, execution, connection)
        finally:
            stream.close()
