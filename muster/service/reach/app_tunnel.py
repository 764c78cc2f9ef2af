"""The way from a user's machine to an app of a session: its token, and a tunnel through main1's sshd."""

import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from muster.core.agents.agent import Agent
from muster.core.model.apps import App
from muster.core.model.session import Session
from muster.core.values.errors import BadInputError, MusterError, NotPossibleInStateError
from muster.engine.agent_engine import container_of
from muster.engine.execution import output_of
from muster.engine.forwarding import forwarding_options, ssh_forwarding
from muster.service.at_once import AtOnce
from muster.service.reach.apps import app_named, check_openable, session_apps
from muster.service.reach.logs import agent_of
from muster.service.reach.ssh_access import plain_ssh_command
from muster.service.reach.views import AppAccessView
from muster.settings import Settings
from muster.store.store import Store

_READY = b"muster:ready"
_READY_TIMEOUT_S = 30
_TOKEN_TIMEOUT_S = 15.0
_MOST_TOKEN_BYTES = 4096
_TOKENS = AtOnce(32, 4, ("tokens of apps", "are read"))
_LOOPBACK = "127.0.0.1"
# It prints that the tunnel is up, then runs until its input is closed.
_REMOTE = f"echo {_READY.decode()}; exec cat >/dev/null"


def token_of(session: Session, agent: Agent, app: App, runtime_path: str) -> str:
    """Read from main1, the only place that has it; empty where the app takes none.

    Raises NotPossibleInStateError where main1 does not give it, or where too many are read.
    """
    if not app.token:
        return ""
    read = [f"{runtime_path}/bin/busybox", "cat", f"/run/muster/app-{app.name}.token"]
    # By owner: whose kernels answer late keeps nobody else's from being asked.
    with _TOKENS.counted(session.owner), container_of(agent, session.main) as container:
        try:
            said = output_of(container, read, most_bytes=_MOST_TOKEN_BYTES, patience_s=_TOKEN_TIMEOUT_S)
        except OSError:  # also a timeout
            said = None
    token = (said or b"").decode("ascii", "replace").strip()
    if not token or not (token.isascii() and token.isprintable()):
        raise NotPossibleInStateError(
            f"the token of app {app.name} cannot be read in {session.main.name} of {session.name}"
        )
    return token


def app_access(store: Store, settings: Settings, session: Session, name: str | None) -> AppAccessView:
    """Return what a tunnel to an app needs; the session's only one for None.

    Raises NotFoundError, BadInputError, NotPossibleInStateError and AgentUnreachableError.
    """
    app = app_named(session, name)
    agents = store.agents.all()
    status = next(one for one in session_apps(session, agents, time.time()) if one.app == app)
    check_openable(session, status)
    agent = agent_of(agents, session, session.main)
    token = token_of(session, agent, app, settings.launch_policy().runtime_path)
    url = app.url.replace("{token}", token)
    return AppAccessView(name=app.name, port=app.port, url=url, state=status.state, reason=status.reason or None)


def free_local_port(requested: int | None, app_port: int) -> int:
    """Return the requested port of this machine, else the app's own number, else any.

    Raises BadInputError for a requested one that is taken.
    """
    if requested is not None:
        if not _is_free(requested):
            raise BadInputError(f"--port: port {requested} is in use on this machine; choose another, or leave it out")
        return requested
    if _is_free(app_port):
        return app_port
    with socket.socket() as any_port:
        any_port.bind((_LOOPBACK, 0))
        return int(any_port.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As ssh does: a port of a closed connection can be bound again at once.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return False
    return True


def plain_tunnel_command(settings: Settings, session: Session, agent: Agent, app: App, local_port: int) -> str:
    """Return what a user types on a machine without Muster."""
    return tunnel_command(plain_ssh_command(settings, session, session.main, agent), app.port, local_port)


def tunnel_command(ssh: Sequence[str], app_port: int, local_port: int) -> str:
    """Return the same, given what a user types to log in to main1."""
    program, *rest = ssh
    return shlex.join([program, "-N", "-L", f"{_LOOPBACK}:{local_port}:{_LOOPBACK}:{app_port}", *rest])


@contextmanager
def app_tunnel(config: Path, session: Session, app: App, local: int | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Open a tunnel from `local` to the app; what it yields ends with the tunnel.

    `local` is a port of this machine, or a socket to be made in a directory of ours; `config` is the session's ssh
    configuration. Raises MusterError.
    """
    listening = str(local) if isinstance(local, Path) else f"{_LOOPBACK}:{local}"
    options = forwarding_options(listening, f"{_LOOPBACK}:{app.port}")
    command = ["ssh", "-F", str(config), *options, session.main.name, _REMOTE]
    with ssh_forwarding(command, (_READY,), _READY_TIMEOUT_S) as forwarding:
        if forwarding.answer != _READY:
            complaint = forwarding.complaint() or "no answer"
            raise MusterError(f"session {session.name} cannot be reached by ssh: {complaint}")
        yield forwarding.process
