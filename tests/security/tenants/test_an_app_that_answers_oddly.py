"""A tenant's app answers what no app does: its browser gets an error, and the server's log no line of it."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from muster.core.model.apps import App
from muster.web.opened_apps.server import AppAddresses, AppServer
from tests.strategies.sessions import make_session
from tests.unit.web.opened_apps.upstream_app import Loop, way
from tests.waiting import PATIENCE_S

APP = App("lab", 8888, "serve")
MOST_REQUEST_BYTES = 1 << 16


class OddApp:
    """An app at a socket that gives each request the same answer, byte for byte."""

    def __init__(self, path: Path) -> None:
        self.answer = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    request = b""
                    while b"\r\n\r\n" not in request and (piece := connection.recv(MOST_REQUEST_BYTES)):
                        request += piece
                    connection.sendall(self.answer)


class Browser:
    """A browser that was let in to the app, and what the server logged meanwhile."""

    def __init__(self, app: OddApp, origin: str, client: httpx.Client, lines: Callable[[], list[str]]) -> None:
        self.origin = origin
        self.lines = lines
        self._app = app
        self._client = client

    def gets(self, answer: bytes) -> httpx.Response:
        self._app.answer = answer
        return self._client.get("/x")

    def opens(self, answer: bytes) -> int:
        """Return the status with which a WebSocket is refused."""
        self._app.answer = answer
        cookie = "; ".join(f"{one.name}={one.value}" for one in self._client.cookies.jar)
        headers = {"Cookie": cookie, "Origin": self.origin}
        url = f"ws{self.origin.removeprefix('http')}/ws"
        with pytest.raises(InvalidStatus) as refused:
            connect(url, proxy=None, additional_headers=headers, open_timeout=PATIENCE_S)
        return int(refused.value.response.status_code)


@pytest.fixture
def browser(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Browser]:
    caplog.set_level(logging.WARNING)
    with ExitStack() as stack:
        app = OddApp(tmp_path / "app")
        stack.callback(app.close)
        loop = Loop()
        stack.callback(loop.end)
        addresses = AppAddresses("127.0.0.1", range(1))

        async def opened() -> tuple[AppServer, str]:
            server = AppServer(addresses, bound, way(make_session(), APP, tmp_path / "app"), "http://127.0.0.1")
            await server.start()
            return server, server.entrance()

        bound = addresses.bind(0)
        assert bound is not None
        server, entrance = loop.run(opened())
        stack.callback(lambda: loop.run(server.stop()))
        origin = f"http://127.0.0.1:{server.port}"
        client = stack.enter_context(httpx.Client(base_url=origin, timeout=PATIENCE_S))
        client.get(entrance)
        yield Browser(app, origin, client, lambda: [one.getMessage() for one in caplog.records])


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 600 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 20) + b"\r\n\r\n",
        b"\x00" * 100,
        b"",
    ],
)
def test_what_is_no_answer_is_an_error_of_the_apps(browser, answer):
    got = browser.gets(answer)
    assert (got.status_code, "lab does not answer" in got.text) == (502, True)
    assert browser.lines() == []


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc"),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc", ""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\nabc", ""),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "a"),
        (b"HTTP/1.1 200 OK\r\nLocation: http://[\r\nX: a\xffb\r\nContent-Length: 1\r\n\r\na", "a"),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", "abc"),
    ],
)
def test_an_odd_answer_is_passed_on_as_far_as_it_is_one(browser, answer, body):
    assert browser.gets(answer).text == body
    assert browser.lines() == []


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: ws://192.0.2.1/\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: wss://[/\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1:port/\r\n\r\n",
        b"HTTP/1.1 302 Found\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: \xff\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /ws\r\n\r\n",
        b"HTTP/1.1 101 Switch\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"\x00" * 100,
        b"",
    ],
)
def test_a_websocket_of_an_app_that_speaks_no_websocket_is_refused(browser, answer):
    assert browser.opens(answer) == 403
    assert browser.lines() == []
