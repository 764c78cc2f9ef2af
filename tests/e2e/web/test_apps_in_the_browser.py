"""JupyterLab's way into a browser, by HTTP and by TLS: the button Open, and no terminal."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.control_node import ControlNode
from tests.e2e.server.browser_app import SPEC, app_ports
from tests.servers.certificate import make_certificate
from tests.servers.web_server import Server, web_server


@pytest.fixture(scope="module", params=["http", "https"])
def server(
    request: pytest.FixtureRequest, node: ControlNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("web")
    certificate = make_certificate(directory) if request.param == "https" else None
    with web_server(node, directory, "--app-ports", app_ports(), certificate=certificate) as made:
        yield made


def test_an_app_opens_in_a_tab_of_its_own_past_its_login_and_speaks_to_its_websocket(server, visit):
    scheme = server.url.partition(":")[0]
    name = f"in-a-tab-by-{scheme}"
    with server.client(server.token("zoe")) as api:
        session = api.post("/sessions", json={**SPEC, "name": name}).json()["items"][0]
    server.node.reaches(name, "RUNNING")
    page = visit("zoe")
    page.goto(f"/sessions/{session['id']}")
    with page.context.expect_page() as tabs:
        page.get_by_role("button", name="Open page").click()
    tab = tabs.value
    expect(tab.get_by_text("hello from main1")).to_be_visible()
    assert tab.url.startswith(f"{scheme}://127.0.0.1:")
    assert tab.url.endswith("/page")
    assert tab.evaluate("window.opener") is None
    assert tab.evaluate("document.cookie") == ""
    cookies = {cookie["name"]: cookie for cookie in page.context.cookies()}
    ours = {name for name in cookies if "muster" in name and not name.startswith("muster-app-")}
    assert ours == {"__Host-muster" if scheme == "https" else "muster"}
    # The app's own as well, though it knows nothing of TLS.
    assert "app" in cookies
    assert {cookie["secure"] for cookie in cookies.values()} == {scheme == "https"}
    # Our pages' own WebSocket and event stream go the same way.
    page.goto(f"/sessions/{session['id']}/terminal?kernel=main1")
    expect(page.locator("#terminal-status")).to_have_text(re.compile("connected", re.IGNORECASE))
