"""A limit on the output of a connection's program: Ansible would keep all of it before it could be measured."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

_CHUNK = 1 << 16
# Not one that is bounded already: an inner bound counts instead of an outer one.
_POPEN = subprocess.Popen


class Allowance:
    """The bytes that programs may still print; the one that prints more is killed."""

    def __init__(self, most_bytes: int) -> None:
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


@contextmanager
def bounded_pipes(most_bytes: int, say_exceeded: Callable[[], None] = lambda: None) -> Iterator[Allowance]:
    """Bound what all programs that this process starts meanwhile print into its pipes together.

    Ansible runs each host's task in a process of its own, of which this changes `subprocess.Popen`. `say_exceeded` is
    called before the first program that prints more is killed.
    """
    allowance = Allowance(most_bytes)
    popen = subprocess.Popen

    class BoundedPopen(_POPEN):  # type: ignore[type-arg]
        """A program whose output comes through pipes that end with the allowance."""

        stdout: IO[bytes] | None
        stderr: IO[bytes] | None

        def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - as in subprocess
            super().__init__(*args, **options)
            if not self.text_mode:  # type: ignore[attr-defined]
                self.stdout = self._bounded(self.stdout)
                self.stderr = self._bounded(self.stderr)

        def _bounded(self, source: IO[bytes] | None) -> IO[bytes] | None:
            if source is None:
                return None
            reading, writing = os.pipe()
            # A connection that stays in the background may keep its end open for longer than the task lasts.
            threading.Thread(target=self._relay, args=(source, writing), daemon=True).start()
            return os.fdopen(reading, "rb")

        def _relay(self, source: IO[bytes], writing: int) -> None:
            with source, os.fdopen(writing, "wb", buffering=0) as sink, suppress(BrokenPipeError):
                while chunk := os.read(source.fileno(), _CHUNK):
                    if not allowance.grants(len(chunk)):
                        say_exceeded()
                        self.kill()
                        return
                    while chunk:
                        chunk = chunk[sink.write(chunk) :]

    subprocess.Popen = BoundedPopen  # type: ignore[misc]
    try:
        yield allowance
    finally:
        subprocess.Popen = popen  # type: ignore[misc]
