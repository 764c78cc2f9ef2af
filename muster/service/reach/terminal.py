"""A shell in a kernel for a remote user: ssh as in `muster ssh`, on a terminal of this machine."""

import fcntl
import os
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from muster.core.agents.agent import Agent
from muster.core.model.session import Kernel, Session, SessionState, kernel_named
from muster.core.values.errors import BadInputError, MusterError, NotPossibleInStateError
from muster.service.reach.logs import agent_of
from muster.service.reach.ssh_access import ssh_config
from muster.settings import Settings

MOST_COLUMNS = 1000
MOST_ROWS = 1000
_PIECE_BYTES = 16 << 10
_END_PATIENCE_S = 1.0
_END_POLL_S = 0.02
# Without an escape character what is typed reaches the kernel only, never ssh's own command line on this machine.
_OPTIONS = (
    "BatchMode=yes",
    "ClearAllForwardings=yes",
    "ConnectTimeout=15",
    "EscapeChar=none",
    "ForwardAgent=no",
    "PermitLocalCommand=no",
    "ServerAliveCountMax=3",
    "ServerAliveInterval=15",
)


def check_size(columns: int, rows: int) -> None:
    """Raises BadInputError for what is no size of a terminal."""
    for field, number, most in (("columns", columns, MOST_COLUMNS), ("rows", rows, MOST_ROWS)):
        if not 1 <= number <= most:
            raise BadInputError(f"{field}: {number} is no size of a terminal; give 1 to {most}")


class TerminalEnd:
    """A terminal's end on this machine. Reads and writes never wait: `fileno` says when they can go on."""

    def __init__(self, session: Session, master: int) -> None:
        self.session = session
        self._master = master

    def fileno(self) -> int:
        return self._master

    @property
    def takes_input(self) -> bool:
        """Return whether ssh has logged in: what is typed before that would be shown twice."""
        local_modes: int = termios.tcgetattr(self._master)[3]
        return not local_modes & termios.ICANON

    def read(self) -> bytes:
        """Return what was written since; empty at the end. Raises BlockingIOError if nothing was."""
        try:
            return os.read(self._master, _PIECE_BYTES)
        except BlockingIOError:
            raise
        except OSError:
            return b""

    def write(self, data: bytes) -> int:
        """Return how much was taken: all if nobody reads any more. Raises BlockingIOError if there is no room."""
        try:
            return os.write(self._master, data)
        except BlockingIOError:
            raise
        except OSError:
            return len(data)

    def close(self) -> bool:
        """Return whether it was open."""
        was_open = self._master >= 0
        if was_open:
            os.close(self._master)
            self._master = -1
        return was_open


class Terminal(TerminalEnd):
    """A program of this machine on a terminal."""

    def __init__(self, session: Session, command: list[str]) -> None:
        """Raises MusterError."""
        master, inner = os.openpty()
        super().__init__(session, master)
        # Before the program starts, which then finds it, and no signal of a change meets a program that begins.
        self._set_size(80, 24)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=inner,
                stdout=inner,
                stderr=inner,
                env={**os.environ, "TERM": "xterm-256color"},
                # With its jump hosts it is a group of its own, which ends as one.
                start_new_session=True,
            )
        except FileNotFoundError:
            self.close()
            raise MusterError("there is no ssh on the control node; install openssh-client there") from None
        finally:
            os.close(inner)
        os.set_blocking(self._master, False)

    def resize(self, columns: int, rows: int) -> None:
        """Raises BadInputError."""
        check_size(columns, rows)
        self._set_size(columns, rows)
        # It is not ssh's controlling terminal, so the kernel does not tell it.
        self._signal(signal.SIGWINCH)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def end(self) -> None:
        """End the terminal at once. A thread sees to it that no process is left."""
        if not self.close():
            return
        self._signal(signal.SIGHUP)
        # Not a daemon, as the thread that calls this may be: this process must not end before.
        threading.Thread(target=self._reap, name="terminal-end", daemon=False).start()

    def _reap(self) -> None:
        deadline = time.monotonic() + _END_PATIENCE_S
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(_END_POLL_S)
        # Its jump hosts may outlive it.
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _has_ended(self) -> bool:
        """Return whether the process has ended. It stays unreaped, so that no other process gets its number."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def open_terminal(settings: Settings, agents: Sequence[Agent], session: Session, kernel_name: str | None) -> Terminal:
    """Open a login shell in a kernel.

    Raises NotFoundError, as `check_has_terminal`, and MusterError where there is no ssh.
    """
    kernel = kernel_named(session, kernel_name)
    check_has_terminal(session, kernel)
    config = ssh_config(settings, session, agent_of(agents, session, session.main))
    options = [word for option in _OPTIONS for word in ("-o", option)]
    return Terminal(session, ["ssh", "-F", str(config), *options, kernel.name])


def check_has_terminal(session: Session, kernel: Kernel) -> None:
    """Raises NotPossibleInStateError."""
    if session.state is not SessionState.RUNNING:
        raise NotPossibleInStateError(
            f"session {session.name} is {session.state}; terminals are for sessions that are RUNNING"
        )
    if kernel.exited:
        raise NotPossibleInStateError(f"container {kernel.name} of session {session.name} has ended; choose another")
