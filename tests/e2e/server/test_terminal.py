"""A terminal and logs by the pages' way, in a real session of two kernels."""

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.control_node import ControlNode
from tests.servers.web_server import Server, web_server

SMALL = {"cpu": 0.05, "mem": "64M", "shm": "16M"}
PATIENCE_S = 60
# The control sequences by which a shell formats its lines.
ESCAPES = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07)")


class SignedIn(httpx.Client):
    """A browser's client; `token` is what its user signed in with."""

    token = ""


@pytest.fixture(scope="module")
def server(node: ControlNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(node, tmp_path_factory.mktemp("web")) as made:
        yield made


@pytest.fixture(scope="module")
def ada(server: Server) -> SignedIn:
    return signed_in(server, "ada")


@pytest.fixture(scope="module")
def train(server: Server, ada: SignedIn) -> str:
    """Return the id of ada's session of two kernels, which says that it is ready and goes on."""
    spec = {**SMALL, "name": "with-terminal", "cluster_size": 2, "command": "echo it runs; sleep 10000"}
    with server.client(ada.token) as client:
        session_id = client.post("/sessions", json=spec).json()["items"][0]["id"]
    server.node.reaches("with-terminal", "RUNNING")
    return session_id


def signed_in(server: Server, user: str) -> SignedIn:
    client = SignedIn(base_url=server.url, timeout=120)
    client.token = server.token(user)
    client.post("/sign-in", data={"token": client.token})
    return client


def opened(client: SignedIn, session: str, kernel: str = "main1", origin: str | None = None) -> ClientConnection:
    base = str(client.base_url).rstrip("/")
    return connect(
        f"{base.replace('http', 'ws', 1)}/sessions/{session}/terminal?kernel={kernel}",
        origin=origin or base,
        additional_headers={"Cookie": f"muster={client.cookies['muster']}"},
        open_timeout=PATIENCE_S,
    )


def typed(socket: ClientConnection, text: str, answer: str) -> None:
    """Type the text, and read until a line is the answer and the shell waits for the next."""
    socket.send(text.encode() + b"\n")
    shown = b""
    # Text that is typed earlier may be read by the program that still runs.
    wanted = re.compile(rf"[\r\n]{answer}\r\n.*\$ \Z".encode(), re.DOTALL)
    while not wanted.search(ESCAPES.sub(b"", shown)):
        try:
            data = socket.recv(PATIENCE_S)
        except TimeoutError:
            pytest.fail(f"{answer!r} is not in {shown!r}")
        shown += data if isinstance(data, bytes) else b""


def closing(socket: ClientConnection) -> int:
    try:
        while True:
            socket.recv(PATIENCE_S)
    except ConnectionClosed as closed:
        return closed.rcvd.code


def programs_of(session_id: str) -> list[str]:
    """Return what runs on this machine with the session's ssh configuration."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"/ssh/{session_id}/config" in line:
                found.append(line)
    return found


def nothing_left(session_id: str) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while programs_of(session_id) and time.monotonic() < deadline:
        time.sleep(0.1)
    return programs_of(session_id) == []


def test_from_main1_one_gets_into_sub1_in_a_terminal_of_the_right_size(ada, train):
    with opened(ada, train) as socket:
        socket.send(json.dumps({"columns": 132, "rows": 43}))
        typed(socket, "stty size", "43 132")
        typed(socket, "ssh sub1 hostname", "sub1")
        socket.send(json.dumps({"columns": 90, "rows": 30}))
        typed(socket, "stty size", "30 90")
        assert programs_of(train)
    assert nothing_left(train)


def test_a_sub_kernel_has_one_too_and_it_ends_with_its_shell(ada, train):
    with opened(ada, "with-terminal", "sub1") as socket:
        typed(socket, "hostname", "sub1")
        # A tilde after a newline commands ssh itself where nobody forbids it, and a dot after that ends it.
        socket.send(b"\n~.\n")
        typed(socket, "hostname", "sub1")
        socket.send(b"exit\n")
        assert closing(socket) == 1000
    assert nothing_left(train)


def test_endless_output_waits_for_its_reader_and_can_be_stopped(ada, train):
    with opened(ada, train) as socket:
        socket.send(b"yes 0123456789\n")
        shown = 0
        while shown < 1 << 20:
            shown += len(socket.recv(PATIENCE_S))
            socket.send(json.dumps({"taken": shown}))
        socket.send(b"\x03")
        with contextlib.suppress(TimeoutError):
            while shown < 100 << 20:
                shown += len(socket.recv(2))
                socket.send(json.dumps({"taken": shown}))
        typed(socket, "echo $((6 * 7))", "42")
    assert nothing_left(train)


def test_another_user_another_site_and_a_reader_open_none(server, ada, train):
    with contextlib.closing(signed_in(server, "eve")) as eve, opened(eve, train) as socket:
        assert closing(socket) == 4404
        assert eve.get(f"/sessions/{train}/kernels/main1/log").status_code == 404
    with pytest.raises(InvalidStatus) as refused, opened(ada, train, origin="https://evil.example"):
        pass
    assert refused.value.response.status_code == 403
    assert programs_of(train) == []


def test_a_log_is_followed_and_downloaded(ada, train):
    log = f"/sessions/{train}/kernels/main1/log"
    with ada.stream("GET", log, params={"follow": True}) as stream:
        assert next(stream.iter_lines()) == "it runs"
    file = ada.get(log, params={"download": True})
    assert file.text == "it runs\n"
    assert file.headers["content-disposition"] == 'attachment; filename="with-terminal-main1.log"'
    assert "with-terminal" in ada.get(f"{log}-dialog", headers={"HX-Request": "true"}).text


def test_a_terminal_ends_with_the_server(node, ada, train, tmp_path):
    with contextlib.ExitStack() as stack:
        with web_server(node, tmp_path) as other:
            # The cookie is the control node's, for all of its servers.
            client = httpx.Client(base_url=other.url, cookies={"muster": ada.cookies["muster"]})
            socket = stack.enter_context(opened(client, train))
            typed(socket, "hostname", "main1")
        assert closing(socket) == 1012
    assert nothing_left(train)


def test_a_terminal_ends_with_its_session(server, ada, train):
    with opened(ada, train) as socket:
        typed(socket, "hostname", "main1")
        server.node.run("terminate", "with-terminal")
        # Its connection breaks, or the server looks before that.
        assert closing(socket) in {1000, 4409}
    assert nothing_left(train)
