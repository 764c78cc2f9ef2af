"""An agent's engine socket, forwarded to one on the control node by ssh."""

import os
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from muster.core.model.agent import Agent
from muster.core.values.errors import AgentUnreachableError
from muster.engine.agent_ssh import ssh_command, ssh_user

ENGINE_SOCKET = "/var/run/docker.sock"
_CONNECT_TIMEOUT_S = 10
# Beside connecting: key exchange, login and the shell of a busy host.
_READY_TIMEOUT_S = 20
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(_CONNECT_TIMEOUT_S),
    "ExitOnForwardFailure": "yes",
    # A host that vanished is noticed within some 20 s.
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    # A shared connection would keep the forwarding when this process is gone.
    "ControlMaster": "no",
    "ControlPath": "none",
    "RemoteCommand": "none",
    "LogLevel": "INFO",
}
_READY, _DENIED, _MISSING = b"muster:ready", b"muster:denied", b"muster:missing"
# It looks at the socket as the user who will open it, then lasts as long as our end of its input: a control node that
# is killed leaves no tunnel behind.
_REMOTE = f"""
if test -w {ENGINE_SOCKET}; then echo {_READY.decode()}; exec cat >/dev/null; fi
if test -e {ENGINE_SOCKET}; then echo {_DENIED.decode()}; else echo {_MISSING.decode()}; fi
"""


@dataclass(frozen=True, slots=True)
class EngineTunnel:
    """`url` is the agent's engine, for any number of threads. `complaint()` is what ssh said last, in brackets."""

    url: str
    complaint: Callable[[], str]


@contextmanager
def engine_tunnel(agent: Agent) -> Iterator[EngineTunnel]:
    """Raises AgentUnreachableError."""
    with tempfile.TemporaryDirectory(prefix="muster-tunnel-") as directory, tempfile.TemporaryFile() as complaints:
        socket = Path(directory) / "docker.sock"
        options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        command = ssh_command(agent, "-T", *options, "-L", f"{socket}:{ENGINE_SOCKET}")
        try:
            process = subprocess.Popen(
                [*command, f"exec sh -c {shlex.quote(_REMOTE)}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                # The terminal's Ctrl-C is for us to handle, and ssh asks nobody for a password.
                start_new_session=True,
            )
        except FileNotFoundError:
            raise AgentUnreachableError(
                f"agent {agent.id}: there is no ssh on this machine; install openssh-client"
            ) from None
        with process:
            try:
                problem = _problem(agent, _first_verdict(process), complaints)
                if problem:
                    raise AgentUnreachableError(f"agent {agent.id}: {problem}")
                yield EngineTunnel(f"unix://{socket}", lambda: _complaint(complaints))
            finally:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Politely first, so that ssh ends its ProxyCommand too."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()


def _complaint(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    return f" (ssh: {lines[-1].strip().removeprefix('ssh: ')})" if lines else ""


def _problem(agent: Agent, verdict: bytes | None, complaints: IO[bytes]) -> str:
    """Empty when the engine may be used."""
    match verdict:
        case b"muster:ready":
            return ""
        case b"muster:denied":
            user = ssh_user(agent) or "of its ssh connection"
            return f"user {user} may not use its Docker engine; add it to the group docker"
        case b"muster:missing":
            return f"it has no {ENGINE_SOCKET}; start its Docker engine"
        case b"":
            return f"it cannot be logged in to{_complaint(complaints)}"
        case _:
            return f"it did not let us log in within {_READY_TIMEOUT_S} s{_complaint(complaints)}"


def _first_verdict(process: subprocess.Popen[bytes]) -> bytes | None:
    """What the remote shell says of the socket; empty when ssh ended, None when the time was up.

    Whatever else a login prints is skipped.
    """
    if process.stdout is None:
        raise ValueError("ssh was started without a pipe")
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN | select.POLLHUP)
    deadline = time.monotonic() + _READY_TIMEOUT_S
    said = b""
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(process.stdout.fileno(), 4096)
        if not chunk:
            return b""
        said += chunk
        for verdict in (_READY, _DENIED, _MISSING):
            if verdict in said:
                return verdict
    return None
