"""A session's app in a browser, through the real server, ssh and container."""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.control_node import ControlNode
from tests.e2e.server.browser_app import SPEC, app_ports
from tests.servers.app_browser import AppBrowser, SignedIn, entered, signed_in
from tests.servers.web_server import Server, web_server
from tests.waiting import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def server(node: ControlNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(node, tmp_path_factory.mktemp("web"), "--app-ports", app_ports()) as made:
        yield made


@pytest.fixture(scope="module")
def ada(server: Server) -> Iterator[SignedIn]:
    with closing(signed_in(server, "ada")) as client:
        yield client


def running(server: Server, client: SignedIn, name: str) -> str:
    """Return the name of the user's session, once its app serves."""
    with server.client(client.token) as api:
        answer = api.post("/sessions", json={**SPEC, "name": name})
        assert answer.status_code == 201, answer.text
    server.node.reaches(name, "RUNNING")
    return name


def at_work(client: SignedIn, session: str) -> AppBrowser:
    """Return a browser in the session's app, before its login page, once the app serves."""
    app = entered(client, session, "page")
    answer = eventually(lambda: app.get("/headers"), lambda answer: answer.status_code != 502)
    assert answer.status_code == 200, answer.text
    return app


def test_an_app_serves_a_browser_at_an_origin_of_its_own(server, ada):
    name = running(server, ada, "with-app")
    of_a_killed_server = Path(tempfile.mkdtemp(prefix="muster-app-"))
    with closing(at_work(ada, name)) as app:
        assert not of_a_killed_server.exists()
        assert app.get("/page").status_code == 403
        again = ada.post(f"/sessions/{name}/apps/page/open").headers["refresh"].removeprefix("0; url=")
        page = app.get(again)
        assert (page.url.path, page.status_code) == ("/page", 200)
        assert "<h1>An app</h1>" in page.text
        received = app.get("/headers").text
        assert "muster" not in received
        assert "app=in" in received
        assert f"host: 127.0.0.1:{app.base_url.port}\n" in received
        size = 20 << 20
        assert app.post("/upload", content=b"x" * size).text == str(size)
        with app.websocket("/ws") as websocket:
            websocket.send("hello")
            assert websocket.recv(PATIENCE_S) == "hello from main1"
        app.cookies.clear()
        assert app.get("/page").status_code == 401


def test_nobody_opens_anothers_app_and_nobody_on_the_machine_has_its_token(server, ada):
    name = running(server, ada, "hers-alone")
    with closing(signed_in(server, "eve")) as eve, closing(at_work(ada, name)) as app:
        refused = eve.post(f"/sessions/{name}/apps/page/open")
        assert (refused.status_code, "there is no session" in refused.text) == (404, True)
        app.cookies = {"muster": eve.cookies["muster"]}
        assert app.get("/headers").status_code == 401
        token = server.node.run("open", name, "page", "--print", "--json").json()["url"].rpartition("=")[2]
        assert token not in (server.directory / "web.log").read_text()

    def noted() -> list[tuple[str, int]]:
        # A last line without its end is still being written.
        lines = (server.node.directory / "state" / "audit.log").read_text().splitlines(keepends=True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        path = f"/sessions/{name}/apps/page/open"
        return sorted((one["user"], one["status"]) for one in records if one["path"] == path)

    # A request is written down when its answer has been sent.
    eventually(noted, lambda found: found == [("ada", 200), ("eve", 404)])


def test_an_app_that_serves_nothing_and_a_missing_one_are_reported(server, ada):
    name = running(server, ada, "nothing-there")
    opened = ada.post(f"/sessions/{name}/apps/nothing/open")
    with httpx.Client(timeout=PATIENCE_S, follow_redirects=True) as browser:
        answer = browser.get(opened.headers["refresh"].removeprefix("0; url="))
        assert (answer.status_code, "nothing does not answer" in answer.text) == (502, True)
    assert ada.post(f"/sessions/{name}/apps/nope/open").status_code == 404


def test_an_app_is_over_when_its_session_is(server, ada):
    name = running(server, ada, "ends-soon")
    with closing(at_work(ada, name)) as app:
        assert tunnels()
        with server.client(ada.token) as api:
            api.delete(f"/sessions/{name}")
        eventually(lambda: not is_there(app))
    session_id = server.node.show(name)["id"]
    # First nobody gets in any more; then the tunnel is closed.
    eventually(lambda: not any(session_id in line for line in tunnels()))


def is_there(app: httpx.Client) -> bool:
    try:
        return app.get("/headers").status_code == 200
    except httpx.TransportError:
        return False


def tunnels() -> list[str]:
    commands = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in commands.splitlines() if line.startswith("ssh ") and "muster-app-" in line]
