"""An app of a session as a browser is led to it: a socket of this machine, and what to ask for there."""

import base64
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from muster.core.agents.agent import Agent
from muster.core.model.apps import App
from muster.core.model.session import Session
from muster.core.values.errors import BadInputError
from muster.private_directories import private_directory
from muster.service.reach.apps import app_named, check_openable, session_apps
from muster.service.reach.logs import agent_of
from muster.service.reach.ssh_access import ssh_config
from muster.settings import Settings

_SAFE_IN_URLS = "/%:@!$&'()*+,;=~?#"


@dataclass(frozen=True, slots=True)
class AppAddress:
    """The address of an app. `target`: path, query and fragment of its start; `authorization`: a header, or empty."""

    target: str
    authorization: str | None


def app_address(app: App, port: int, token: str) -> AppAddress:
    """Return where an app begins that is at `port` of a machine's loopback. Raises BadInputError."""
    try:
        parts = urlsplit(app.address(port, token))
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
    except ValueError as error:
        raise BadInputError(f"url of app {app.name}: {error}; write a path such as /lab") from None
    # Only the path of a whole URL counts: the app is nowhere else.
    local = SplitResult("", "", "/" + parts.path.lstrip("/"), parts.query, parts.fragment).geturl()
    authorization = None
    if user or password:
        authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
    return AppAddress(quote(local, safe=_SAFE_IN_URLS), authorization)


class AppTunnel:
    """The way to a session's app, until it is closed."""

    def __init__(
        self, session: Session, app: App, token: str, socket: Path, tunnel: subprocess.Popen[bytes], ending: ExitStack
    ) -> None:
        self.session = session
        self.app = app
        self.token = token
        self.socket = socket
        self._tunnel = tunnel
        self._ending = ending

    def is_open(self) -> bool:
        """Return whether it is open. It ends with main1, and when the agent has not answered for long."""
        return self._tunnel.poll() is None

    def give_to(self, uid: int, gid: int) -> None:
        """Let this user connect to the socket, and no other but ours; `gid` is a group of that user alone."""
        os.chown(self.socket.parent, -1, gid)
        self.socket.parent.chmod(0o710)
        os.chown(self.socket, uid, -1)

    def close(self) -> None:
        self._ending.close()


def openable_app(agents: Sequence[Agent], session: Session, name: str) -> App:
    """Raises NotFoundError, and NotPossibleInStateError where nobody would answer."""
    app = app_named(session, name)
    views = session_apps(session, agents, time.time())
    check_openable(session, next(view for view in views if view.app == app))
    return app


def open_app_tunnel(settings: Settings, agents: Sequence[Agent], session: Session, app: App) -> AppTunnel:
    """Open a tunnel by ssh, to a socket that only this process' user reaches. Raises MusterError."""
    from muster.service.reach.app_tunnel import app_tunnel, token_of  # noqa: PLC0415 - the Docker SDK loads slowly

    agent = agent_of(agents, session, session.main)
    token = token_of(session, agent, app, settings.launch_policy().runtime_path)
    config = ssh_config(settings, session, agent)
    with ExitStack() as stack:
        # Where the web server's user, who is given the socket, may see it.
        directory = stack.enter_context(private_directory(Path(tempfile.gettempdir()), "muster-app-"))
        socket = directory / "app"
        tunnel = stack.enter_context(app_tunnel(config, session, app, socket))
        return AppTunnel(session, app, token, socket, tunnel, stack.pop_all())
