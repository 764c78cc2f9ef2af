"""An agent's engine socket, forwarded to one on the control node by ssh."""

import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from muster.core.agents.agent import Agent
from muster.core.values.errors import AgentUnreachableError
from muster.engine.agent_program import PYTHON, for_loader
from muster.engine.agent_ssh import by_sh, ssh_command, ssh_user
from muster.engine.forwarding import Forwarding, forwarding_options, ssh_forwarding
from muster.engine.piped import NoSshError
from muster.shipped_files import ansible_root

ENGINE_SOCKET = "/var/run/docker.sock"
_CONNECT_TIMEOUT_S = 10
# Beside connecting: key exchange, login and the shell of a busy host.
_READY_TIMEOUT_S = 20
_LAST_WORDS_S = 5
_OPTIONS = {
    "ConnectTimeout": str(_CONNECT_TIMEOUT_S),
    # A shared connection would keep the forwarding when this process is gone.
    "ControlMaster": "no",
    "ControlPath": "none",
    "RemoteCommand": "none",
    "LogLevel": "INFO",
}
_READY, _RELAYED, _DENIED, _MISSING = b"muster:ready", b"muster:relayed", b"muster:denied", b"muster:missing"
_ANSWERS = (_READY, _RELAYED, _DENIED, _MISSING)
# It looks at the socket as the user who will open it, then lasts as long as our end of its input. A user who may not
# open it, and has sudo, gets a socket of their own from root.
_REMOTE = (
    f"if test -w {ENGINE_SOCKET}; then echo {_READY.decode()}; exec cat >/dev/null; fi; "
    f'if test -e {ENGINE_SOCKET}; then sudo -n {PYTHON} "$1" {ENGINE_SOCKET}; echo {_DENIED.decode()}; '
    f"else echo {_MISSING.decode()}; fi"
)


@dataclass(frozen=True, slots=True)
class EngineTunnel:
    """A tunnel to an agent's engine at `url`, for any number of threads. `complaint()` is ssh's last line."""

    url: str
    complaint: Callable[[], str]


@contextmanager
def engine_tunnel(agent: Agent) -> Iterator[EngineTunnel]:
    """Forward the agent's engine socket. Raises AgentUnreachableError."""
    with ExitStack() as stack:
        with _directory(agent) as directory:
            forwarding = stack.enter_context(_forwarding_to(agent, directory))
            # A process that is killed removes no files. So we hold the socket itself, and its file goes at once.
            name = "relayed.sock" if forwarding.answer == _RELAYED else "docker.sock"
            handle = os.open(directory / name, os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, handle)
        yield EngineTunnel(f"unix:///proc/self/fd/{handle}", lambda: _complaint(forwarding))


@contextmanager
def _directory(agent: Agent) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-tunnel-"))
        except OSError as error:
            cause = f"{error.filename or tempfile.gettempdir()} cannot be written: {error.strerror or error}"
            raise AgentUnreachableError(f"agent {agent.id}: there is no place for a tunnel: {cause}") from None
        yield Path(directory)


@contextmanager
def _forwarding_to(agent: Agent, directory: Path) -> Iterator[Forwarding]:
    """Forward `docker.sock` in the directory to the engine's own socket, and `relayed.sock` to that of a relay."""
    relay = f"/run/muster-engine-{secrets.token_hex(16)}"
    options = forwarding_options(str(directory / "docker.sock"), ENGINE_SOCKET, _OPTIONS)
    options += ["-L", f"{directory}/relayed.sock:{relay}/relayed.sock"]
    command = [*ssh_command(agent, *options), by_sh(_REMOTE, relay)]
    try:
        with ssh_forwarding(command, _ANSWERS, _READY_TIMEOUT_S, _relay()) as forwarding:
            if problem := _problem(agent, forwarding):
                raise AgentUnreachableError(f"agent {agent.id}: {problem}")
            yield forwarding
    except NoSshError as error:
        raise AgentUnreachableError(f"agent {agent.id}: {error}") from None


@cache
def _relay() -> bytes:
    path = ansible_root() / "plugins/module_utils/muster_agent/engine/socket_relay.py"
    return for_loader(path.read_text(encoding="utf-8"))


def _complaint(forwarding: Forwarding) -> str:
    line = forwarding.complaint()
    return f" (ssh: {line.removeprefix('ssh: ')})" if line else ""


def _problem(agent: Agent, forwarding: Forwarding) -> str:
    """Return why the engine may not be used; empty when it may."""
    match forwarding.answer:
        case b"muster:ready" | b"muster:relayed":
            return ""
        case b"muster:denied":
            user = ssh_user(agent) or "of its ssh connection"
            # The remote command is over. What sudo said may come after the answer, but not after ssh's end.
            with suppress(subprocess.TimeoutExpired):
                forwarding.process.wait(_LAST_WORDS_S)
            remedy = "let it become root by sudo without a password, or add it to the group docker"
            return f"user {user} may not use its Docker engine{_complaint(forwarding)}; {remedy}"
        case b"muster:missing":
            return f"it has no {ENGINE_SOCKET}; start its Docker engine"
        case b"":
            return f"it cannot be logged in to{_complaint(forwarding)}"
        case _:
            return f"it did not let us log in within {_READY_TIMEOUT_S} s{_complaint(forwarding)}"
