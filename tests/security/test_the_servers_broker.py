"""A web server that was broken into speaks to its broker: it gets what its callers get, and hangs nobody up."""

import json
import os
import pickle
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from muster.core.lifecycle.transitions import transition
from muster.core.model.session import SessionState
from muster.core.model.token import Scope
from muster.core.model.wait import Wait, WaitCode
from muster.core.values.errors import BadInputError, NotFoundError, NotPossibleInStateError, StoreUnavailableError
from muster.service.identity.tokens import NoTokenError, ScopeError
from muster.service.reach.logs import LogRequest
from muster.service.sessions.live import LiveChange
from muster.service.sessions.queries import SessionQuery
from muster.web.problems import TooManyError
from muster.web.separation import broker as brokers
from muster.web.separation import change_stream
from muster.web.separation.broker import Broker
from muster.web.separation.client import brokered_service
from muster.web.separation.line import Line, NoBrokerError
from muster.web.separation.operations import OPERATIONS, Credential, request_bytes
from muster.web.separation.wire import MOST_REQUEST_BYTES, receive, send
from tests.modules.agent_code import ROOT
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW
from tests.unit.running_sessions import running_session
from tests.unit.web.api.test_api import SMALL
from tests.unit.web.conftest import ServedNode

SecretOf = Callable[..., str]


@dataclass
class Server:
    """What somebody has who took over the server: the socket by which it makes its connections."""

    control: socket.socket
    line: Line = field(init=False)

    def __post_init__(self) -> None:
        self.line = Line(self.control)

    @contextmanager
    def connection(self) -> Iterator[socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"+"], [theirs.fileno()])
        with ours:
            # A broker that does not answer fails a test, and does not hang it.
            ours.settimeout(60)
            yield ours

    def answers(self) -> bool:
        """Return whether the broker serves."""
        return self.line.request("server.heartbeat", None) is not None


@pytest.fixture
def server(service: ServedNode) -> Iterator[Server]:
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=Broker(service.service, None).serve, args=(theirs,))
    serving.start()
    with ours:
        yield Server(ours)
    serving.join()
    theirs.close()


def token(secret: str) -> Credential:
    return Credential(kind="token", secret=secret)


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
        {"operation": "tokens.create", "arguments": {}, "credential": None},
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
        "server.check_database", "server.heartbeat", "server.measure", "server.note", "server.server_settings",
        "server.sign_out",
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
    service.store.save_agents([make_agent("a1")])
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
    for operation, arguments in (("backend.ssh_access", ["train"]), ("backend.app_access", ["train", "web"])):
        with pytest.raises(NotFoundError):
            server.line.request(operation, shown, arguments)
    with pytest.raises(ScopeError):
        server.line.request("backend.drain", shown, ["a1", ""])


class Changes:
    """A stream of changes from the broker, opened with a secret that holds."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def say(self, word: str, credential: Credential | None) -> None:
        send(self._connection, request_bytes(word, {}, credential))

    def shown(self, credential: Credential) -> Any:
        """Show a secret, and return the number or the error that comes of it."""
        self.say("show", credential)
        return self.next()

    def next(self) -> Any:
        """Return the next answer or batch; None at the end."""
        answer = receive(self._connection)
        if answer is None:
            return None
        done, value = pickle.loads(answer)
        return value if done else value[0]

    def names(self) -> list[str]:
        return [live.session.name for live in self.next()]


@pytest.fixture
def changes(server: Server, secret_of: SecretOf) -> Iterator[Changes]:
    opener = token(secret_of("opener"))
    connection, _, _ = server.line.open("open.changes", opener)
    with connection:
        connection.settimeout(60)
        yield Changes(connection)


@pytest.fixture
def submit(service: ServedNode) -> Callable[[str, str], str]:
    """Queue a user's session by such a name, and return its id."""

    def queue(owner: str, name: str) -> str:
        return service.service.commands.submit({**SMALL, "name": name}, owner)[0].id

    return queue


def test_changes_come_of_sessions_that_a_shown_secret_may_see(changes, submit, secret_of):
    submit("ada", "before")
    bob, ada = token(secret_of("bob", Scope.READ)), token(secret_of("ada"))
    assert changes.shown(bob) >= 0
    submit("eve", "of-nobody-here")
    submit("ada", "not-yet")
    submit("bob", "bobs")
    assert changes.names() == ["bobs"]
    assert changes.shown(ada) >= 0
    submit("eve", "of-nobody-here-either")
    submit("ada", "adas")
    assert changes.names() == ["adas"]


def test_a_secret_that_does_not_hold_shows_nothing(changes, submit, secret_of):
    ada = token(secret_of("ada"))
    for credential in (token("muster_guessed"), Credential(kind="sign-in", secret=ada.secret)):
        assert changes.shown(credential) is NoTokenError
    submit("ada", "adas")
    assert isinstance(changes.shown(token(secret_of("bob"))), int)
    submit("bob", "bobs")
    assert changes.names() == ["bobs"]


@pytest.mark.parametrize("end", ["revoked", "signed out", "hidden"])
def test_from_the_end_of_a_secret_on_no_change_comes_by_it(changes, submit, service, secret_of, end):
    found = service.service.tokens.of_secret(secret_of("ada"))
    adas = Credential(kind="sign-in", secret=service.service.tokens.sign_in(found)[0])
    changes.shown(adas)
    changes.shown(token(secret_of("bob")))
    submit("ada", "first")
    assert changes.names() == ["first"]
    match end:
        case "revoked":
            service.service.tokens.revoke(found.name)
        case "signed out":
            service.service.tokens.sign_out(adas.secret)
        case _:
            changes.say("hide", adas)
            # It is obeyed once the next is answered.
            assert changes.shown(token("muster_guessed")) is NoTokenError
    submit("ada", "second")
    submit("bob", "bobs")
    assert changes.names() == ["bobs"]


def test_a_second_secret_that_holds_goes_on(changes, submit, service, secret_of):
    changes.shown(token(secret_of("ada")))
    changes.shown(token(secret_of("ada", Scope.READ)))
    service.service.tokens.revoke("ada-user")
    submit("ada", "adas")
    assert changes.names() == ["adas"]


def test_a_change_is_sent_once_however_many_may_see_it(changes, submit, secret_of):
    for credential in (secret_of("ada"), secret_of("ada", Scope.READ), secret_of("root", Scope.ADMIN)):
        changes.shown(token(credential))
    submit("ada", "adas")
    assert changes.names() == ["adas"]
    assert isinstance(changes.shown(token(secret_of("bob"))), int)


def test_a_change_names_no_session_of_others(server, changes, submit, service, secret_of):
    ada = token(secret_of("ada"))
    changes.shown(ada)
    others = submit("eve", "private-work")
    wait = Wait(WaitCode.BEHIND, "session private-work of eve is ahead", waits_for=(others,))
    mine = make_session(2, owner="ada", name="mine")
    service.store.add([mine])
    assert changes.names() == ["mine"]
    service.store.save_waits({mine.id: wait})
    (missed,) = server.line.request("caller.changes_after", ada, [0, 1 << 40])
    service.store.apply([transition(mine, SessionState.PENDING, "it goes on waiting", NOW)])
    (streamed,) = changes.next()
    for live in (missed, streamed):
        assert "another user's session" in str(live.session.wait)
        assert b"private-work" not in pickle.dumps(live)
        assert others.encode() not in pickle.dumps(live)


def test_nothing_is_passed_on_while_secrets_cannot_be_looked_up(changes, submit, service, secret_of, monkeypatch):
    changes.shown(token(secret_of("ada")))
    look_up = service.service.tokens.of_secret
    failures = iter([True, True])

    def unsteady(secret):
        if next(failures, False):
            raise StoreUnavailableError("the database rests")
        return look_up(secret)

    monkeypatch.setattr(service.service.tokens, "of_secret", unsteady)
    submit("ada", "adas")
    assert changes.names() == ["adas"]
    assert next(failures, None) is None


def test_so_many_secrets_are_shown_and_no_more(changes, secret_of, monkeypatch):
    monkeypatch.setattr(change_stream, "MOST_SHOWN", 1)
    assert isinstance(changes.shown(token(secret_of("ada"))), int)
    assert changes.shown(token(secret_of("bob"))) is TooManyError


@pytest.mark.parametrize(("word", "shown"), [("show", None), ("changes", token("muster_guessed"))])
def test_any_other_word_ends_the_stream(server, changes, word, shown):
    changes.say(word, shown)
    assert changes.next() is None
    assert server.answers()


def test_each_reader_in_the_server_gets_its_own_by_one_stream(server, submit, secret_of, monkeypatch):
    brokered = brokered_service(server.line)
    live = brokered.live_changes()
    received: dict[str, list[str]] = {}
    news = threading.Event()
    opened: list[str] = []
    connect = server.line.open

    def counted(operation: str, *more: Any) -> Any:
        opened.append(operation)
        return connect(operation, *more)

    monkeypatch.setattr(server.line, "open", counted)
    tokens = {user: brokered.tokens.of_secret(secret_of(user)) for user in ("ada", "bob")}

    def reader(user: str) -> Callable[[Sequence[LiveChange]], None]:
        def on_changes(changes: Sequence[LiveChange]) -> None:
            received.setdefault(user, []).extend(one.session.name for one in changes)
            if user == "bob":
                news.set()

        live.add(on_changes, tokens[user])
        return on_changes

    ada_reads, bobs = reader("ada"), reader("bob")
    submit("ada", "adas")
    submit("bob", "bobs")
    assert news.wait(60)
    assert received == {"ada": ["adas"], "bob": ["bobs"]}
    live.remove(ada_reads)
    news.clear()
    submit("ada", "unheard")
    submit("bob", "again")
    assert news.wait(60)
    assert received == {"ada": ["adas"], "bob": ["bobs", "again"]}
    assert opened == ["open.changes"]
    live.remove(bobs)
    news.clear()
    submit("bob", "while-nobody-reads")
    bobs = reader("bob")
    submit("bob", "anew")
    assert news.wait(60)
    live.remove(bobs)
    assert received["bob"] == ["bobs", "again", "anew"]
    assert opened == ["open.changes"] * 2


def test_a_reader_whose_secret_holds_no_more_is_refused(server, service, secret_of):
    brokered = brokered_service(server.line)
    live = brokered.live_changes()
    ada, bob = (brokered.tokens.of_secret(secret_of(user)) for user in ("ada", "bob"))
    handlers: list[Callable[[Sequence[LiveChange]], None]] = [[].append, [].append]
    live.add(handlers[0], bob)
    service.service.tokens.revoke(ada.name)
    with pytest.raises(NoTokenError):
        live.add([].append, ada)
    assert live.add(handlers[1], bob) >= 0
    for handler in handlers:
        live.remove(handler)


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
    for operation, arguments in (("backend.ssh_access", ["train"]), ("backend.app_access", ["train", None])):
        with pytest.raises(ScopeError):
            server.line.request(operation, reader, arguments)


@pytest.mark.parametrize("operation", ["open.terminal", "open.log", "open.program"])
def test_nothing_is_opened_in_a_kernel_of_no_agent(server, service, secret_of, operation):
    service.store.add(
        [make_session(1, owner="ada", name="waits"), running_session(2, "gone", owner="ada", name="lost")]
    )
    shown = token(secret_of("ada"))
    more = {"open.log": [LogRequest()], "open.program": [["id"]]}.get(operation, [])
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
    told = brokered_service(server.line).settings
    assert {name for name in dir(told) if not name.startswith("_")} == {"log_format", "web"}


def test_without_a_broker_there_is_an_error(server):
    with server.control:
        pass
    with pytest.raises(NoBrokerError):
        server.line.request("server.heartbeat", None)


def test_all_that_the_server_uses_can_be_requested():
    """Its own tests have the service layer in their process, and would not miss an operation."""
    used = set()
    for path in sorted((ROOT / "muster/web").rglob("*.py")):
        if "separation" not in path.parts:
            used |= set(
                re.findall(r"\bbackend\.((?:folders\.|secrets\.|resources\.)?[a-z_]+)\b", path.read_text("utf-8"))
            )
    requested = {name.removeprefix("backend.") for name in OPERATIONS}
    elsewhere = {
        "find", "folders", "folders.remove", "log", "open_app_tunnel", "open_program", "open_terminal", "resources",
        "secrets", "session_with_shares", "still_runs", "token", "usage_samples", "user",
    }  # fmt: skip
    assert used - requested <= elsewhere
    assert "submit" in used
