"""`open`: the way to an app of a session."""

import time
from dataclasses import dataclass
from typing import NoReturn

import click

from muster.cli.context import asks_server, complete_session, json_option, opened_backend, opened_service
from muster.cli.output import print_json
from muster.core.model.apps import AppState
from muster.core.model.session import SessionState
from muster.core.values.errors import MusterError
from muster.service.reach.app_tunnel import app_tunnel, free_local_port, plain_tunnel_command, token_of, tunnel_command
from muster.service.reach.apps import app_named, check_openable, session_apps
from muster.service.reach.logs import agent_of
from muster.service.reach.ssh_access import ssh_config

_POLL_S = 5.0


@click.command("open")
@click.argument("session", shell_complete=complete_session)
@click.argument("app", required=False)
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="LOCAL", help="Port of this machine; the app's by default."
)
@click.option(
    "--print", "print_only", is_flag=True, help="Print the ssh command for another machine and the URL there."
)
@json_option
def open_(session: str, app: str | None, port: int | None, print_only: bool, as_json: bool) -> None:
    r"""Open an app of a session: make a tunnel to it, print its URL, and serve until Ctrl-C.

    \b
      muster open lab jupyterlab
      muster open lab tensorboard --port 16006
      muster open lab jupyterlab --print      (for a laptop that has the session's ssh key)

    The URL holds the app's token: who has it is let in. `muster show` tells how the session's apps fare.
    """
    if asks_server():
        _open_by_server(session, app, port, print_only=print_only, as_json=as_json)
    with opened_service() as service:
        found = service.queries.find(session)
        named = app_named(found, app)
        view = next(v for v in session_apps(found, service.agents.all(), time.time()) if v.app == named)
        check_openable(found, view)
        agent = agent_of(service.agents.all(), found, found.main)
        policy = service.settings.launch_policy()
        local_port = (port or named.port) if print_only else free_local_port(port, named.port)
        url = named.address(local_port, token_of(found, agent, named, policy.runtime_path))
        command = plain_tunnel_command(service.settings, found, agent, named, local_port)
        config = ssh_config(service.settings, found, agent)
    way = _Way(named.name, url, local_port, command)
    if print_only:
        way.print_for_elsewhere(as_json=as_json)
        return
    with app_tunnel(config, found, named, local_port) as tunnel:
        way.print(view.state, view.reason, as_json=as_json)
        tunnel.wait()
    raise MusterError(f"the tunnel has ended: session {found.name} has ended, or its agent does not answer")


def _open_by_server(reference: str, app: str | None, port: int | None, *, print_only: bool, as_json: bool) -> NoReturn:
    """Open the app by the server, and serve until Ctrl-C."""
    from muster.cli.sessions.server_tunnel import served_port  # noqa: PLC0415 - the Docker SDK loads slowly

    with opened_backend() as backend:
        opened = backend.reach.app_access(reference, app)
        local_port = (port or opened.port) if print_only else free_local_port(port, opened.port)
        plain = backend.reach.ssh_access(reference).kernels[0].command
        way = _Way(opened.name, opened.address(local_port), local_port, tunnel_command(plain, opened.port, local_port))
        if print_only:
            way.print_for_elsewhere(as_json=as_json)
            raise click.exceptions.Exit(0)
        with backend.reach.programs(reference, None) as main, served_port(main, opened.port, local_port):
            way.print(opened.state, opened.reason or "", as_json=as_json)
            while (found := backend.details(main.session_id)).state is SessionState.RUNNING:
                time.sleep(_POLL_S)
    raise MusterError(f"the tunnel has ended: session {found.name} has ended")


@dataclass(frozen=True, slots=True)
class _Way:
    """The way to an app: its URL here, and the command for another machine."""

    app: str
    url: str
    local_port: int
    command: str

    def print(self, state: AppState | None, reason: str, *, as_json: bool) -> None:
        if as_json:
            print_json(self._answer)
        else:
            click.echo(self.url)
        if state in {AppState.STARTING, AppState.UNHEALTHY}:
            said = f": {reason}" if reason else ""
            click.echo(f"muster: {self.app} was {state} when its agent last looked{said}", err=True)
        click.echo("muster: open until Ctrl-C", err=True)

    def print_for_elsewhere(self, *, as_json: bool) -> None:
        if as_json:
            print_json(self._answer)
        else:
            click.echo(self.command)
            click.echo(self.url)

    @property
    def _answer(self) -> dict[str, object]:
        return {"app": self.app, "url": self.url, "local_port": self.local_port, "ssh_command": self.command}
