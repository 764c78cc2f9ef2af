"""JupyterLab's way into a browser: the button Open, and no terminal."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.control_node import ControlNode
from tests.e2e.browser_app import SPEC, app_ports
from tests.web_server import Server, web_server


@pytest.fixture(scope="module")
def server(node: ControlNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(node, tmp_path_factory.mktemp("web"), "--app-ports", app_ports()) as made:
        yield made


def test_an_app_opens_in_a_tab_of_its_own_past_its_login_and_speaks_to_its_websocket(server, visit):
    with server.client(server.token("zoe")) as api:
        session = api.post("/sessions", json={**SPEC, "name": "in-a-tab"}).json()["items"][0]
    server.node.reaches("in-a-tab", "RUNNING")
    page = visit("zoe")
    page.goto(f"/sessions/{session['id']}")
    with page.context.expect_page() as tabs:
        page.get_by_role("button", name="Open page").click()
    tab = tabs.value
    expect(tab.get_by_text("hello from main1")).to_be_visible()
    assert tab.url.startswith("http://127.0.0.1:")
    assert tab.url.endswith("/page")
    assert tab.evaluate("window.opener") is None
    assert tab.evaluate("document.cookie") == ""
    names = {cookie["name"] for cookie in page.context.cookies()}
    assert "muster" in names
