"""Sessions that run the built-in apps in the images of `images/`, and servers that open them."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import recipes
from tests.control_node import ControlNode
from tests.e2e.conftest import NewNode
from tests.e2e.server.browser_app import app_ports
from tests.servers.app_browser import AppBrowser, entered, signed_in
from tests.servers.certificate import make_certificate
from tests.servers.web_server import Server, web_server


@dataclass(frozen=True)
class BrowserApps:
    """Running sessions of one app each, of its name, and two servers that open them: by HTTP and by TLS."""

    node: ControlNode
    servers: dict[str, Server]

    @contextmanager
    def opened(self, app: str, scheme: str) -> Iterator[AppBrowser]:
        """Yield a browser that has opened the app."""
        with closing(signed_in(self.servers[scheme], "ada")) as client, closing(entered(client, app, app)) as browser:
            yield browser


@contextmanager
def browser_apps(new_node: NewNode, directory: Path, specs: dict[str, dict[str, Any]]) -> Iterator[BrowserApps]:
    """Build the images of these apps and start their sessions, by name. Yield once all of them run."""
    for app in specs:
        recipes.build(app)
    node = new_node()
    (node.directory / "images.yml").write_text(recipes.catalog(*specs))
    node.start_daemon()
    with ExitStack() as stack:
        servers = {}
        for scheme, certificate in (("http", None), ("https", make_certificate(directory))):
            (directory / scheme).mkdir()
            serving = web_server(node, directory / scheme, "--app-ports", app_ports(), certificate=certificate)
            servers[scheme] = stack.enter_context(serving)
        with servers["https"].client(servers["https"].token("ada")) as api:
            for app, spec in specs.items():
                whole = {"cpu": 0.5, "mem": "1G", "shm": "64M", "image": app, "name": app, "apps": [app], **spec}
                answer = api.post("/sessions", json=whole)
                assert answer.status_code == 201, answer.text
        for app in specs:
            node.reaches(app, "RUNNING")
        yield BrowserApps(node, servers)
