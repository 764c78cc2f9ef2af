"""A control node's server as a process of its own, and its clients."""

import os
import secrets
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.control_node import ControlNode
from tests.done import Done
from tests.running.forked_cli import ForkedMuster, run_forked
from tests.servers.certificate import Certificate


@dataclass
class Server:
    url: str
    directory: Path
    node: ControlNode
    trust: ssl.SSLContext
    process: ForkedMuster

    def token(self, user: str, scope: str = "user", name: str = "") -> str:
        """Make a token, by a new name if none is given: servers of one node share its tokens."""
        name = name or f"{user}-{secrets.token_hex(4)}"
        return self.node.run("token", "create", name, "--user", user, "--scope", scope, "--quiet").out.strip()

    def client(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=120, verify=self.trust)

    def remote(self, token: str, *arguments: str) -> Done:
        """Run a command on a machine that has a token but neither settings nor a database."""
        file = self.directory / "token"
        file.write_text(token)
        environment = {**os.environ, "MUSTER_CONFIG": str(self.directory / "nosuch.yml"), "MUSTER_SERVER": self.url}
        return run_forked(("--token-file", str(file), *arguments), environment, "", 240)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def web_server(
    node: ControlNode,
    directory: Path,
    *arguments: str,
    port: int | None = None,
    certificate: Certificate | None = None,
) -> Iterator[Server]:
    """Serve `muster web` of the node on this port, or on any free one; with a certificate, by TLS. It must end well."""
    port = port or free_port()
    log_path = directory / "web.log"
    tls = certificate.options if certificate else ()
    process = ForkedMuster(("web", "--port", str(port), *tls, *arguments), node.environment, log_path)
    # To read the system's authorities, of which none is needed, takes 17 ms for each client.
    scheme, trust = ("https", certificate.trust()) if certificate else ("http", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    server = Server(f"{scheme}://127.0.0.1:{port}", directory, node, trust, process)
    deadline = time.monotonic() + 120
    while True:
        try:
            assert httpx.get(f"{server.url}/readyz", verify=trust).status_code == 200
            break
        except httpx.TransportError:
            assert process.poll() is None, log_path.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
    yield server
    process.terminate()
    assert process.wait() == 0, log_path.read_text()
    # pytest shows it where the test has failed.
    sys.stdout.write(log_path.read_text()[-20_000:])
