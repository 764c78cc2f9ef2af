"""Unix users of the control node at its socket: each is who the Linux kernel says, and nobody else."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from muster.cli import context
from muster.core.values.errors import BadInputError
from muster.remote.unix_transport import UnixTransport
from muster.web.separation import processes
from muster.web.separation.unix_door import listening_socket
from tests.control_node import ControlNode
from tests.done import Done
from tests.running.forked_cli import ForkedMuster
from tests.servers.web_server import Server, web_server
from tests.unix_users import ADA, BOB, NAMELESS_UID, become, become_root_of_own_namespace, muster_as, uid_of

SPEC = ("--cpu", "1", "--mem", "64M", "--command", "true", "--hold")


@pytest.fixture
def server(tmp_path: Path, socket_path: Path) -> Iterator[Server]:
    """Yield the server of a node whose project `vision` has Ada's Unix group, and whose administrators Bob's has."""
    settings = {"projects": {"vision": [f"%{ADA}"]}, "admin_group": BOB}
    with web_server(
        ControlNode(tmp_path / "node", "unix-users", settings), tmp_path, "--socket", str(socket_path)
    ) as made:
        yield made


@pytest.fixture
def muster(server: Server, socket_path: Path) -> Callable[..., Done]:
    """Run a command as such a user at the socket."""
    del server

    def run(user: str | int, *arguments: str) -> Done:
        return muster_as(become(user), *arguments, server=f"unix:{socket_path}")

    return run


def test_a_user_sees_and_changes_their_own_and_an_administrator_all(muster, server):
    assert muster(ADA, "submit", *SPEC, "--name", "adas").code == 0
    (session,) = muster(ADA, "ls", "--json").json()
    assert (session["name"], session["owner"]) == ("adas", ADA)
    # They are no administrator: "man" is neither in the group nor root.
    assert muster("man", "ls", "--json").json() == []
    for command in ("show", "why", "terminate", "hold"):
        refused = muster("man", command, "adas")
        assert (refused.code, refused.err) == (2, "muster: there is no session 'adas'; see `muster ls --all`\n")
    assert muster("man", "submit", *SPEC, "--owner", ADA).err == (
        "muster: user man is no administrator; only one submits for others\n"
    )
    # Of the group that the settings name, and root itself.
    for administrator in (BOB, "root"):
        assert [one["name"] for one in muster(administrator, "ls", "--json").json()] == ["adas"]
    assert muster(BOB, "release", "adas").code == 0
    assert muster(ADA, "rename", "adas", "hers").code == 0
    assert muster(ADA, "terminate", "hers").code == 0
    audited = [json.loads(line) for line in (server.node.directory / "state" / "audit.log").read_text().splitlines()]
    named = [(line["user"], line["token"], line["from"]) for line in audited if line["status"] in {200, 201}]
    assert (ADA, None, f"uid {uid_of(ADA)}") in named
    assert (BOB, None, f"uid {uid_of(BOB)}") in named


def test_a_project_is_for_its_unix_group(muster, server):
    assert muster(ADA, "submit", *SPEC, "--project", "vision").code == 0
    refused = muster("man", "submit", *SPEC, "--project", "vision")
    assert refused.code == 2
    assert refused.err == "muster: project: man has no project 'vision'; name one of default\n"
    # A token's user is the same person.
    spec = {"cpu": 1, "mem": "64M", "command": "true", "project": "vision"}
    for user, status in ((ADA, 201), ("man", 422)):
        with server.client(server.token(user)) as client:
            assert client.post("/sessions", json=spec).status_code == status


def test_no_header_makes_somebody_else_of_a_user(server, socket_path, muster):
    muster(BOB, "submit", *SPEC, "--name", "bobs")
    admin = server.token("root", "admin")
    headers = {
        "Authorization": f"Bearer {admin}", "X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1",
        "X-Forwarded-User": "root", "X-Remote-User": "root", "X-Muster-Uid": "0", "muster.uid": "0",
        "muster.connection": "connection_0", "State": '{"muster.uid": "0"}',
    }  # fmt: skip
    answers = _as_user(ADA, lambda: _get(socket_path, "sessions", headers))
    assert (answers[0], answers[1]["items"]) == (200, [])
    # Nor does anything of that at a port.
    del headers["Authorization"]
    assert httpx.get(f"{server.url}/api/v1/sessions", headers=headers).status_code == 401
    # Metrics are read without a token from addresses that the site names, which a socket has not.
    assert _as_user(ADA, lambda: _get(socket_path, "../../metrics", headers))[0] == 403


def test_a_user_namespace_makes_nobody_root(muster, socket_path):
    muster(BOB, "submit", *SPEC, "--name", "bobs")
    done = muster_as(become_root_of_own_namespace(ADA), "submit", *SPEC, "--name", "adas", server=f"unix:{socket_path}")
    # Its client sees no root at the other end, since its namespace has none: that is not trusted.
    assert (done.code, "nothing was sent" in done.err) == (1, True)
    answers = _as_user(become_root_of_own_namespace(ADA), lambda: _get_unchecked(socket_path))
    assert b"200 OK" in answers
    assert b'"items":[]' in answers.replace(b" ", b"")


def test_a_uid_without_a_name_owns_nothing(muster):
    refused = muster(NAMELESS_UID, "ls")
    assert (refused.code, refused.err) == (
        1,
        f"muster: uid {NAMELESS_UID} has no name on the control node; log in as a user whom it knows\n",
    )
    assert "stands for unknown users" in muster("nobody", "ls").err


def test_nothing_is_sent_to_a_socket_that_another_user_serves(open_directory):
    squatted = open_directory / "api.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(squatted))
        squatted.chmod(0o666)
        _as_listener(BOB, listener)
        done = muster_as(become(ADA), "submit", *SPEC, "--env", "PASSWORD=hush", server=f"unix:{squatted}")
        assert done.code == 1
        assert done.err == (
            f"muster: the control node's socket {squatted} cannot be reached: uid {uid_of(BOB)} listens there, who is"
            " neither root nor you; nothing was sent\n"
        )
        listener.settimeout(10)
        with listener.accept()[0] as connection:
            assert connection.recv(1) == b""


@pytest.mark.usefixtures("server")
def test_users_who_may_not_read_the_settings_use_the_socket(socket_path, tmp_path, monkeypatch):
    unreadable = tmp_path / "unreadable.yml"
    unreadable.touch(0o600)
    monkeypatch.setattr(context, "SOCKET", socket_path)
    monkeypatch.setattr(context, "SETTINGS", unreadable)
    assert muster_as(become(ADA), "submit", *SPEC, "--name", "adas").code == 0
    assert [one["name"] for one in muster_as(become(ADA), "ls", "--json").json()] == ["adas"]
    refused = muster_as(become(ADA), "reservation", "ls")
    assert (refused.code, refused.err) == (
        2,
        (
            "muster: muster reservation ls needs the control node's settings;"
            " ask an administrator, such as root, to run it\n"
        ),
    )
    # Root reads the settings. Not from the default place, where this machine's own may be.
    assert "muster.yml does not exist" in muster_as(become("root"), "ls", config=tmp_path / "muster.yml").err


def test_a_socket_is_served_without_a_port(tmp_path, socket_path):
    node = ControlNode(tmp_path / "node", "unix-users")
    process = ForkedMuster(
        ("web", "--socket", str(socket_path), "--only-socket"), node.environment, tmp_path / "web.log"
    )
    while not socket_path.is_socket():
        assert process.poll() is None, (tmp_path / "web.log").read_text()
        time.sleep(0.05)
    assert muster_as(become(ADA), "ls", "--json", server=f"unix:{socket_path}").json() == []
    process.terminate()
    assert process.wait() == 0
    assert not socket_path.exists()
    assert "http://" not in (tmp_path / "web.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--only-socket",), "--only-socket: there is no socket; name one with --socket"),
        (("--socket", "/proc/none/api.sock"), "--socket: /proc/none/api.sock cannot be served"),
        (("--socket", "/dev/shm/api.sock"), "--socket: others may write in /dev/shm; name a path"),
        (("--socket", "/etc/hostname"), "--socket: /etc/hostname is no socket; name another path"),
    ],
)
def test_a_socket_that_cannot_be_served_is_one_line(tmp_path, arguments, problem):
    done = ControlNode(tmp_path / "node", "unix-users").run("web", "--port", "0", *arguments, check=False)
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith(f"muster: {problem}")


def test_a_path_that_is_served_is_left_alone_and_a_left_one_is_taken(socket_path):
    with listening_socket(socket_path), pytest.raises(BadInputError, match="is served by another process"):
        listening_socket(socket_path)
    assert socket_path.is_socket()
    with listening_socket(socket_path):
        assert socket_path.stat().st_mode & 0o777 == 0o666


def test_who_took_over_the_server_does_not_come_in_by_the_socket(tmp_path, socket_path, monkeypatch):
    monkeypatch.setattr(processes, "USER", ADA)
    with web_server(ControlNode(tmp_path / "node", "unix-users"), tmp_path, "--socket", str(socket_path)):
        refused = muster_as(become(ADA), "ls", server=f"unix:{socket_path}")
        assert (refused.code, "is the web server's own" in refused.err) == (1, True)
        assert muster_as(become(BOB), "ls", server=f"unix:{socket_path}").code == 0


def test_another_user_than_root_serves_no_socket(socket_path):
    done = muster_as(become(ADA), "web", "--socket", str(socket_path))
    assert (done.code, done.err) == (
        2,
        "muster: --socket: only root's server can have one; start it as root, or leave --socket out\n",
    )


def _as_user(who: str | Callable[[], None], ask: Callable[[], Any]) -> Any:
    """Return what `ask` returns in a process of this user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            (become(who) if isinstance(who, str) else who)()
            answer = ask()
            os.write(writing, answer if isinstance(answer, bytes) else json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        said = answers.read()
    os.waitpid(child, 0)
    return said if said[:4] == b"HTTP" else json.loads(said)


def _get(path: Path, what: str, headers: dict[str, str]) -> list[Any]:
    client = httpx.Client(base_url="http://localhost/api/v1/", transport=UnixTransport(path), headers=headers)
    answer = client.get(what)
    return [answer.status_code, answer.json()]


def _get_unchecked(path: Path) -> bytes:
    """Ask as a client of their own would, which trusts any socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /api/v1/sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def _as_listener(user: str, listener: socket.socket) -> None:
    """Listen as this user: that is who the Linux kernel names at the other end."""
    child = os.fork()
    if child == 0:
        become(user)()
        listener.listen(5)
        os._exit(0)
    os.waitpid(child, 0)
