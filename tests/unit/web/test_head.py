"""HEAD: answered wherever there is GET, with the same status and headers, and no content."""

import re

import pytest

from muster.core.model.token import Scope
from muster.web.rendering import static
from tests.strategies.agents import make_agent
from tests.unit.web.api.test_api import SMALL

STREAMS = {"/api/v1/events", "/live"}
PAGES = ("/", "/overview", "/sessions", "/sessions/train", "/launch", "/queue", "/resources", "/resources/a1", "/nope",
         "/reservations", "/limits", "/usage", "/usage.csv", "/folders", "/images", "/account", "/sign-in")  # fmt: skip


@pytest.fixture
def train(service):
    service.store.agents.save([make_agent("a1")])
    service.service.commands.submit({**SMALL, "name": "train"}, "ada")


def assert_alike(client, path):
    read, head = (client.request(method, path, follow_redirects=False) for method in ("GET", "HEAD"))
    assert (head.status_code, head.content) == (read.status_code, b""), path
    # The length of what tells ages may change from one moment to the next.
    same = [{name: value for name, value in one.headers.items() if name != "content-length"} for one in (read, head)]
    assert same[0] == same[1], path
    assert "content-length" in head.headers or read.status_code == 200, path


@pytest.mark.usefixtures("train")
def test_each_operation_of_the_api_and_what_is_beside_them(app, caller):
    root = caller("ada", Scope.ADMIN)
    paths = [path for path, operations in app.openapi()["paths"].items() if "get" in operations]
    assert len(paths) > 20
    filled = {re.sub(r"\{session\}", "train", path).replace("{agent}", "a1") for path in paths} - STREAMS
    for path in sorted(filled | {"/healthz", "/readyz", "/openapi.json", "/api/v1/openapi.json", "/api/v1/nope"}):
        assert_alike(root, re.sub(r"\{[a-z]+\}", "nope", path))


@pytest.mark.usefixtures("train")
def test_each_page_and_static_file(browser):
    ada = browser("ada", Scope.ADMIN)
    for path in (*PAGES, static("muster.css"), "/static/nope.js"):
        assert_alike(ada, path)
    stranger = browser("nobody", sign_in=False)
    assert stranger.head("/sessions", follow_redirects=False).headers["location"] == "/sign-in?next=%2Fsessions"


def test_head_needs_a_token_and_is_counted_as_what_it_is(app, caller):
    ada = caller("ada")
    assert ada.head("/api/v1/sessions", headers={"Authorization": ""}).status_code == 401
    assert ada.head("/api/v1/sessions").status_code == 200
    counts, *_ = app.state.request_counts.read()
    assert (counts["HEAD", 200], counts["HEAD", 401]) == (1, 1)
