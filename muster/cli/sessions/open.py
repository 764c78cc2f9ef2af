"""`open`: the way to an app of a session."""

import time

import click

from muster.cli.context import complete_session, json_option, opened_service
from muster.cli.output import print_json
from muster.core.model.apps import AppState
from muster.core.values.errors import MusterError
from muster.service.reach.app_tunnel import app_tunnel, free_local_port, plain_tunnel_command, token_of
from muster.service.reach.apps import app_named, check_openable, session_apps
from muster.service.reach.logs import agent_of
from muster.service.reach.ssh_access import ssh_config


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
    with opened_service() as service:
        found = service.queries.find(session)
        named = app_named(found, app)
        view = next(v for v in session_apps(found, service.agents.all(), time.time()) if v.app == named)
        check_openable(found, view)
        agent = agent_of(service.agents.all(), found, found.main)
        policy = service.settings.launch_policy()
        local_port = (port or named.port) if print_only else free_local_port(port, named)
        url = named.address(local_port, token_of(found, agent, named, policy.runtime_path))
        command = plain_tunnel_command(service.settings, found, agent, named, local_port)
        config = ssh_config(service.settings, found, agent)
    answer = {"app": named.name, "url": url, "local_port": local_port, "ssh_command": command}
    if print_only:
        if as_json:
            print_json(answer)
        else:
            click.echo(command)
            click.echo(url)
        return
    with app_tunnel(config, found, named, local_port) as tunnel:
        if as_json:
            print_json(answer)
        else:
            click.echo(url)
        if view.state in {AppState.STARTING, AppState.UNHEALTHY}:
            said = f": {view.reason}" if view.reason else ""
            click.echo(f"muster: {named.name} was {view.state} when its agent last looked{said}", err=True)
        click.echo("muster: open until Ctrl-C", err=True)
        tunnel.wait()
    raise MusterError(f"the tunnel has ended: session {found.name} has ended, or its agent does not answer")
