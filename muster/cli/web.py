"""`web`: the server."""

from pathlib import Path

import click

from muster.cli.context import opened_service
from muster.cli.log_lines import log_to_stderr
from muster.core.values.errors import BadInputError

_HIGHEST_PORT = 65535


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), metavar="PORT")
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="Certificate, in PEM form.")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="Its key.")
@click.option("--insecure", is_flag=True, help="Let other machines reach it without TLS: tokens travel in the clear.")
@click.option(
    "--behind-proxy", is_flag=True, help="Take clients' addresses from X-Forwarded-For of a proxy on this machine."
)
@click.option(
    "--app-ports",
    metavar="FIRST-LAST",
    help="Open sessions' apps in the browser, each at one of these ports, such as 8100-8199.",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Let this machine's users in without a token at this Unix socket; `muster` looks for /run/muster-api.sock.",
)
@click.option("--only-socket", is_flag=True, help="Serve at that socket, and at no port.")
def web(
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    behind_proxy: bool,
    app_ports: str | None,
    socket: Path | None,
    only_socket: bool,
) -> None:
    """Serve the pages and the API until SIGTERM.

    The API is at /api/v1, its document at /api/v1/openapi.json; /healthz and /readyz need no token,
    and /metrics needs none on this machine.

    Make tokens with `muster token create`. Every change and every refusal is noted in audit.log in the state directory.
    """
    from muster.web.separation.processes import serve  # noqa: PLC0415 - its libraries load slowly
    from muster.web.server import ServerOptions  # noqa: PLC0415

    ports = None if app_ports is None else _ports(app_ports)
    place = None if socket is None else socket.absolute()
    options = ServerOptions(host, port, tls_cert, tls_key, insecure, behind_proxy, ports, place, only_socket)
    serve(options, opened_service, log_to_stderr)


def _ports(text: str) -> range:
    """Raises BadInputError."""
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= _HIGHEST_PORT:
        return range(int(first), int(last) + 1)
    raise BadInputError(f"--app-ports: {text!r} is no range of ports; write the first and the last, such as 8100-8199")
