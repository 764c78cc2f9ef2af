"""An opened app that the browser reaches by TLS, of which the app itself knows nothing."""

import json
from contextlib import ExitStack

import pytest
from websockets.exceptions import InvalidStatus

from muster.web.opened_apps.headers import AppOrigin, from_app
from tests.servers.certificate import make_certificate
from tests.unit.web.opened_apps.test_proxy import loop, open_app  # noqa: F401 - a fixture

ORIGIN = AppOrigin("https://muster.example:8101", "127.0.0.1:8101", 8888)


@pytest.fixture
def opened(loop, tmp_path):  # noqa: F811 - the fixture
    with ExitStack() as stack:
        yield open_app(loop, tmp_path, stack, certificate=make_certificate(tmp_path))


def test_the_way_in_and_its_cookie_are_for_tls_alone(opened):
    assert opened.entered.status_code == 303
    assert opened.entered.headers["location"] == f"{opened.origin}/lab?token=t0ken"
    assert opened.entered.headers["set-cookie"].endswith("; Path=/; HttpOnly; SameSite=Lax; Secure")


def test_the_app_learns_of_tls_and_is_spoken_to_without(opened):
    headers = {"Origin": opened.origin, "Referer": f"{opened.origin}/lab"}
    received = dict(opened.browser.get("/x", headers=headers).json()["headers"])
    local = f"127.0.0.1:{opened.server.port}"
    assert (received["host"], received["origin"]) == (local, f"http://{local}")
    assert received["referer"] == f"http://{local}/lab"
    assert (received["x-forwarded-proto"], received["x-forwarded-host"]) == ("https", local)


def test_messages_pass_over_wss_and_the_apps_cookies_are_for_tls_alone(opened):
    with opened.websocket() as websocket:
        websocket.send("x" * 100_000)
        assert websocket.recv() == "x" * 100_000
        websocket.send("headers")
        assert json.loads(websocket.recv())["x-forwarded-proto"] == "https"
        set_cookies = websocket.response.headers.get_all("set-cookie")
    assert set_cookies == ["login=secret; Path=/; HttpOnly; Secure", "wide=1; Path=/; Secure"]


def test_a_page_that_came_without_tls_gets_nothing(opened):
    page = opened.origin.replace("https:", "http:")
    for method in ("GET", "POST"):
        assert opened.browser.request(method, "/x", headers={"Origin": page}).status_code == 403
    with pytest.raises(InvalidStatus) as refusal:
        opened.websocket(Origin=page)
    assert refusal.value.response.status_code == 403
    assert opened.upstream.requests == []


@pytest.mark.parametrize(
    ("location", "seen"),
    [
        ("/lab", "/lab"),
        ("http://127.0.0.1:8888/lab?x=1#top", "https://muster.example:8101/lab?x=1#top"),
        # Of an app that believes X-Forwarded-Host and not X-Forwarded-Proto.
        ("http://muster.example:8101/lab", "https://muster.example:8101/lab"),
        ("//muster.example:8101/lab", "https://muster.example:8101/lab"),
        ("https://muster.example:8101/lab", "https://muster.example:8101/lab"),
        # What is not its own is its own affair.
        ("http://muster.example:8102/lab", "http://muster.example:8102/lab"),
        ("http://login.example/?next=x", "http://login.example/?next=x"),
    ],
)
def test_a_redirect_to_the_app_itself_stays_with_tls(location, seen):
    assert dict(from_app([(b"location", location.encode())], ORIGIN))[b"location"] == seen.encode()


def test_a_cookie_that_is_for_tls_already_stays_as_it_is():
    cookie = b"a=1; SameSite=None; secure"
    assert (b"set-cookie", cookie) in from_app([(b"set-cookie", cookie)], ORIGIN)
