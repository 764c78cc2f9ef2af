"""The program that lends the engine's socket to the user who called sudo."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from muster.engine.agent_program import PYTHON, for_loader
from muster.shipped_files import ansible_root
from tests.waiting import PATIENCE_S, eventually

PROGRAM = ansible_root() / "plugins/module_utils/muster_agent/engine/socket_relay.py"
USER, GROUP = 2001, 2002


@pytest.fixture
def target(tmp_path: Path) -> Iterator[socket.socket]:
    """Yield a listening socket in the engine's place, at `engine.sock`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        listener.settimeout(PATIENCE_S)
        yield listener


@contextmanager
def relay(directory: Path, umask: int = 0o022) -> Iterator[subprocess.Popen[bytes]]:
    """Have the program run as the control node starts it, but for sudo. Its socket is `lent/relayed.sock`."""
    with subprocess.Popen(
        ["sh", "-c", f'exec {PYTHON} "$@"', "sh", directory / "lent", directory / "engine.sock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "SUDO_UID": str(USER), "SUDO_GID": str(GROUP)},
        umask=umask,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(for_loader(PROGRAM.read_text()))
            process.stdin.flush()
            assert process.stdout.readline() == b"muster:relayed\n"
            yield process
        finally:
            process.kill()


@contextmanager
def joined(directory: Path, target: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a client's connection to the relay, and what the relay made of it at the target."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(directory / "lent/relayed.sock"))
        server, _ = target.accept()
        with server:
            server.settimeout(PATIENCE_S)
            yield client, server


def test_what_is_said_and_its_end_go_through_each_way_for_itself(tmp_path, target):
    with relay(tmp_path), joined(tmp_path, target) as (client, server):
        client.sendall(b"GET /version")
        client.shutdown(socket.SHUT_WR)
        assert (server.recv(100), server.recv(100)) == (b"GET /version", b"")
        # Many times what the kernel holds for a reader that is late.
        answer = os.urandom(1 << 22)
        sender = threading.Thread(target=server.sendall, args=(answer,))
        sender.start()
        with client.makefile("rb") as answers:
            assert answers.read(len(answer)) == answer
            sender.join()
            server.shutdown(socket.SHUT_WR)
            assert answers.read() == b""


def test_a_client_that_is_gone_is_gone_for_the_engine_though_it_had_ended_its_words_before(tmp_path, target):
    with relay(tmp_path), joined(tmp_path, target) as (client, server):
        client.shutdown(socket.SHUT_WR)
        assert server.recv(100) == b""
        server.sendall(b"a line of a log")
        assert client.recv(100) == b"a line of a log"
        client.close()

        def refused() -> bool:
            try:
                server.sendall(b"the next")
            except BrokenPipeError:
                return True
            return False

        eventually(refused)


def test_clients_do_not_wait_for_each_other_and_one_without_an_engine_sees_an_end(tmp_path, target):
    with relay(tmp_path), joined(tmp_path, target) as (_silent, _), joined(tmp_path, target) as (client, server):
        client.sendall(b"ping")
        assert server.recv(100) == b"ping"
        target.close()
        with socket.socket(socket.AF_UNIX) as late:
            late.settimeout(PATIENCE_S)
            late.connect(str(tmp_path / "lent/relayed.sock"))
            assert late.recv(100) == b""


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_user_and_root_alone_may_use_it_whatever_roots_umask_is(tmp_path, umask):
    with relay(tmp_path, umask):
        directory, lent = (tmp_path / "lent").stat(), (tmp_path / "lent/relayed.sock").stat()
    assert (directory.st_uid, directory.st_mode & 0o777) == (os.getuid(), 0o755)
    assert (lent.st_uid, lent.st_gid, lent.st_mode & 0o777) == (USER, GROUP, 0o600)


def test_nothing_is_left_when_its_input_ends(tmp_path, target):
    with relay(tmp_path) as process, joined(tmp_path, target) as (client, _):
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0
        assert client.recv(100) == b""
    assert not (tmp_path / "lent").exists()
