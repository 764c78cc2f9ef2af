"""Another process for a test: forked, since imports would be most of its time."""

import multiprocessing
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_context = multiprocessing.get_context("fork")


class Forked:
    """A process that runs `work(say, *values)`; `receive` returns what it says. It is killed at the end."""

    def __init__(self, work: Callable[..., None], *values: object) -> None:
        self._sender: Connection
        self._receiver, self._sender = _context.Pipe(duplex=False)
        self._process = _context.Process(target=work, args=(self._sender.send, *values), daemon=True)
        self._process.start()
        self._sender.close()  # so that its end is noticed

    def receive(self) -> Any:
        """Return the next word. Raises EOFError if the process ended without one."""
        return self._receiver.recv()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()
        self._process.join()

    def terminate(self) -> int | None:
        """Send SIGTERM, and return the exit code."""
        self._process.terminate()
        self._process.join()
        return self._process.exitcode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._receiver.close()
