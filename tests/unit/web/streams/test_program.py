"""Programs over WebSockets: who is let in, and what the first frames say. Real ones run in tests/e2e."""

import json
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial

import httpx
import pytest
import uvicorn
from websockets.sync import client as sync_client

from muster.core.model.token import Scope
from muster.core.values.errors import NotPossibleInStateError
from muster.remote import client as clients
from muster.remote.backend import RemoteBackend
from muster.remote.client import Client
from muster.service.owned_reach import OwnedReach
from muster.service.reach.programs import KernelPrograms, Program
from muster.web.connections import LeavableWebSocket, is_there
from tests.strategies.sessions import make_session
from tests.unit.running_sessions import running_session
from tests.waiting import PATIENCE_S, eventually

PATH = "/api/v1/sessions/train/kernels/main1/exec"


def problem_of(client, path=PATH, *frames):
    with client.websocket_connect(path) as websocket:
        for frame in frames:
            websocket.send_text(json.dumps(frame))
        said = json.loads(websocket.receive_text())
        assert list(said) == ["problem"]
        return said["problem"]["type"].removeprefix("urn:muster:"), said["problem"]["detail"]


@pytest.fixture
def train(service):
    session = running_session(1, "a1", owner="ada", name="train")
    service.store.add([session])


@pytest.mark.usefixtures("train")
def test_without_a_token_nobody_starts_a_program(caller):
    client = caller("ada")
    del client.headers["Authorization"]
    assert problem_of(client)[0] == "no-token"
    client.headers["Authorization"] = "Bearer muster_guessed"
    assert problem_of(client)[0] == "no-token"


@pytest.mark.usefixtures("train")
def test_nor_does_another_user_or_a_reader(caller):
    assert problem_of(caller("bob"))[0] == "not-found"
    assert problem_of(caller("ada", Scope.READ))[0] == "scope"


def test_nor_anybody_where_nothing_runs(caller, service):
    service.store.add([make_session(2, owner="ada", name="waits")])
    client = caller("ada")
    assert problem_of(client, "/api/v1/sessions/waits/kernels/-/exec")[0] == "not-possible-in-state"
    assert problem_of(client, "/api/v1/sessions/nosuch/kernels/-/exec")[0] == "not-found"


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(
    "frame", [{}, {"command": []}, {"command": "id"}, {"command": ["id"], "user": "root"}, [], "id", {"eof": True}]
)
def test_a_first_frame_that_is_no_command_is_refused(caller, frame):
    kind, detail = problem_of(caller("ada"), PATH, frame)
    assert (kind, detail) == ("bad-input", 'the first frame is {"command": [...], "terminal": true or false}')


@pytest.mark.usefixtures("train")
def test_a_kernel_without_an_agent_is_a_problem_of_the_answer(caller):
    kind, _ = problem_of(caller("ada"), PATH, {"command": ["id"]})
    assert kind == "not-possible-in-state"


class OfThisMachine:
    """A program of this machine in the place of one that an engine runs. A `deaf` one leaves its input where it is."""

    def __init__(self, command: list[str]) -> None:
        self._left = threading.Event()
        self.connection, theirs = socket.socketpair()
        if command[0] == "deaf":
            self._process = subprocess.Popen(command[1:], stdin=subprocess.DEVNULL, stdout=theirs)
            threading.Thread(target=self._end, args=(theirs,)).start()
        else:
            with theirs:
                self._process = subprocess.Popen(command, stdin=theirs, stdout=theirs)
        self.sizes: list[tuple[int, int]] = []

    def _end(self, theirs: socket.socket) -> None:
        self._process.wait()
        with theirs:
            theirs.shutdown(socket.SHUT_WR)
            # Until the server leaves, as a broker does.
            self._left.wait(PATIENCE_S)

    def resize(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))

    def exit_code(self) -> int:
        return self._process.wait()

    def leave(self) -> None:
        self._left.set()


@pytest.fixture
def started(monkeypatch) -> list[OfThisMachine]:
    """Let programs be this machine's, and return those that were started."""
    programs: list[OfThisMachine] = []

    def open_program(reach, reference, _kernel, command, *, terminal):
        execution = OfThisMachine(command)
        programs.append(execution)
        del terminal
        ending = ExitStack()
        ending.callback(execution.leave)
        return Program(reach.find(reference), execution, ending)

    monkeypatch.setattr(OwnedReach, "open_program", open_program)
    return programs


@pytest.fixture
def main1(server, secret_of, started, train) -> Iterator[KernelPrograms]:
    del started, train
    client = Client(server, secret_of("ada"))
    with RemoteBackend(client).reach.programs("train", None) as programs:
        yield programs
    client.close()


@pytest.fixture
def main1_by_socket(app, service, started, train, tmp_path, monkeypatch) -> Iterator[KernelPrograms]:
    """Yield the programs of a client at a Unix socket that waits only for a moment to be connected."""
    del started, train
    secret = service.service.unix_callers.admit(0)

    async def with_user(scope, receive, send):
        await app({**scope, "state": {**scope.get("state", {}), "muster.connection": secret}}, receive, send)

    path = tmp_path / "api.sock"
    running = uvicorn.Server(uvicorn.Config(with_user, uds=str(path), log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        assert thread.is_alive()
        thread.join(0.01)
    monkeypatch.setattr(clients, "_PATIENCE", httpx.Timeout(60.0, connect=0.5))
    client = Client(f"unix:{path}", None)
    with RemoteBackend(client).reach.programs("train", None) as programs:
        yield programs
    client.close()
    running.should_exit = True
    thread.join(30)


def test_a_program_may_be_silent_for_longer_than_connecting_may_take(main1_by_socket):
    with main1_by_socket.start(["sh", "-c", "sleep 1; echo late"]) as execution:
        assert all_of(execution.connection) == b"late\n"
        assert execution.exit_code() == 0


class Pinging(LeavableWebSocket):
    """A server's protocol that says when three pings were not answered in time."""

    unanswered = 0
    enough = threading.Event()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        Pinging.unanswered += 1
        if Pinging.unanswered == 3:
            Pinging.enough.set()


@pytest.mark.usefixtures("started", "train")
def test_a_reader_may_pause_for_longer_than_pings_are_waited_for(app, secret_of, monkeypatch):
    """As `muster exec … | less` does. Pings come behind what was written before."""
    monkeypatch.setattr(Pinging, "unanswered", 0)
    monkeypatch.setattr(Pinging, "enough", threading.Event())
    # A client that pings would do so as often.
    often = partial(sync_client.connect, ping_interval=0.05, ping_timeout=0.05)
    monkeypatch.setattr(sync_client, "connect", often)
    pings = {"ws": Pinging, "ws_ping_interval": 0.05, "ws_ping_timeout": 0.05, "ws_per_message_deflate": False}
    running = uvicorn.Server(uvicorn.Config(app, port=0, **pings, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run)
    thread.start()
    eventually(lambda: running.started)
    port = running.servers[0].sockets[0].getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}", secret_of("ada"))
    with (
        RemoteBackend(client).reach.programs("train", None) as programs,
        programs.start(["seq", "3000000"]) as execution,
    ):
        assert Pinging.enough.wait(PATIENCE_S)
        assert all_of(execution.connection).endswith(b"\n3000000\n")
        assert execution.exit_code() == 0
    client.close()
    running.should_exit = True
    thread.join(30)


def test_the_other_side_is_there_whatever_its_reader_does():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as writer:
        reader, _ = listener.accept()
        with reader:
            assert is_there(writer)
            writer.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    writer.send(b"x" * 65536)
            eventually(lambda: is_there(writer))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert is_there(ours)


class Known:
    """A connection of which the Linux kernel says this."""

    family = socket.AF_INET

    def __init__(self, probes: int, unacknowledged: int, silent_ms: int) -> None:
        self._info = struct.pack("=3xB20xI28xI", probes, unacknowledged, silent_ms)

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        return self._info[:size]


@pytest.mark.parametrize(
    ("connection", "there"),
    [
        (Known(0, 0, 3_600_000), True),
        (Known(2, 0, 120_000), True),
        # It is being sent to.
        (Known(0, 9, 40), True),
        (Known(0, 1, 20_000), False),
        (Known(3, 0, 60_000), False),
    ],
)
def test_the_other_side_is_gone_when_its_system_says_nothing_any_more(connection, there):
    assert is_there(connection) is there


def all_of(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_input_and_output_go_by_the_server(main1):
    assert main1.title == "train:main1"
    content = os.urandom(3_000_000)
    with main1.start(["cat"]) as execution:
        sender = threading.Thread(
            target=lambda: (execution.connection.sendall(content), execution.connection.shutdown(socket.SHUT_WR))
        )
        sender.start()
        assert all_of(execution.connection) == content
        sender.join()
        assert execution.exit_code() == 0


@pytest.mark.parametrize("way", ["main1", "main1_by_socket"])
def test_the_exit_code_comes_though_nobody_read_the_input(request, way):
    with request.getfixturevalue(way).start(["deaf", "sh", "-c", "seq 1000000; exit 5"]) as execution:
        sender = threading.Thread(target=lambda: _send_as_long_as_it_goes(execution.connection))
        sender.start()
        assert all_of(execution.connection).splitlines()[-1] == b"1000000"
        assert execution.exit_code() == 5
    sender.join()


def _send_as_long_as_it_goes(connection: socket.socket) -> None:
    with suppress(OSError):
        for _ in range(64):
            connection.sendall(b"x" * 65536)


def test_a_server_that_stops_says_so_to_who_waits_for_a_program(main1, app):
    with main1.start(["cat"]) as execution:
        execution.connection.sendall(b"begun")
        assert execution.connection.recv(5) == b"begun"
        for connection in tuple(app.state.programs):
            connection.stop()
        assert all_of(execution.connection) == b""
        with pytest.raises(clients.ServerError, match=r"before the program ended: .*the server stops"):
            execution.exit_code()


def test_a_terminals_size_reaches_it(main1, started):
    with main1.start(["cat"], terminal=True) as execution:
        execution.resize(100, 30)
        execution.connection.sendall(b"typed")
        assert execution.connection.recv(5) == b"typed"
        execution.connection.shutdown(socket.SHUT_WR)
        assert all_of(execution.connection) == b""
        assert execution.exit_code() == 0
    assert started[0].sizes == [(100, 30)]


def test_a_refusal_is_the_error_that_it_was(main1, service):
    service.service.commands.terminate(["train"], "root")
    with main1.start(["cat"]) as execution:
        assert all_of(execution.connection) == b""
        with pytest.raises(NotPossibleInStateError):
            execution.exit_code()
