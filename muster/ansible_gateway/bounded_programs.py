"""Limits on the programs by which hosts are reached: on what they print, and on their time.

Ansible would keep all that a host prints before anybody could measure it. A limit is of the thread that sets it, since
a play has a thread for each host: `worker_threads.py`.
"""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import IO, Any

_CHUNK = 1 << 16


class Allowance:
    """The bytes that programs may still print; the one that prints more is killed."""

    def __init__(self, most_bytes: int, say_exceeded: Callable[[], None]) -> None:
        self.say_exceeded = say_exceeded
        self._left = most_bytes
        self._lock = threading.Lock()

    @property
    def is_exceeded(self) -> bool:
        return self._left < 0

    def grants(self, size: int) -> bool:
        """Return whether so many bytes more may pass, and count them."""
        with self._lock:
            self._left -= size
            return not self.is_exceeded


class _Deadline:
    """A time after which programs end. One that starts later ends at once."""

    def __init__(self, say_passed: Callable[[], None]) -> None:
        self._say_passed = say_passed
        self._lock = threading.Lock()
        self._has_passed = False
        self._programs: list[_BoundedPopen] = []

    def add(self, program: "_BoundedPopen") -> None:
        with self._lock:
            self._programs.append(program)
            has_passed = self._has_passed
        if has_passed:
            program.cut_off()

    def end(self) -> None:
        """End the programs, after it was said why."""
        with self._lock:
            self._has_passed = True
            programs = tuple(self._programs)
        self._say_passed()
        for program in programs:
            program.cut_off()


_ALLOWANCE: ContextVar[Allowance | None] = ContextVar("allowance", default=None)
_DEADLINE: ContextVar[_Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def bounded_pipes(most_bytes: int, say_exceeded: Callable[[], None] = lambda: None) -> Iterator[Allowance]:
    """Bound what all programs that this thread starts meanwhile print into their pipes together.

    An inner bound counts in place of an outer one. `say_exceeded` is called before the first program that prints more
    is killed.
    """
    subprocess.Popen = _BoundedPopen  # type: ignore[misc]
    allowance = Allowance(most_bytes, say_exceeded)
    before = _ALLOWANCE.set(allowance)
    try:
        yield allowance
    finally:
        _ALLOWANCE.reset(before)


@contextmanager
def bounded_time(seconds: float, say_passed: Callable[[], None]) -> Iterator[None]:
    """Bound the time of all programs that this thread starts meanwhile.

    When it has passed, `say_passed` is called in another thread, and the programs end: they are killed, and their
    output is at its end, even where something that they left in the background holds it open.
    """
    subprocess.Popen = _BoundedPopen  # type: ignore[misc]
    deadline = _Deadline(say_passed)
    timer = threading.Timer(seconds, deadline.end)
    timer.daemon = True
    timer.start()
    before = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(before)
        timer.cancel()


class _BoundedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A program that ends by the limits of the thread that starts it, if there are any."""

    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as in subprocess
        super().__init__(*args, **options)
        self._sinks: list[socket.socket] = []
        allowance, deadline = _ALLOWANCE.get(), _DEADLINE.get()
        if (allowance or deadline) and not self.text_mode:  # type: ignore[attr-defined]
            self.stdout = self._bounded(self.stdout, allowance)
            self.stderr = self._bounded(self.stderr, allowance)
        if deadline:
            deadline.add(self)

    def cut_off(self) -> None:
        """Kill the program, and end what is read of it."""
        self.kill()
        for sink in self._sinks:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)

    def _bounded(self, source: IO[bytes] | None, allowance: Allowance | None) -> IO[bytes] | None:
        if source is None:
            return None
        # Unlike a pipe, a socket can be ended by another thread than that which waits for it.
        reading, sink = socket.socketpair()
        self._sinks.append(sink)
        # A connection that stays in the background may keep its end open for longer than the task lasts.
        threading.Thread(target=self._relay, args=(source, sink, allowance), daemon=True).start()
        return os.fdopen(reading.detach(), "rb")

    def _relay(self, source: IO[bytes], sink: socket.socket, allowance: Allowance | None) -> None:
        with source, sink, suppress(OSError):
            while chunk := os.read(source.fileno(), _CHUNK):
                if allowance and not allowance.grants(len(chunk)):
                    allowance.say_exceeded()
                    self.kill()
                    return
                sink.sendall(chunk)
