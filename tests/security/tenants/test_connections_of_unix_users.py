"""Connections of Unix users: what the web server gets by a broker of this process, and how many one user has."""

import errno
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster import unix_accounts
from muster.core.model.token import Scope
from muster.service.identity import unix_callers
from muster.service.identity.tokens import NoTokenError
from muster.service.identity.unix_callers import TooManyConnectionsError, UnixCallers
from muster.service.sessions.queries import SessionQuery
from muster.web.separation.broker import Broker
from muster.web.separation.line import Line
from muster.web.separation.operations import Credential
from muster.web.separation.unix_door import UnixDoor, listening_socket
from tests.unit.web.conftest import ServedNode
from tests.unix_users import ADA, BOB, uid_of
from tests.waiting import eventually


class Door:
    """A broker and its door, and the server's ends of both."""

    def __init__(self, service: ServedNode, path: Path) -> None:
        self.path = path
        self._control, self.control = socket.socketpair()
        self._hand_over, self.door = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self.line = Line(self.control)
        self._serving = threading.Thread(target=Broker(service.service, None).serve, args=(self._control,))
        self._unix_door = UnixDoor(listening_socket(path), self._hand_over, service.service.unix_callers)

    @contextmanager
    def opened(self) -> Iterator["Door"]:
        self._serving.start()
        with self._control, self._hand_over, self.door, self._unix_door:
            yield self
            self.control.close()
            self._serving.join()

    def client(self) -> socket.socket:
        one = socket.socket(socket.AF_UNIX)
        one.connect(str(self.path))
        one.settimeout(60)
        return one

    def taken(self) -> tuple[socket.socket, Credential]:
        """Return the connection that comes next, and what stands for its user."""
        self.door.settimeout(60)
        word, (descriptor,), _, _ = socket.recv_fds(self.door, 256, 1)
        return socket.socket(fileno=descriptor), Credential(kind="connection", secret=word.decode().partition(" ")[2])

    def sees(self, credential: Credential) -> Any:
        return self.line.request("backend.search", credential, [SessionQuery()])


@pytest.fixture
def door(service: ServedNode, socket_path: Path) -> Iterator[Door]:
    with Door(service, socket_path).opened() as made:
        yield made


def test_what_stands_for_a_user_holds_as_long_as_their_connection(door):
    with door.client() as client:
        taken, credential = door.taken()
        assert door.sees(credential) == []
    eventually(lambda: _is_refused(door, credential))
    # The server still has its end.
    assert taken.recv(1) == b""
    taken.close()
    with door.client() as client:
        taken, credential = door.taken()
        assert door.sees(credential) == []
        taken.shutdown(socket.SHUT_RDWR)
        assert client.recv(1) == b""
        eventually(lambda: _is_refused(door, credential))
        taken.close()


def test_a_browsers_sign_in_does_not_outlast_it(door):
    with door.client():
        taken, credential = door.taken()
        with taken, pytest.raises(NoTokenError):
            door.line.request("caller.sign_in", credential)
        with pytest.raises(NoTokenError):
            door.line.request("caller.token", Credential(kind="token", secret=credential.secret))
        with pytest.raises(NoTokenError):
            door.line.request("caller.token", Credential(kind="connection", secret="connection_guessed"))


def test_one_user_has_so_many_connections_and_no_more(door, monkeypatch):
    monkeypatch.setattr(UnixCallers, "MOST_OF_ONE", 1)
    with door.client():
        taken, credential = door.taken()
        with door.client() as refused:
            assert refused.recv(1) == b""
        assert door.sees(credential) == []
        taken.close()


def test_another_user_is_not_shut_out_by_that(service, monkeypatch):
    callers = service.service.unix_callers
    monkeypatch.setattr(UnixCallers, "MOST_OF_ONE", 2)
    monkeypatch.setattr(UnixCallers, "MOST", 3)
    first = [callers.admit(uid_of(ADA)) for _ in range(2)]
    with pytest.raises(TooManyConnectionsError):
        callers.admit(uid_of(ADA))
    callers.admit(uid_of(BOB))
    with pytest.raises(TooManyConnectionsError):
        callers.admit(uid_of(BOB))
    callers.forget(first[0])
    callers.admit(uid_of(BOB))


def test_a_users_uids_for_user_namespaces_count_as_one(service, monkeypatch, tmp_path):
    """`unshare --map-users` connects by as many uids as /etc/subuid grants, each of which had a share of its own."""
    granted = tmp_path / "subuid"
    granted.write_text("nonsense\nbob:x:9\nada:100000:65536\n1000:165536:65536\n", encoding="utf-8")
    monkeypatch.setattr(unix_accounts, "_SUBORDINATE", granted)
    callers = service.service.unix_callers
    monkeypatch.setattr(UnixCallers, "MOST_OF_ONE", 2)
    first = [callers.admit(uid) for uid in (100_000, 165_535)]
    for uid in (100_001, 165_535):
        with pytest.raises(TooManyConnectionsError):
            callers.admit(uid)
    for uid in (165_536, 99_999, uid_of(ADA)):
        callers.admit(uid)
    callers.forget(first[0])
    callers.admit(100_001)


class _FullEpoll:
    """An epoll that watches no further file at first, as where the machine's limit of them is reached."""

    def __init__(self, epoll: Callable[[], select.epoll]) -> None:
        self._epoll = epoll()
        self.is_full = True

    def register(self, connection: socket.socket, events: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._epoll.register(connection, events)

    def unregister(self, number: int) -> None:
        self._epoll.unregister(number)

    def poll(self) -> list[tuple[int, int]]:
        return self._epoll.poll()


def test_a_connection_that_cannot_be_watched_is_ended_and_counts_no_longer(service, socket_path, monkeypatch):
    full = _FullEpoll(select.epoll)
    monkeypatch.setattr(select, "epoll", lambda: full)
    monkeypatch.setattr(UnixCallers, "MOST_OF_ONE", 1)
    with Door(service, socket_path).opened() as door:
        with door.client() as client:
            taken, credential = door.taken()
            # The server has it, and must not go on with it.
            assert (client.recv(1), taken.recv(1)) == (b"", b"")
            eventually(lambda: _is_refused(door, credential))
            taken.close()
        full.is_full = False
        with door.client():
            taken, credential = door.taken()
            assert door.sees(credential) == []
            taken.close()


@pytest.mark.parametrize("name", ["*", "%wheel", "@vision", "SITE\\ada", "a/b", "ada lovelace", "", "x" * 65, "ada\n"])
def test_a_name_that_means_something_else_owns_nothing(service, monkeypatch, name):
    monkeypatch.setattr(unix_callers, "name_of", lambda _uid: name)
    callers = service.service.unix_callers
    with pytest.raises(NoTokenError, match="cannot own sessions"):
        callers.of_secret(callers.admit(1234))


def test_the_servers_own_user_is_nobody(service):
    callers = service.service.unix_callers
    callers.refuse_server(uid_of(ADA))
    with pytest.raises(NoTokenError, match="is the web server's own"):
        callers.of_secret(callers.admit(uid_of(ADA)))
    assert callers.of_secret(callers.admit(uid_of(BOB))).user == BOB


def test_rights_are_looked_up_for_each_request(service, monkeypatch):
    callers = service.service.unix_callers
    secret = callers.admit(uid_of(ADA))
    assert callers.of_secret(secret).scope is Scope.USER
    object.__setattr__(service.settings, "admin_group", ADA)
    assert callers.of_secret(secret).scope is Scope.ADMIN
    monkeypatch.setattr(unix_callers, "name_of", lambda _uid: None)
    with pytest.raises(NoTokenError):
        callers.of_secret(secret)


def _is_refused(door: Door, credential: Credential) -> bool:
    try:
        door.sees(credential)
    except NoTokenError:
        return True
    return False
