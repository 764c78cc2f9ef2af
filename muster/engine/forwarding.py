"""A port or a socket of another machine, forwarded to this one by ssh."""

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from muster.engine.piped import last_line, ssh_options, start_piped


@dataclass(frozen=True, slots=True)
class Forwarding:
    """A started forwarding, which ends with its process.

    `answer` is what the remote command said first: empty if ssh ended, None if the time was over. `complaint()` returns
    the last line of ssh's own messages, and an empty text without one.
    """

    process: subprocess.Popen[bytes]
    answer: bytes | None
    complaint: Callable[[], str]


def forwarding_options(local: str, remote: str, more: Mapping[str, str] | None = None) -> list[str]:
    """Return the words for ssh that forward `local`, a port or a socket here, to `remote`."""
    options = ssh_options({"ExitOnForwardFailure": "yes", **(more or {})})
    return ["-T", *options, "-L", f"{local}:{remote}"]


@contextmanager
def ssh_forwarding(
    command: Sequence[str], answers: Collection[bytes], timeout_s: float, stdin: bytes = b""
) -> Iterator[Forwarding]:
    """Start ssh with `forwarding_options`, and wait until its remote command prints one of `answers`.

    Its input begins with `stdin`, a few kilobytes. The remote command must last as long as our end of its input: a
    process that is killed leaves no tunnel behind. Raises NoSshError.
    """
    with tempfile.TemporaryFile() as messages:
        process = start_piped(command, messages)
        with process:
            try:
                _write(process, stdin)
                yield Forwarding(process, _first_answer(process, answers, timeout_s), lambda: last_line(messages))
            finally:
                _end(process)


def _write(process: subprocess.Popen[bytes], stdin: bytes) -> None:
    if process.stdin is None:
        raise ValueError("ssh was started without a pipe")
    # An ssh that has ended says why.
    with suppress(BrokenPipeError):
        process.stdin.write(stdin)


def _first_answer(process: subprocess.Popen[bytes], answers: Collection[bytes], timeout_s: float) -> bytes | None:
    """Return which of the answers came first. Whatever else a login prints is skipped."""
    if process.stdout is None:
        raise ValueError("ssh was started without a pipe")
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN | select.POLLHUP)
    deadline = time.monotonic() + timeout_s
    output = b""
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(process.stdout.fileno(), 4096)
        if not chunk:
            return b""
        output += chunk
        for answer in answers:
            if answer in output:
                return answer
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it politely first, so that ssh ends its ProxyCommand too."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
