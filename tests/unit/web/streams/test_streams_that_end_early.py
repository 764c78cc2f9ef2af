"""Streams whose reader has left before the first byte, or wants no content: nothing stays open, no place is taken."""

import http.client
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from anyio.lowlevel import checkpoint

from muster.service.folders.files import OpenedFile, ReadFile
from muster.service.folders.owned import OwnedFolders
from muster.service.owned_reach import OwnedReach
from tests.waiting import PATIENCE_S, eventually

EVENTS, LIVE = "/api/v1/events", "/live"
LOG = "/api/v1/sessions/train/kernels/main1/log"
FILE = "/api/v1/folders/data/content"


class Pieces:
    """Pieces without end, until they are closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def __iter__(self):
        while not self.closed.wait(0.01):
            yield b"more\n"

    def close(self) -> None:
        self.closed.set()


@pytest.fixture(autouse=True)
def opened(monkeypatch) -> list[Pieces]:
    """Let each log and each file go on without end. Return those that were opened."""
    made: list[Pieces] = []

    def pieces() -> Pieces:
        made.append(Pieces())
        return made[-1]

    @contextmanager
    def log(*_request):
        yield pieces()

    @contextmanager
    def open_file(*_request):
        found = pieces()
        yield OpenedFile(ReadFile("weights.bin", is_directory=False, size=1 << 40), iter(found))
        found.close()

    monkeypatch.setattr(OwnedReach, "log", log)
    monkeypatch.setattr(OwnedFolders, "open_file", open_file)
    return made


def holds_nothing(app, opened) -> bool:
    """Tell whether every place is free, and all that was opened is closed."""
    taken = (app.state.subscribers, app.state.log_streams, app.state.file_streams)
    return not any(taken) and all(one.closed.is_set() for one in opened)


@pytest.mark.parametrize("path", [EVENTS, LOG, FILE])
def test_a_reader_that_has_left_before_the_first_byte_leaves_nothing_behind(app, caller, secret_of, opened, path):
    caller("eve").get("/healthz")  # starts the app

    async def leaves():
        return received.pop(0) if received else {"type": "http.disconnect"}

    async def send(_message):
        # As the server's own waits for a client that is slow.
        await checkpoint()

    received = [{"type": "http.request", "body": b"", "more_body": False}]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {secret_of('ada')}".encode())],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8080),
    }
    caller("bob").portal.call(app, scope, leaves, send)
    assert len(opened) == (path != EVENTS)
    assert holds_nothing(app, opened)


@pytest.mark.parametrize("path", [EVENTS, LIVE, LOG, FILE])
def test_head_of_a_stream_ends_it_and_leaves_the_connection_to_the_next_request(
    app, server, browser, secret_of, opened, path
):
    headers = {"Authorization": f"Bearer {secret_of('ada')}", "Cookie": f"muster={browser('ada').cookie}"}
    address = urlsplit(server)
    client = http.client.HTTPConnection(address.hostname, address.port, timeout=PATIENCE_S)
    client.request("HEAD", path, headers=headers)
    answer = client.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    assert answer.headers["Content-Length"] == (str(1 << 40) if path == FILE else None)
    connection = client.sock
    assert connection is not None
    client.request("GET", "/api/v1/version", headers=headers)
    assert client.getresponse().status == 200
    assert client.sock is connection
    eventually(lambda: holds_nothing(app, opened))
    client.close()
