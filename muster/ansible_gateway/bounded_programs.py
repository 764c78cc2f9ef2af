"""Limits on the programs by which hosts are reached: on what they print, and on their time.

Ansible would keep all that a host prints before anybody could measure it. A limit is of the thread that sets it, since
a play has a thread for each host: `worker_threads.py`.
"""

import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import IO, Any

_CHUNK = 1 << 16
# A relay that needs longer waits for the reader, who comes to it first.
_MOST_S_TO_PASS_ON = 0.05


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


class _Relay:
    """A thread's work: pass on what a program prints, from its pipe into a socket, until the pipe's end or the limit.

    Unlike a pipe, a socket can be ended by another thread than that which waits for it.
    """

    def __init__(self, source: IO[bytes], sink: socket.socket, allowance: Allowance | None) -> None:
        self._source = source
        self._sink = sink
        self._allowance = allowance
        # Held from before a piece is read until it is passed on.
        self._passing = threading.Lock()
        self._is_over = False

    def run(self, kill: Callable[[], None]) -> None:
        """Pass on everything, and `kill` the program that prints too much."""
        with self._source, self._sink:
            with suppress(OSError):
                while self._passes_on_a_piece(kill):
                    pass
            # Also where nobody reads any more; before the pipe is closed, which others look at.
            with self._passing:
                self._is_over = True

    def has_passed_on(self) -> bool:
        """Return whether all is passed on that was printed; wait for a moment until it is."""
        give_up_at = time.monotonic() + _MOST_S_TO_PASS_ON
        while True:
            # Its holder may wait for our caller to read.
            if self._passing.acquire(timeout=_MOST_S_TO_PASS_ON):
                try:
                    if self._is_over or not self._has_more():
                        return True
                finally:
                    self._passing.release()
            if time.monotonic() > give_up_at:
                return False
            time.sleep(0.001)

    def _passes_on_a_piece(self, kill: Callable[[], None]) -> bool:
        self._has_more(wait=True)
        with self._passing:
            chunk = os.read(self._source.fileno(), _CHUNK)
            if chunk and self._allowance and not self._allowance.grants(len(chunk)):
                self._allowance.say_exceeded()
                kill()
                chunk = b""
            self._sink.sendall(chunk)
        return bool(chunk)

    def _has_more(self, *, wait: bool = False) -> bool:
        """Return whether there is something to read, or the pipe has ended."""
        waiting = select.poll()
        waiting.register(self._source, select.POLLIN)
        return bool(waiting.poll(None if wait else 0))


class _BoundedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A program that ends by the limits of the thread that starts it, if there are any."""

    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as in subprocess
        super().__init__(*args, **options)
        self._sinks: list[socket.socket] = []
        self._relays: list[_Relay] = []
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

    def poll(self) -> int | None:
        """Return the exit code once all that the program has printed can be read, as of a plain pipe; None before.

        Ansible reads what is there when a program has ended, and nothing that comes a moment later.
        """
        code = super().poll()
        return code if code is None or all(relay.has_passed_on() for relay in self._relays) else None

    def _bounded(self, source: IO[bytes] | None, allowance: Allowance | None) -> IO[bytes] | None:
        if source is None:
            return None
        reading, sink = socket.socketpair()
        self._sinks.append(sink)
        self._relays.append(relay := _Relay(source, sink, allowance))
        # A connection that stays in the background may keep its end open for longer than the task lasts.
        threading.Thread(target=relay.run, args=(self.kill,), daemon=True).start()
        return os.fdopen(reading.detach(), "rb")
