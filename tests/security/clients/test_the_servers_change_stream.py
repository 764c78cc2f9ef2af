"""A web server that was broken into reads changes from its broker: those of its callers, while their secrets hold."""

import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from muster.core.lifecycle.transitions import transition
from muster.core.model.session import SessionState
from muster.core.model.token import Scope, Token
from muster.core.model.wait import Wait, WaitCode
from muster.core.values.errors import StoreUnavailableError
from muster.service.identity.tokens import NoTokenError
from muster.service.sessions.live import LiveChange, LiveChanges
from muster.web.problems import TooManyError
from muster.web.separation import change_stream
from muster.web.separation.client import brokered_service
from muster.web.separation.operations import Credential, request_bytes
from muster.web.separation.wire import receive, send
from tests.security.clients.taken_over_server import Server, brokered_server, token
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW
from tests.unit.web.api.test_api import SMALL
from tests.unit.web.conftest import ServedNode
from tests.unix_users import ADA, uid_of
from tests.waiting import PATIENCE_S

SecretOf = Callable[..., str]


@pytest.fixture
def server(service: ServedNode) -> Iterator[Server]:
    with brokered_server(service.service) as taken_over:
        yield taken_over


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


Read = Callable[[Callable[[Sequence[LiveChange]], None], Token], int]


@pytest.fixture
def live(server: Server) -> LiveChanges:
    """Return the changes as the server itself reads them."""
    return brokered_service(server.line).live_changes()


@pytest.fixture
def read(live: LiveChanges) -> Iterator[Read]:
    """Has a handler read changes, at most until the test ends.

    A stream that the broker ends while somebody reads ends the server: here, the tests.
    """
    with ExitStack() as readers:

        def begin(handler: Callable[[Sequence[LiveChange]], None], token: Token) -> int:
            readers.callback(live.remove, handler)
            return live.add(handler, token)

        yield begin


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


def test_an_administrator_who_is_none_any_more_gets_no_change_by_what_they_showed_before(
    changes, submit, service, secret_of
):
    object.__setattr__(service.settings, "admin_group", ADA)
    adas = Credential(kind="connection", secret=service.service.unix_callers.admit(uid_of(ADA)))
    changes.shown(adas)
    changes.shown(token(secret_of("bob")))
    submit("eve", "eves")
    assert changes.names() == ["eves"]
    object.__setattr__(service.settings, "admin_group", None)
    submit("eve", "not-theirs-to-see")
    submit(ADA, "shown-by-nobody-as-a-user")
    submit("bob", "bobs")
    assert changes.names() == ["bobs"]
    assert isinstance(changes.shown(adas), int)
    submit("eve", "not-theirs-either")
    submit(ADA, "own")
    assert changes.names() == ["own"]


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


def test_each_reader_in_the_server_gets_its_own_by_one_stream(server, live, read, submit, secret_of, monkeypatch):
    brokered = brokered_service(server.line)
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

        read(on_changes, tokens[user])
        return on_changes

    ada_reads, bobs = reader("ada"), reader("bob")
    submit("ada", "adas")
    submit("bob", "bobs")
    assert news.wait(PATIENCE_S)
    assert received == {"ada": ["adas"], "bob": ["bobs"]}
    live.remove(ada_reads)
    news.clear()
    submit("ada", "unheard")
    submit("bob", "again")
    assert news.wait(PATIENCE_S)
    assert received == {"ada": ["adas"], "bob": ["bobs", "again"]}
    assert opened == ["open.changes"]
    live.remove(bobs)
    news.clear()
    submit("bob", "while-nobody-reads")
    bobs = reader("bob")
    submit("bob", "anew")
    assert news.wait(PATIENCE_S)
    live.remove(bobs)
    assert received["bob"] == ["bobs", "again", "anew"]
    assert opened == ["open.changes"] * 2


def test_a_reader_whose_secret_holds_no_more_is_refused(server, read, service, secret_of):
    brokered = brokered_service(server.line)
    ada, bob = (brokered.tokens.of_secret(secret_of(user)) for user in ("ada", "bob"))
    read([].append, bob)
    service.service.tokens.revoke(ada.name)
    with pytest.raises(NoTokenError):
        read([].append, ada)
    assert read([].append, bob) >= 0
