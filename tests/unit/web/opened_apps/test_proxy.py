"""An opened app at its own port: access to it, and what passes between a browser and the app."""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from muster.core.model.apps import App
from muster.core.values.errors import BadInputError
from muster.service.reach.app_gateway import app_address
from muster.web.opened_apps import door as app_door
from muster.web.opened_apps.headers import AppOrigin, app_cookies, from_app
from muster.web.opened_apps.server import AppAddresses, AppServer
from muster.web.server import ServerOptions
from tests.properties import cheap
from tests.servers.certificate import Certificate
from tests.strategies.sessions import make_session
from tests.unit.web.opened_apps.upstream_app import ENDLESS_BYTES, Loop, Upstream, serving, way
from tests.waiting import PATIENCE_S

APP = App("lab", 8888, "serve", url="/lab?token={token}", token=True)


class Opened:
    """An app server, and a browser's client that was let in."""

    def __init__(self, loop: Loop, server: AppServer, upstream: Upstream, certificate: Certificate | None) -> None:
        self.loop = loop
        self.server = server
        self.upstream = upstream
        scheme, self.trust = ("https", certificate.trust()) if certificate else ("http", None)
        self.origin = f"{scheme}://127.0.0.1:{server.port}"
        verify = self.trust or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.stranger = httpx.Client(base_url=self.origin, timeout=30, verify=verify)
        self.browser = httpx.Client(base_url=self.origin, timeout=30, verify=verify)
        self.entered = self.browser.get(self.entrance())

    def entrance(self) -> str:
        async def fetched() -> str:
            return self.server.entrance()

        return self.loop.run(fetched())

    @property
    def cookie(self) -> str:
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.browser.cookies.jar)

    def websocket(self, path: str = "/ws", **headers: str):
        given = {"Cookie": self.cookie, "Origin": self.origin, **headers}
        url = f"ws{self.origin.removeprefix('http')}{path}"
        kept = {name: value for name, value in given.items() if value}
        patience = {"open_timeout": PATIENCE_S, "close_timeout": 1}
        return connect(
            url, ssl=self.trust, proxy=None, additional_headers=kept, subprotocols=["old", "new"], **patience
        )


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.end()


@pytest.fixture
def opened(loop, tmp_path) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield open_app(loop, tmp_path, stack)


def open_app(loop, tmp_path, stack, app: App = APP, certificate: Certificate | None = None) -> Opened:
    upstream = Upstream()
    stack.callback(upstream.go.set)
    stack.enter_context(serving(loop, upstream, tmp_path / "app"))
    files = (certificate.certificate, certificate.key) if certificate else (None, None)
    addresses = AppAddresses("127.0.0.1", range(1), ServerOptions("127.0.0.1", 0, *files).tls_context())
    site = "https://127.0.0.1" if certificate else "http://127.0.0.1"
    bound = addresses.bind(0)

    async def made() -> AppServer:
        server = AppServer(addresses, bound, way(make_session(), app, tmp_path / "app"), site)
        await server.start()
        return server

    server = loop.run(made())
    stack.callback(lambda: loop.run(server.stop()))
    opened = Opened(loop, server, upstream, certificate)
    stack.callback(opened.browser.close)
    stack.callback(opened.stranger.close)
    return opened


def test_no_app_waits_while_the_authorities_are_read_for_another(loop, tmp_path, monkeypatch):
    def read(**_given):
        raise AssertionError("the tunnel to an app has no TLS")

    monkeypatch.setattr(ssl, "create_default_context", read)
    with ExitStack() as stack:
        assert open_app(loop, tmp_path, stack).entered.status_code == 303


def test_a_ticket_lets_one_browser_in_once_and_leaves_the_address_line(opened):
    assert opened.entered.status_code == 303
    assert opened.entered.headers["location"] == f"{opened.origin}/lab?token=t0ken"
    cookie = opened.entered.headers["set-cookie"]
    assert cookie.startswith(f"muster-app-{opened.server.port}-")
    assert "; HttpOnly; SameSite=Lax" in cookie
    assert opened.entered.headers["clear-site-data"] == '"cache", "storage"'
    ticket = opened.entrance()
    assert opened.stranger.get(ticket).status_code == 303
    opened.stranger.cookies.clear()
    assert opened.stranger.get(ticket).status_code == 401
    assert opened.upstream.requests == []


def test_a_ticket_used_again_by_its_browser_leads_to_the_app_and_clears_nothing(opened):
    again = opened.browser.get(opened.entered.request.url)
    assert (again.status_code, again.headers["location"]) == (303, f"{opened.origin}/lab?token=t0ken")
    assert "set-cookie" not in again.headers
    later = opened.browser.get(opened.entrance())
    assert "clear-site-data" not in later.headers


def test_a_ticket_is_good_for_a_while_only(opened, monkeypatch):
    monkeypatch.setattr(app_door, "TICKET_S", -1.0)
    assert opened.stranger.get(opened.entrance()).status_code == 401


@pytest.mark.parametrize("cookie", [None, "muster-app-1-aa=x", "{name}=guess", "{name}="])
def test_no_other_user_reaches_the_app(opened, cookie):
    name = opened.cookie.partition("=")[0]
    headers = {"Cookie": cookie.format(name=name)} if cookie else {}
    for method, path in (("GET", "/"), ("POST", "/upload"), ("GET", "/?muster-ticket=guess"), ("GET", "/lab")):
        refused = opened.stranger.request(method, path, headers=headers)
        assert refused.status_code == 401
        assert "Open it from its session" in refused.text
    with pytest.raises(InvalidStatus) as refusal:
        opened.websocket(Cookie=headers.get("Cookie", ""))
    assert refusal.value.response.status_code == 401
    assert opened.upstream.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
        {"Service-Worker": "script"},
    ],
)
def test_other_pages_get_nothing_by_a_browser_that_is_in_and_no_worker_stays_behind(opened, headers):
    for method in ("GET", "POST"):
        assert opened.browser.request(method, "/x", headers=headers).status_code == 403
    if "Origin" in headers:
        with pytest.raises(InvalidStatus) as refusal:
            opened.websocket(Origin=headers["Origin"])
        assert refusal.value.response.status_code == 403
    assert opened.upstream.requests == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_requests_of_the_apps_own_pages_and_navigations_are_answered(opened, headers):
    assert opened.browser.get("/x", headers=headers).status_code == 200


def test_a_websocket_names_its_page(opened):
    with pytest.raises(InvalidStatus):
        opened.websocket(Origin="")


def test_the_app_gets_requests_as_on_its_own_host_and_none_of_our_cookies(opened):
    headers = {
        "Origin": opened.origin,
        "Referer": f"{opened.origin}/lab?token=t",
        "Cookie": f"muster=s3cret; theme=dark;{opened.cookie}; __Host-muster=s3cret; muster-app-1-cc=x; _xsrf=2|a",
        "X-Forwarded-For": "192.0.2.1",
        "Forwarded": "for=192.0.2.1",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
    }
    echoed = opened.browser.get("/a%2Fb//c?q=%20[1]&r", headers=headers).json()
    received = dict(echoed["headers"])
    assert echoed["target"] == "/a%2Fb//c?q=%20[1]&r"
    local = f"127.0.0.1:{opened.server.port}"
    assert received["cookie"] == "theme=dark; _xsrf=2|a"
    assert (received["host"], received["origin"], received["referer"]) == (
        local,
        f"http://{local}",
        f"http://{local}/lab?token=t",
    )
    assert (received["x-forwarded-for"], received["x-forwarded-proto"], received["x-forwarded-host"]) == (
        "127.0.0.1",
        "http",
        local,
    )
    assert not {"forwarded", "x-hop", "authorization"} & received.keys()
    foreign = opened.browser.get("/x", headers={"Referer": "https://muster.example/sessions/1"}).json()
    assert "referer" not in dict(foreign["headers"])


def test_the_app_sets_cookies_of_its_own_for_its_own_host_only(opened):
    answer = opened.browser.get("/set", follow_redirects=False)
    assert answer.headers.get_list("set-cookie") == ["login=secret; Path=/; HttpOnly", "wide=1; Path=/"]
    assert answer.headers["location"] == f"{opened.origin}/lab?x=1#top"
    assert not {"clear-site-data", "strict-transport-security"} & set(answer.headers)
    assert answer.headers.get_list("content-security-policy") == ["default-src *", "frame-ancestors 'self'"]
    assert answer.headers["referrer-policy"] == "same-origin"


def test_an_answer_streams(opened):
    with opened.browser.stream("GET", "/slow") as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"half"
        opened.upstream.go.set()
        assert b"".join(pieces) == b"rest"


def test_a_request_streams(opened):
    def pieces() -> Iterator[bytes]:
        yield b"x" * 1000
        assert opened.upstream.begun.wait(PATIENCE_S)
        yield b"y" * 234

    assert opened.browser.post("/upload", content=pieces()).text == "1234"
    assert opened.browser.post("/upload", content=b"z" * (5 << 20)).text == str(5 << 20)
    assert opened.browser.post("/upload").text == "0"


def test_an_answer_is_read_as_fast_as_the_browser_reads_and_no_longer_than_it_does(opened):
    with opened.browser.stream("GET", "/endless") as answer:
        pieces = answer.iter_raw()  # kept: an iterator that is collected closes its connection
        next(pieces)
        assert settled(lambda: opened.upstream.sent) < ENDLESS_BYTES
        assert not opened.upstream.gone.is_set()
    assert opened.upstream.gone.wait(PATIENCE_S)


def test_an_app_that_does_not_answer_is_reported(opened, tmp_path):
    (tmp_path / "app").unlink()
    answer = opened.browser.get("/x")
    assert answer.status_code == 502
    assert "lab does not answer" in answer.text
    with pytest.raises(InvalidStatus):
        opened.websocket()


def test_websockets_carry_both_ways_with_the_apps_subprotocol(opened):
    with opened.websocket("/ws?session_id=1") as websocket:
        assert websocket.subprotocol == "new"
        for message in ("text", b"\x00bytes", "", "x" * 300_000):
            websocket.send(message)
            assert websocket.recv(30) == message
        websocket.send("headers")
        received = json.loads(websocket.recv(30))
        assert received["origin"] == f"http://127.0.0.1:{opened.server.port}"
        assert "cookie" not in received
        assert websocket.response.headers.get_all("set-cookie") == ["login=secret; Path=/; HttpOnly", "wide=1; Path=/"]


def test_a_websocket_closed_at_one_end_is_closed_at_the_other(opened):
    with opened.websocket() as websocket:
        websocket.send("close")
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(30)
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4321, "bye")
    with opened.websocket() as websocket:
        websocket.close(4007, "done")
    assert opened.upstream.gone.wait(PATIENCE_S)
    assert opened.upstream.close_code == 4007


def test_a_websocket_that_the_app_refuses_is_refused(opened):
    with pytest.raises(InvalidStatus):
        opened.websocket("/refused")


def test_a_websocket_holds_an_app_back_whose_browser_is_slow(opened):
    with opened.websocket() as websocket:
        websocket.send("flood")
        websocket.recv(30)
        assert settled(lambda: opened.upstream.sent) < ENDLESS_BYTES


def test_when_it_ends_nobody_is_let_in_and_what_goes_on_is_cut_off(opened):
    with opened.websocket() as websocket:
        opened.loop.run(opened.server.stop())
        with pytest.raises(ConnectionClosed):
            websocket.recv(30)
    with pytest.raises(httpx.ConnectError):
        opened.stranger.get("/x")


def test_the_proxy_sends_the_password_of_an_app(loop, tmp_path):
    app = App("ttyd", 7681, "serve", url="http://muster:{token}@127.0.0.1:{port}/", token=True)
    with ExitStack() as stack:
        opened = open_app(loop, tmp_path, stack, app)
        assert opened.entered.headers["location"] == f"{opened.origin}/"
        received = dict(opened.browser.get("/x").json()["headers"])
        assert httpx.BasicAuth("muster", "t0ken")._auth_header == received["authorization"]
        own = dict(opened.browser.get("/x", headers={"Authorization": "Bearer own"}).json()["headers"])
        assert own["authorization"] == "Bearer own"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("/lab?token={token}&port={port}", "/lab?token=T&port=8100"),
        ("https://evil.example//x/y?a#b", "/x/y?a#b"),
        ("//evil.example/x", "/evil.example/x"),
        ("/\\evil.example", "/%5Cevil.example"),
        ("/a b\u00e9", "/a%20b%C3%A9"),
        ("http://127.0.0.1:{port}", "/"),
    ],
)
def test_an_address_is_a_path_of_the_apps_own_port(url, target):
    assert app_address(App("x", 1, url=url), 8100, "T").target == target


def test_an_invalid_address_is_reported():
    with pytest.raises(BadInputError, match=r"^url of app x: .*; write a path such as /lab$"):
        app_address(App("x", 1, url="http://[x/"), 8100, "")


@cheap
@given(st.lists(st.tuples(st.sampled_from(["muster", "MUSTER-app-1-2", "__host-muster", "mine", "a"]), st.text("ab="))))
def test_no_cookie_of_ours_comes_through_however_many_there_are(pairs):
    header = ";".join(f" {name}={value}" for name, value in pairs).encode()
    kept = [pair.partition(b"=")[0] for pair in app_cookies([header]).split(b"; ") if pair]
    assert kept == [name.encode() for name, _ in pairs if name in {"mine", "a"}]


@pytest.mark.parametrize(
    ("location", "seen"),
    [
        (b"/lab", b"/lab"),
        (b"https://example.org/x", b"https://example.org/x"),
        (b"http://localhost:8888/x", b"https://muster.example:8100/x"),
        (b"https://127.0.0.1:8100", b"https://muster.example:8100/"),
        (b"http://127.0.0.1:8100//evil.example/x", b"https://muster.example:8100//evil.example/x"),
        (b"http://127.0.0.1:22/x", b"http://127.0.0.1:22/x"),
        (b"http://127.0.0.1:bad/x", b"http://127.0.0.1:bad/x"),
        (b"\xff", b"\xff"),
    ],
)
def test_a_redirect_to_the_app_as_it_knows_itself_leads_to_its_port(location, seen):
    origin = AppOrigin("https://muster.example:8100", "127.0.0.1:8100", 8888)
    assert dict(from_app([(b"Location", location)], origin))[b"location"] == seen


def test_a_port_that_is_taken_is_left_alone():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert AppAddresses("127.0.0.1", range(1)).bind(taken.getsockname()[1]) is None


def settled(count) -> int:
    """Return a count once it no longer grows."""
    deadline, before = time.monotonic() + 60, -1
    while (now := count()) != before or now == 0:
        assert time.monotonic() < deadline
        before = now
        time.sleep(0.5)
    return now
