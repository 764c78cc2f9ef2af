"""A web server that was broken into speaks to its broker: it gets what its callers get, and hangs nobody up."""

import json
import os
import pickle
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.core.model.token import Scope
from muster.core.values.errors import BadInputError, NotFoundError, NotPossibleInStateError
from muster.service.identity.tokens import NoTokenError, ScopeError
from muster.service.reach.logs import LogRequest
from muster.service.sessions.queries import SessionQuery
from muster.web.separation import broker as brokers
from muster.web.separation.client import brokered_service
from muster.web.separation.line import NoBrokerError
from muster.web.separation.operations import OPERATIONS, Credential, request_bytes
from muster.web.separation.wire import MOST_REQUEST_BYTES, receive, send
from tests.modules.agent_code import ROOT
from tests.security.clients.taken_over_server import Server, brokered_server, token
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.unit.running_sessions import running_session
from tests.unit.web.conftest import ServedNode


@pytest.fixture
def server(service: ServedNode) -> Iterator[Server]:
    with brokered_server(service.service) as taken_over:
        yield taken_over


class Planted:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._path,)


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "backend._store", "arguments": {}, "credential": None},
        {"operation": "backend.__init__", "arguments": {}, "credential": None},
        {"operation": "backend.commit", "arguments": {}, "credential": None},
        {"operation": "server.live", "arguments": {}, "credential": None},
        {"operation": "tokens.of_secret", "arguments": {}, "credential": None},
        {"operation": "open.exec", "arguments": {}, "credential": None},
        {"operation": "server.heartbeat", "arguments": {}, "host": "a1"},
        {"operation": "server.heartbeat", "arguments": {}, "credential": {"kind": "uid", "secret": "0"}},
        {"operation": "server.heartbeat"},
        ["server.heartbeat"],
        "server.heartbeat",
    ],
)
def test_any_other_word_ends_the_connection(server, request_):
    with server.connection() as connection:
        send(connection, json.dumps(request_).encode())
        assert receive(connection) is None
    assert server.answers()


@pytest.mark.parametrize("message", [b"", b"\x00\xff", b"[" * 100_000, b'{"operation": NaN', b"9" * 10_000])
def test_so_does_what_is_no_request(server, message):
    with server.connection() as connection:
        send(connection, message)
        assert receive(connection) is None
    assert server.answers()


def test_nothing_that_the_server_sends_is_unpickled(server, tmp_path):
    with server.connection() as connection:
        send(connection, pickle.dumps(Planted(tmp_path / "planted")))
        assert receive(connection) is None
    assert not (tmp_path / "planted").exists()


def test_a_message_without_end_is_not_read(server):
    with server.connection() as connection:
        connection.sendall((MOST_REQUEST_BYTES + 1).to_bytes(4))
        assert receive(connection) is None


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("backend.find", {}),
        ("backend.find", {"reference": ["train"]}),
        ("backend.find", {"reference": "train", "host": "a1"}),
        ("backend.find", {"self": "train", "reference": "train"}),
        ("backend.submit", {"spec": "train", "owner": None, "count": 1}),
        ("backend.report", {"since": "never"}),
        ("open.log", {"reference": "train", "kernel": None, "request": {"follow": "/etc/shadow"}}),
    ],
)
def test_arguments_are_what_the_function_says(server, secret_of, operation, arguments):
    message = {"operation": operation, "arguments": arguments}
    shown = {"kind": "token", "secret": secret_of("ada")}
    with server.connection() as connection:
        send(connection, json.dumps({**message, "credential": shown}).encode())
        answer = receive(connection)
        assert answer is not None
        done, (kind, *_) = pickle.loads(answer)
    assert (done, kind) == (False, BadInputError)


def test_without_a_callers_secret_there_is_nothing(server, service):
    service.store.add([make_session(1, owner="ada", name="train")])
    of_callers = [name for name in OPERATIONS if not name.startswith("server.")]
    assert {name for name in OPERATIONS if name not in of_callers} == {
        "server.begin_oidc", "server.check_database", "server.finish_oidc", "server.heartbeat", "server.measure",
        "server.note", "server.server_settings", "server.sign_out",
    }  # fmt: skip
    assert {"open.terminal", "open.changes", "caller.changes_after", "caller.session_usage"} <= set(of_callers)
    for operation in of_callers:
        for credential in (None, token("muster_guessed"), Credential(kind="sign-in", secret="guessed")):
            with server.connection() as connection:
                send(connection, request_bytes(operation, {}, credential))
                answer = receive(connection)
                assert answer is not None
                assert pickle.loads(answer)[1][0] is NoTokenError, operation


def test_a_revoked_token_gives_nothing_from_then_on(server, service, secret_of):
    shown = token(secret_of("ada"))
    assert server.line.request("backend.search", shown, [SessionQuery()]) == []
    service.service.tokens.revoke("ada-user")
    with pytest.raises(NoTokenError):
        server.line.request("backend.search", shown, [SessionQuery()])


def test_a_callers_token_gives_nothing_of_others(server, service, secret_of):
    service.store.agents.save([make_agent("a1")])
    service.store.add([running_session(1, "a1", owner="bob", name="train")])
    shown = token(secret_of("ada"))
    for operation, arguments in (
        ("backend.find", ["train"]),
        ("caller.session_usage", ["train"]),
        ("open.terminal", ["train", None]),
        ("open.log", ["train", None, LogRequest()]),
        ("open.app", ["train", "jupyter"]),
        ("backend.terminate", [["train"]]),
    ):
        with pytest.raises(NotFoundError):
            server.line.open(operation, shown, arguments)
    with pytest.raises(NotFoundError):
        server.line.open("open.program", shown, ["train", None, ["id"]], terminal=False)
    for operation, arguments in (("reach.ssh_access", ["train"]), ("reach.app_access", ["train", "web"])):
        with pytest.raises(NotFoundError):
            server.line.request(operation, shown, arguments)
    with pytest.raises(ScopeError):
        server.line.request("backend.drain", shown, ["a1", ""])


def test_metrics_without_a_token_are_what_the_site_says(server, service, secret_of):
    assert server.line.request("server.measure", None).hosts == ()
    assert server.line.request("caller.measure", token(secret_of("prometheus", Scope.READ))).hosts == ()
    with pytest.raises(ScopeError):
        server.line.request("caller.measure", token(secret_of("ada")))
    service.set_web(metrics_from=())
    with pytest.raises(NoTokenError):
        server.line.request("server.measure", None)
    assert server.line.request("caller.measure", token(secret_of("root", Scope.ADMIN))).hosts == ()


def test_a_token_to_read_opens_no_terminal_and_no_program(server, service, secret_of):
    service.store.add([running_session(1, "a1", owner="ada", name="train")])
    reader = token(secret_of("ada", Scope.READ))
    with pytest.raises(ScopeError):
        server.line.open("open.terminal", reader, ["train", None])
    with pytest.raises(ScopeError):
        server.line.open("open.program", reader, ["train", None, ["id"]], terminal=False)
    for operation, arguments in (("reach.ssh_access", ["train"]), ("reach.app_access", ["train", None])):
        with pytest.raises(ScopeError):
            server.line.request(operation, reader, arguments)


@pytest.mark.parametrize("operation", ["open.terminal", "open.log", "open.program"])
def test_nothing_is_opened_in_a_kernel_of_no_agent(server, service, secret_of, operation):
    service.store.add(
        [make_session(1, owner="ada", name="waits"), running_session(2, "gone", owner="ada", name="lost")]
    )
    shown = token(secret_of("ada"))
    more_of: dict[str, list[Any]] = {"open.log": [LogRequest()], "open.program": [["id"]]}
    more = more_of.get(operation, [])
    named = {"terminal": False} if operation == "open.program" else {}
    for reference, kernel, error in (
        ("waits", None, NotPossibleInStateError),
        ("lost", None, NotPossibleInStateError),
        ("lost", "sub9", NotFoundError),
    ):
        with pytest.raises(error):
            server.line.open(operation, shown, [reference, kernel, *more], **named)


def test_one_that_hangs_holds_up_nobody(server):
    with server.connection() as half, server.connection() as silent:
        half.sendall(b"\x00\x00")
        assert silent.fileno() >= 0
        assert server.answers()


def test_one_that_reads_no_answer_holds_up_nobody(server):
    """Its requests stay unread once the answers fill its socket."""
    message = json.dumps({"operation": "server.measure", "arguments": {}}).encode()
    with server.connection() as deaf:
        deaf.settimeout(0)
        with pytest.raises(BlockingIOError):
            _send_for_ever(deaf, len(message).to_bytes(4) + message)
        assert server.answers()


def _send_for_ever(connection: socket.socket, message: bytes) -> None:
    while True:
        connection.sendall(message)


def test_there_are_so_many_connections_and_no_more(server, monkeypatch):
    monkeypatch.setattr(brokers, "MOST_CONNECTIONS", 1)
    assert server.answers()
    with server.connection() as refused:
        assert receive(refused) is None
    assert server.answers()


def test_a_line_in_the_audit_log_is_the_servers_own_word(server, service):
    record: dict[str, Any] = {
        "user": "root", "token": None, "from": None, "method": "POST", "path": "/", "sessions": [], "owner": None,
        "status": 200,
    }  # fmt: skip
    server.line.request("server.note", None, [record])
    for forged in ({**record, "source": "command line"}, {**record, "at": "2020-01-01T00:00:00Z"}):
        with pytest.raises(BadInputError):
            server.line.request("server.note", None, [forged])
    (line,) = (service.settings.state_dir / "audit.log").read_text().splitlines()
    assert json.loads(line)["source"] == "server"


def test_the_server_learns_no_setting_but_its_own(server):
    settings = brokered_service(server.line).settings
    assert {name for name in dir(settings) if not name.startswith("_")} == {"log_format", "web"}


def test_without_a_broker_there_is_an_error(server):
    with server.control:
        pass
    with pytest.raises(NoBrokerError):
        server.line.request("server.heartbeat", None)


def test_all_that_the_server_uses_can_be_requested():
    """Its own tests have the service layer in their process, and would not miss an operation."""
    faces = {name.partition(".")[0] for name in OPERATIONS} - {"backend", "caller", "open", "server"}
    operation = rf"\bbackend\.((?:(?:{'|'.join(sorted(faces))})\.)?[a-z_]+)\b"
    used = set()
    for path in sorted((ROOT / "muster/web").rglob("*.py")):
        if "separation" not in path.parts:
            used |= set(re.findall(operation, path.read_text("utf-8")))
    requested = {name.removeprefix("backend.") for name in OPERATIONS}
    elsewhere = {
        "find", "folders.open_file", "folders.remove", "folders.upload", "reach.log", "reach.open_app_tunnel",
        "reach.open_program", "reach.open_terminal", "session_with_shares", "still_runs", "token", "token_is_valid",
        "usage_samples", "user",
        *faces,
    }  # fmt: skip
    assert used - requested <= elsewhere
    assert "submit" in used
