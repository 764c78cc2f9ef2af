"""A program of ours that runs on an agent as root for as long as it is needed: by ssh, or here.

Nothing is installed for it: its text goes to its standard input first. What it says is not to be trusted.
"""

import os
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from muster.core.agents.agent import Agent
from muster.core.values.errors import AgentUnreachableError
from muster.engine.agent_ssh import by_sh, is_local, ssh_command
from muster.engine.piped import NoSshError, last_line, ssh_options, start_piped

_OPTIONS = {"ClearAllForwardings": "yes", "ConnectTimeout": "10", "RemoteCommand": "none", "LogLevel": "INFO"}
_LOADER = "import sys; f = sys.stdin.buffer; exec(compile(f.read(int(f.readline())), 'muster', 'exec'))"
# Runs the program that comes first to its standard input.
PYTHON = f"python3 -I -c {shlex.quote(_LOADER)}"
# Where the inventory's user is not root, they must be able to become root without a password.
_AS_ROOT = f'if [ "$(id -u)" = 0 ]; then exec {PYTHON}; fi; exec sudo -n {PYTHON}'
_PIECE_BYTES = 1 << 18
_MOST_BEFORE_MARK = 1 << 16
_END_PATIENCE_S = 5.0


class AgentProgram:
    """A running program, called `title` in errors. Reads and writes give up after `patience_s` of silence.

    Raises AgentUnreachableError.
    """

    def __init__(
        self, agent: Agent, process: subprocess.Popen[bytes], messages: IO[bytes], patience_s: float, title: str
    ) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the program was started without pipes")
        self._agent = agent
        self._process = process
        self._messages = messages
        self._patience_s = patience_s
        self._title = title
        self._input, self._output = process.stdin.fileno(), process.stdout.fileno()
        self._received = b""
        os.set_blocking(self._input, False)

    @property
    def output(self) -> int:
        """Return the descriptor that what it says comes from."""
        return self._output

    def hang_up(self) -> None:
        """End its input, after which it ends by itself. Only `running` still uses it after that."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def skip_to(self, mark: bytes) -> None:
        """Skip what a login prints, up to and with the mark."""
        while mark not in self._received:
            piece = self._next()
            if not piece or len(self._received) > _MOST_BEFORE_MARK:
                raise self._unreachable(f"{self._title} did not start")
            self._received += piece
        self._received = self._received.partition(mark)[2]

    def line(self, most_bytes: int) -> bytes:
        """Return the next line."""
        while (line := self.line_if_whole(most_bytes)) is None:
            continue
        return line

    def line_if_whole(self, most_bytes: int) -> bytes | None:
        """Return the next line, or None if it has not ended after the next piece. `output` says when one has come."""
        if b"\n" not in self._received:
            piece = self._next()
            if not piece or len(self._received) > most_bytes:
                raise self._unreachable(f"{self._title} broke off")
            self._received += piece
        line, end, rest = self._received.partition(b"\n")
        if not end:
            return None
        self._received = rest
        return line

    def pieces(self) -> Iterator[bytes]:
        """Yield what comes, up to the program's end. An exit code other than 0 raises, too."""
        piece = self._received
        self._received = b""
        while piece or (piece := self._next()):
            yield piece
            piece = b""
        if self._process.wait():
            raise self._unreachable(f"{self._title} failed")

    def write(self, data: bytes) -> bool:
        """Return whether the program took it: one that reads no more has said why."""
        view = memoryview(data)
        poll = select.poll()
        poll.register(self._input, select.POLLOUT)
        while view:
            if not poll.poll(self._patience_s * 1000):
                raise self._unreachable("it has taken nothing for too long")
            try:
                view = view[os.write(self._input, view[:_PIECE_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return False
        return True

    def _next(self) -> bytes:
        poll = select.poll()
        poll.register(self._output, select.POLLIN | select.POLLHUP)
        if not poll.poll(self._patience_s * 1000):
            raise self._unreachable(f"it has said nothing for {self._patience_s:g} s")
        return os.read(self._output, _PIECE_BYTES)

    def _unreachable(self, problem: str) -> AgentUnreachableError:
        complaint = last_line(self._messages)
        said = f" ({complaint})" if complaint else ""
        return AgentUnreachableError(f"agent {self._agent.id}: {problem}{said}")


def for_loader(program: str) -> bytes:
    """Return a program's text as `PYTHON` reads it."""
    text = program.encode()
    return f"{len(text)}\n".encode() + text


@contextmanager
def running(agent: Agent, program: str, *, patience_s: float, title: str) -> Iterator[AgentProgram]:
    """Start a program on the agent as root, and end it at last. Raises AgentUnreachableError."""
    ssh = ssh_command(agent, "-T", *ssh_options(_OPTIONS))
    command = ["sh", "-c", _AS_ROOT] if is_local(agent) else [*ssh, by_sh(_AS_ROOT)]
    with tempfile.TemporaryFile() as messages:
        try:
            process = start_piped(command, messages)
        except NoSshError:
            raise AgentUnreachableError(f"agent {agent.id}: there is no ssh on the control node") from None
        with process:
            try:
                started = AgentProgram(agent, process, messages, patience_s, title)
                started.write(for_loader(program))
                yield started
            finally:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its pipes, so that it ends by itself, and see to it that it does."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    deadline = time.monotonic() + _END_PATIENCE_S
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
