"""Chromium, and pages of signed-in users."""

from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.control_node import ControlNode
from tests.e2e.conftest import NewNode
from tests.servers import headless_chromium
from tests.servers.web_server import Server, web_server
from tests.waiting import PATIENCE_S

Visit = Callable[..., Page]
_SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=1000 * PATIENCE_S)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=headless_chromium.__file__)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def node(new_node: NewNode) -> ControlNode:
    """Return a control node for each file: the pages show all of its sessions."""
    made = new_node()
    made.start_daemon()
    return made


@pytest.fixture(scope="module")
def server(node: ControlNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(node, tmp_path_factory.mktemp("web")) as made:
        yield made


@pytest.fixture
def visit(chromium: Browser, server: Server) -> Iterator[Visit]:
    """Yield a function that opens a page of a signed-in user. An error in the browser's console fails the test."""
    contexts = []
    complaints: list[str] = []

    def make(user: str, scope: str = "user", *, width: int = 1280, dark: bool = False) -> Page:
        context = chromium.new_context(
            base_url=server.url,
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            permissions=["clipboard-read", "clipboard-write"],
            # No authority has signed a test's certificate.
            ignore_https_errors=server.url.startswith("https:"),
        )
        contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE_S)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if _is_complaint(message) else None)
        # Without the page of the sign-in, which would be a part of each test's CPU; test_signing_in.py is about it.
        context.request.post("/sign-in", form={"token": server.token(user, scope)}, max_redirects=0)
        page.goto("/sessions")
        page.get_by_role("heading", name="Sessions").wait_for()
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []


def _is_complaint(message) -> bool:
    # The tests recognise an error by the page's text. htmx words each request that has no answer as one of
    # `afterRequest`: also a refresh that is broken off as its page is left. One that failed is a `sendError` as well.
    expected = ("Failed to load resource", "Response Status Error Code", "htmx:afterRequest", "htmx:sendAbort")
    return message.type == "error" and not any(text in message.text for text in expected)


def serious_findings(page: Page) -> list[str]:
    """Return axe-core's findings on the page that hinder people."""
    found = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
        for violation in found
        if violation["impact"] in _SERIOUS
        for node in violation["nodes"]
    ]
