"""Short commands in a fork of the daemon's command server: the same answers, and the same ends."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

import pytest

from muster.cli import command_client, command_server
from muster.cli.command_client import ACCEPTED, server_address
from muster.cli.command_server import Interrupts, obey
from tests.command_line import muster
from tests.unit.cli.test_imports import CHECKS, DATABASE, PROGRAM
from tests.waiting import eventually

PATIENCE_S = 60


def answers() -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(server_address()) == 0


@pytest.fixture(scope="module")
def loaded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a server, and yield the settings file that it is for."""
    config = tmp_path_factory.mktemp("server") / "muster.yml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_CONFIG", str(config))
        with command_server.command_server():
            eventually(answers)
            yield config
        eventually(lambda: not answers())


@pytest.fixture
def server(loaded_server: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve this test's control node."""
    loaded_server.unlink(missing_ok=True)
    loaded_server.symlink_to(state_dir.parent / "muster.yml")
    monkeypatch.setenv("MUSTER_CONFIG", str(loaded_server))


def run(*arguments: str, **given: object) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run a command as a process of its own; return what came of it, and which libraries it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False, **given
    )
    errors, _, loaded = done.stderr.rpartition("modules:")
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout, errors), set(loaded.split())


def was_served(loaded: set[str]) -> bool:
    return not loaded & (DATABASE | CHECKS)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "arguments", [("ls", "--json"), ("show", "train"), ("agents",), ("queue",), ("why", "train"), ("show", "nothing")]
)
def test_a_short_command_says_the_same_and_loads_nothing(arguments):
    muster("submit", "--name", "train")
    done, loaded = run(*arguments)
    here = muster(*arguments)
    assert was_served(loaded)
    assert (done.returncode, done.stdout, done.stderr) == (here.code, here.out, here.err)


@pytest.mark.usefixtures("server")
def test_a_command_runs_in_the_users_directory_and_environment(tmp_path):
    (tmp_path / "job.yml").write_text("name: from-a-file\n", encoding="utf-8")
    done, loaded = run("submit", "-f", "job.yml", cwd=tmp_path, env={**os.environ, "SUDO_USER": "grace"})
    assert (done.returncode, done.stderr) == (0, "")
    assert was_served(loaded)
    (session,) = muster("ls", "--json").json
    assert (session["name"], session["owner"]) == ("from-a-file", "grace")


@pytest.mark.usefixtures("server")
def test_a_command_reads_standard_input():
    done, loaded = run("submit", "-f", "-", input="name: from-a-pipe\n")
    assert was_served(loaded)
    assert done.returncode == muster("submit", "-f", "-", "--name", "another").code


@pytest.mark.usefixtures("server")
def test_names_of_sessions_are_completed_without_a_database():
    muster("submit", "--name", "train")
    words = {"_MUSTER_COMPLETE": "bash_complete", "COMP_WORDS": "muster show t", "COMP_CWORD": "2"}
    done, loaded = run(env={**os.environ, **words})
    assert was_served(loaded)
    assert done.stdout == "plain,train\n"


def test_a_command_that_waits_outlasts_the_daemon(state_dir, monkeypatch):
    # A settings file of its own makes it a server of its own.
    config = state_dir.parent / "own.yml"
    config.symlink_to(state_dir.parent / "muster.yml")
    with monkeypatch.context() as patch:
        patch.setenv("MUSTER_CONFIG", str(config))
        with command_server.command_server():
            eventually(answers)
            command = [sys.executable, "-c", PROGRAM, "submit", "--name", "train", "--wait"]
            waiting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            eventually(lambda: muster("ls", "--json").json != [])
        eventually(lambda: not answers())
    assert waiting.poll() is None
    muster("cancel", "train")
    said, errors = waiting.communicate(timeout=PATIENCE_S)
    errors, _, loaded = errors.rpartition("modules:")
    assert was_served(set(loaded.split()))
    assert waiting.returncode == 1, errors
    assert "train" in said


@pytest.mark.usefixtures("server")
def test_a_command_that_waits_stops_waiting_when_its_time_is_over():
    done, loaded = run("submit", "--name", "train", "--wait", "--wait-timeout", "0.01")
    assert done.returncode == 1
    assert was_served(loaded)
    assert "train" in done.stderr


@pytest.mark.usefixtures("server")
def test_ctrl_c_ends_a_wait_and_not_the_session():
    waiting = subprocess.Popen([sys.executable, "-c", PROGRAM, "submit", "--wait"], stdout=subprocess.DEVNULL)
    eventually(lambda: muster("ls", "--json").json != [])
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(PATIENCE_S) == 130
    (session,) = muster("ls", "--json").json
    assert session["state"] == "PENDING"


@pytest.mark.parametrize(
    ("line", "lasts"),
    [("submit --wait", True), ("submit", False), ("logs -f train", True), ("logs train", False), ("exec train", True)],
)
def test_a_command_that_may_last_must_leave_the_daemons_control_groups(line, lasts):
    assert command_client.may_last(line.split()) is lasts


@pytest.mark.usefixtures("server")
def test_sessions_are_ended_quickly_too():
    muster("submit", "--name", "train")
    done, loaded = run("terminate", "train")
    assert (done.returncode, was_served(loaded)) == (0, True)


def test_without_a_server_a_command_runs_by_itself():
    done, loaded = run("ls", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert not was_served(loaded)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_ends_with_its_caller(tmp_path, number):
    fifo = tmp_path / "spec.yml"
    os.mkfifo(fifo)
    caller = subprocess.Popen([sys.executable, "-c", PROGRAM, "submit", "-f", str(fifo)], stderr=subprocess.DEVNULL)
    with opened_for_reader(fifo) as writer:
        caller.send_signal(number)
        assert caller.wait() == (130 if number is signal.SIGINT else -number)
        poll = select.poll()
        poll.register(writer, 0)
        assert poll.poll(PATIENCE_S * 1000) == [(writer, select.POLLERR)]
    assert muster("ls", "--json").json == []


def test_ctrl_c_that_comes_just_before_a_system_call_is_repeated(monkeypatch):
    """The main thread does not know of the first signal, and gets one KeyboardInterrupt for both."""
    sent: list[int] = []
    interrupts = Interrupts()

    def send(_process: int, number: int) -> None:
        sent.append(number)
        if len(sent) == 2:
            for _ in sent:
                with suppress(KeyboardInterrupt):
                    interrupts.handle(number, None)
                    ignored.append(number)

    ignored: list[int] = []
    monkeypatch.setattr(os, "kill", send)
    ours, theirs = socket.socketpair()
    with ours:
        thread = threading.Thread(target=obey, args=(ours, interrupts))
        thread.start()
        with theirs:
            theirs.send(bytes([signal.SIGINT]))
            eventually(lambda: len(sent) == 2)
        thread.join(PATIENCE_S)
    assert sent == [signal.SIGINT, signal.SIGINT, signal.SIGTERM]
    assert ignored == [signal.SIGINT]


@contextmanager
def opened_for_reader(fifo: Path) -> Iterator[int]:
    """Wait until a process reads there, and yield the other end, which says POLLERR when that process has gone."""
    opened: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):
            opened.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        return bool(opened)

    eventually(is_read)
    yield opened[0]
    os.close(opened[0])


@pytest.mark.usefixtures("server")
def test_a_request_that_is_given_up_is_not_carried_out():
    request = {"arguments": ["submit"], "environment": dict(os.environ), "encodings": [("utf-8", "strict")] * 3}
    content = json.dumps({**request, "umask": 0o077}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, Path(os.devnull).open("r+b") as null:
        client.connect(server_address())
        directory = os.open("/", os.O_PATH)
        socket.send_fds(client, [len(content).to_bytes(4, "big")], [*[null.fileno()] * 3, directory])
        os.close(directory)
        client.sendall(content)
        assert client.recv(1) == ACCEPTED
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert muster("ls", "--json").json == []


@pytest.mark.usefixtures("server")
def test_another_users_server_is_given_nothing(monkeypatch):
    address = server_address()
    monkeypatch.setattr(command_client, "server_address", lambda: address)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert command_client.served_exit_code(["ls"]) is None


def test_another_user_is_distinguished_from_this_one(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert command_client.is_own(ours)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert not command_client.is_own(ours)


def test_code_that_was_changed_is_not_served(tmp_path, monkeypatch):
    source = tmp_path / "fake.py"
    source.write_text("", encoding="utf-8")
    module = ModuleType("muster.fake")
    module.__file__ = str(source)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    code = command_server._Code()
    assert not code.has_changed()
    os.utime(source, ns=(1, 1))
    assert code.has_changed()


def test_a_process_that_cannot_join_the_callers_control_groups_says_so():
    assert command_server._join_control_groups_of(os.getpid())
    assert not command_server._join_control_groups_of(0)


@pytest.mark.usefixtures("server")
def test_exec_is_answered_quickly_too():
    muster("submit", "--name", "train")
    done, loaded = run("exec", "train", "--", "true")
    assert was_served(loaded)
    assert (done.returncode, done.stderr) == (1, "muster: session train is PENDING; it has no containers now\n")


def test_a_fork_finishes_its_threads_and_waits_for_no_idle_executor(tmp_path):
    program = f"""
import os, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from muster.cli.command_server import finish_threads
idle = ThreadPoolExecutor(2)
idle.submit(len, "").result()
threading.Thread(target=lambda: (time.sleep(0.2), Path({str(tmp_path / "done")!r}).touch())).start()
finish_threads()
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert (tmp_path / "done").exists()
