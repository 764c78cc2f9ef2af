"""One client takes what all need: the server's requests, its connections, its numbers."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import uvicorn
from fastapi.testclient import TestClient

from muster.core.model.token import Scope
from muster.core.spec.errors import validated
from muster.core.values.errors import SpecError
from muster.web.caller import RequestLimit
from muster.web.connections import ImpatientHttp, LeavableWebSocket
from muster.web.problems import TooManyError
from muster.web.server import ServerOptions, serve_pages
from muster.web_settings import WebSettings
from tests.waiting import PATIENCE_S, eventually

SESSIONS = "/api/v1/sessions"


def test_a_user_with_too_many_requests_waits_and_no_other_does():
    now = [0.0]
    limit = RequestLimit(120, lambda: now[0])
    for _ in range(120):
        limit.take("ada")
    with pytest.raises(TooManyError, match="120 requests of yours in a minute") as refused:
        limit.take("ada")
    assert refused.value.retry_after_s == 1
    limit.take("bob")
    now[0] += 1
    limit.take("ada")
    limit.take("ada")
    with pytest.raises(TooManyError):
        limit.take("ada")
    now[0] += 3600
    for _ in range(120):
        limit.take("ada")
    with pytest.raises(TooManyError):
        limit.take("ada")


def test_the_api_and_the_pages_count_alike_whatever_the_token(app, caller, browser):
    ada, pages, bob = caller("ada"), browser("ada"), caller("bob")
    app.state.requests = RequestLimit(2, lambda: 0.0)
    assert [ada.get(SESSIONS).status_code, pages.get("/sessions").status_code] == [200, 200]
    for path, client in ((SESSIONS, ada), (SESSIONS, caller("ada", Scope.READ)), ("/sessions", pages)):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "30")
        assert "2 requests of yours in a minute; send fewer" in answer.text
    assert bob.get(SESSIONS).status_code == 200


def test_signing_in_and_opening_terminals_counts_as_well(app, browser):
    ada, bob = browser("ada"), browser("bob")
    app.state.requests = RequestLimit(2, lambda: 0.0)
    statuses = [ada.post("/sign-in", data={"token": ada.secret}, follow_redirects=False).status_code for _ in range(3)]
    assert statuses == [303, 303, 429]
    for client, code in ((ada, 4429), (bob, 4404)):
        headers = {"Origin": "http://testserver"}
        with client.websocket_connect("/sessions/train/terminal", headers=headers) as terminal:
            assert terminal.receive()["code"] == code


def test_a_site_may_leave_the_limit_out():
    limit = RequestLimit(None)
    for _ in range(10_000):
        limit.take("ada")


@pytest.mark.parametrize(
    ("address", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("127.3.2.1", {}, 200),
        ("::1", {}, 200),
        ("::ffff:127.0.0.1", {}, 200),
        ("10.0.0.7", {}, 401),
        ("fe80::1%eth0", {}, 401),
        ("", {}, 401),
        ("127.0.0.1", {"X-Forwarded-For": "10.0.0.7"}, 401),
        ("127.0.0.1", {"Forwarded": "for=10.0.0.7"}, 401),
    ],
)
def test_metrics_are_read_on_this_machine_and_by_no_stranger(app, address, headers, status):
    assert TestClient(app, client=(address, 50000)).get("/metrics", headers=headers).status_code == status


@pytest.mark.parametrize(("scope", "status"), [(Scope.USER, 403), (Scope.READ, 200), (Scope.ADMIN, 200)])
def test_others_read_metrics_by_a_token_that_does_not_submit(caller, scope, status):
    answer = caller("prometheus", scope).get("/metrics")
    assert answer.status_code == status
    assert ("muster_sessions" in answer.text) == (status == 200)


def test_a_site_names_the_networks_that_read_metrics(app, service):
    service.set_web(metrics_from=("10.1.0.0/16", "2001:db8::7"))
    statuses = [
        TestClient(app, client=(address, 50000)).get("/metrics").status_code
        for address in ("10.1.2.3", "2001:db8::7", "127.0.0.1", "10.2.2.3")
    ]
    assert statuses == [200, 200, 401, 401]


def test_networks_are_checked_when_the_settings_are_read():
    with pytest.raises(SpecError, match=r"'10\.1\.2\.3/16' is no network; write one such as 10\.1\.0\.0/16"):
        validated(WebSettings, {"metrics_from": ["10.1.2.3/16"]})


class HastyForHeads(ImpatientHttp):
    HEAD_TIMEOUT_S = 0.2


class HastyForReaders(ImpatientHttp):
    READ_TIMEOUT_S = 0.2


def test_the_server_serves_by_it(service, monkeypatch):
    served = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: served.append((self.config, sockets)))
    serve_pages(service.service, ServerOptions("127.0.0.1", 0), [], None)
    [(config, sockets)] = served
    assert (config.http, config.ws, sockets) == (ImpatientHttp, LeavableWebSocket, [])


Application = Callable[..., object]


async def greet(scope, receive, send) -> None:
    assert scope["type"] == "http"
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


class Flood:
    """An app that answers without an end, and notes when the client is gone."""

    def __init__(self) -> None:
        self.is_over = threading.Event()

    async def __call__(self, _scope, receive, send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})

        async def flood() -> None:
            while True:
                await send({"type": "http.response.body", "body": b"x" * (64 << 10), "more_body": True})

        flooding = asyncio.create_task(flood())
        assert (await receive())["type"] == "http.disconnect"
        flooding.cancel()
        self.is_over.set()


@pytest.fixture
def connect() -> Iterator[Callable[[Application, type[ImpatientHttp]], socket.socket]]:
    """Serves an application by a protocol to a new connection."""
    ends = []

    def make(application: Application, protocol: type[ImpatientHttp]) -> socket.socket:
        config = uvicorn.Config(application, port=0, http=protocol, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        eventually(lambda: server.started or not thread.is_alive())
        client = socket.create_connection(server.servers[0].sockets[0].getsockname(), timeout=PATIENCE_S)
        ends.append((server, thread, client))
        return client

    yield make
    for server, thread, client in ends:
        client.close()
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_request_that_never_becomes_whole_is_waited_for_no_longer_than_a_time(connect, sent):
    client = connect(greet, HastyForHeads)
    client.sendall(sent)
    assert client.recv(1000) == b""


def test_a_head_in_drops_has_no_more_time_than_one_that_stops(connect):
    client = connect(greet, HastyForHeads)
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
    client.settimeout(0.05)
    is_open = True
    while is_open:
        try:
            client.sendall(b"X: y\r\n")
            is_open = client.recv(1000) != b""
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            break


def test_a_second_request_has_a_time_of_its_own(connect):
    # The first two are whole in time however busy this machine is.
    class HastyInTheEnd(ImpatientHttp):
        HEAD_TIMEOUT_S = 600.0

    client = connect(greet, HastyInTheEnd)
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    for _ in range(2):
        client.sendall(request)
        answer = b""
        while not answer.endswith(b"hello"):
            answer += (received := client.recv(1000))
            assert received, answer
    HastyInTheEnd.HEAD_TIMEOUT_S = 0.2
    client.sendall(request[:9])
    assert client.recv(1000) == b""


def test_a_reader_that_reads_nothing_is_cut_off(connect):
    flood = Flood()
    client = connect(flood, HastyForReaders)
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert flood.is_over.wait(PATIENCE_S)
