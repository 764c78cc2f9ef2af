"""Who gets a terminal, what passes through it, and when it ends; ssh is a shell of this machine here."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from muster.core.model.session import SessionState
from muster.core.model.token import Scope
from muster.core.values.errors import MusterError, StoreUnavailableError
from muster.service.reach.terminal import Terminal
from muster.web.app import make_app
from muster.web.separation import opened as opened_by_broker
from muster.web.separation.client import brokered_service
from muster.web.separation.line import NoBrokerError
from muster.web.streams import terminal
from muster.web.streams.terminal import WINDOW_BYTES
from tests.security.clients.taken_over_server import brokered_server
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.unit.web.api.test_api import submitted
from tests.waiting import PATIENCE_S, eventually

ROOT = Path(__file__).parents[4]
HERE = {"Origin": "http://testserver"}
# A stand-in for ssh after its login, which then runs a script. Its child stands for a jump host's ssh.
SSH = """#!/bin/sh
echo "$$" > "$SSH_STATE/pid"
echo "$@" > "$SSH_STATE/arguments"
sleep 1000 </dev/null >/dev/null 2>&1 &
stty raw opost -echo
trap 'stty size' WINCH
. "$SSH_STATE/script"
"""
ECHO = 'echo ready; while read -r line; do echo "got $line"; done'
FLOOD = "exec yes 0123456789"


@pytest.fixture
def ssh(tmp_path, monkeypatch) -> Path:
    """Replace ssh by a script. Return the directory where it leaves its process id and its arguments."""
    state = tmp_path / "ssh"
    (state / "bin").mkdir(parents=True)
    program = state / "bin" / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    (state / "script").write_text(ECHO)
    monkeypatch.setenv("SSH_STATE", str(state))
    monkeypatch.setenv("PATH", f"{state / 'bin'}:{os.environ['PATH']}")
    return state


@pytest.fixture
def train(service, ssh) -> str:
    """Return the id of ada's session of two kernels that runs."""
    assert ssh.is_dir()
    service.store.agents.save([make_agent("a1")])
    session = placed_on(make_session(1, name="train", cluster_size=2), "a1")
    main, sub = session.kernels
    running = replace(session, kernels=(replace(main, ssh_port=2222), sub), public_key="ssh-ed25519 AAAA")
    service.store.add([running])
    return running.id


@pytest.fixture
def brokered_browser(service):
    """Yield signed-in clients of a server whose service is all requests to a broker."""
    with brokered_server(service.service) as server, ExitStack() as running:

        def make(user, scope=Scope.USER):
            _, secret = service.service.tokens.create(f"{user}-brokered", user, scope, None)
            client = running.enter_context(TestClient(make_app(brokered_service(server.line))))
            assert client.post("/sign-in", data={"token": secret}, follow_redirects=False).status_code == 303
            return client

        yield make


def opened(client, session="train", kernel=None, headers=HERE):
    query = "" if kernel is None else f"?kernel={kernel}"
    return client.websocket_connect(f"/sessions/{session}/terminal{query}", headers=headers)


def shown_until(socket, end):
    """Return the terminal's output up to the text."""
    shown = b""
    while end not in shown:
        shown += socket.receive_bytes()
    return shown


def closed(socket):
    """Return how the terminal closes, and skip the rest of its output."""
    while True:
        message = socket.receive()
        if message["type"] == "websocket.close":
            return message["code"], message["reason"]


def refused(client, *arguments, **options):
    with opened(client, *arguments, **options) as socket:
        return closed(socket)


def noted(service):
    logs = service.settings.state_dir.glob("audit*.log")
    found = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    return [(line["user"], line["status"], line["sessions"]) for line in found if line["method"] == "WEBSOCKET"]


def gone(pid):
    """Return once no process of that group is left, not even an unreaped one."""

    def is_gone():
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return True
        return False

    return eventually(is_gone)


def test_input_reaches_the_kernel_and_its_output_the_browser(browser, train, ssh, service):
    with opened(browser("ada"), kernel="sub1") as socket:
        shown_until(socket, b"ready")
        socket.send_bytes("größer\n".encode())
        assert shown_until(socket, b"\n").endswith("got größer\r\n".encode())
        pid = int((ssh / "pid").read_text())
        arguments = (ssh / "arguments").read_text().split()
        assert arguments[-1] == "sub1"
        # Otherwise a tilde typed after a newline would command ssh on the control node.
        assert "EscapeChar=none" in arguments
    assert gone(pid)
    assert noted(service) == [("ada", 101, [train])]


@pytest.mark.usefixtures("train")
def test_a_terminal_has_the_size_that_the_browser_sends(browser):
    with opened(browser("ada")) as socket:
        shown_until(socket, b"ready")
        socket.send_text('{"columns": 132, "rows": 43}')
        assert b"43 132" in shown_until(socket, b"\n")


@pytest.mark.usefixtures("train")
def test_no_request_waits_until_a_terminal_has_its_size(browser, monkeypatch):
    asked, answer = threading.Event(), threading.Event()

    def resize(*_: object) -> None:
        asked.set()
        answer.wait(PATIENCE_S)

    monkeypatch.setattr(Terminal, "resize", resize)
    ada = browser("ada")
    with opened(ada) as socket, ThreadPoolExecutor(1) as pool:
        socket.send_text('{"columns": 132, "rows": 43}')
        assert asked.wait(PATIENCE_S)
        try:
            assert pool.submit(ada.get, "/healthz").result(5).status_code == 200
        finally:
            answer.set()


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"columns": 0, "rows": 1}', '{"columns": "a", "rows": 1}', '{"taken": 9999999}', "[" * 50_000),
        *('{"columns": -1, "rows": 1}', '{"columns": true, "rows": 1}', f'{{"columns": {"9" * 99}, "rows": 1}}'),
    ],
)
def test_an_invalid_message_ends_the_terminal_with_one_line(browser, brokered_browser, text):
    for client in (browser("ada"), brokered_browser("bob", Scope.ADMIN)):
        with opened(client) as socket:
            shown_until(socket, b"ready")
            socket.send_text(text)
            code, reason = closed(socket)
        assert code == 4400
        assert reason
        assert "\n" not in reason


@pytest.mark.usefixtures("train")
def test_a_terminal_is_refused_with_one_line_while_the_database_is_away(browser, service, monkeypatch):
    ada = browser("ada")

    def away(_secret):
        raise StoreUnavailableError

    monkeypatch.setattr(service.service.tokens, "signed_in", away)
    assert refused(ada) == (4503, "The database does not answer.")


@pytest.mark.usefixtures("train")
def test_a_terminal_whose_broker_leaves_is_closed_with_one_line(brokered_browser, monkeypatch):
    with opened(brokered_browser("ada")) as socket:
        shown_until(socket, b"ready")
        monkeypatch.setattr(opened_by_broker, "answer_to", no_answer)
        socket.send_text('{"columns": 132, "rows": 43}')
        assert closed(socket) == (4500, "The server's broker does not answer.")


def no_answer(*_message):
    raise NoBrokerError


@pytest.mark.usefixtures("train")
def test_the_close_reason_says_that_the_shell_has_ended(browser, ssh):
    (ssh / "script").write_text("echo bye")
    assert refused(browser("ada")) == (1000, "the shell has ended")


def test_another_users_session_is_not_there(browser, train, ssh, service):
    eve = browser("eve")
    for reference in ("train", train, train[:8]):
        code, reason = refused(eve, reference)
        assert (code, reason) == (4404, f"there is no session {reference!r}; see `muster ls --all`")
        assert eve.get(f"/sessions/{reference}/terminal").status_code == 404
    assert not (ssh / "pid").exists()
    assert noted(service) == [("eve", 404, [])] * 3
    # An administrator sees and does everything.
    with opened(browser("root", Scope.ADMIN)) as socket:
        shown_until(socket, b"ready")


@pytest.mark.usefixtures("train")
def test_a_token_that_reads_opens_none(browser, ssh):
    reader = browser("ada", Scope.READ)
    assert refused(reader)[0] == 4403
    assert reader.get("/sessions/train/terminal").status_code == 403
    assert not (ssh / "pid").exists()


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {}, {"Origin": "http://testserver.evil.example"}],
)
def test_another_sites_page_opens_none(browser, service, headers):
    with pytest.raises(WebSocketDisconnect) as refusal, opened(browser("ada"), headers=headers):
        pass
    assert refusal.value.code == 4403
    assert [status for _, status, _ in noted(service)] == [403]


@pytest.mark.usefixtures("train")
def test_a_terminal_needs_a_sign_in(browser, caller, service):
    for nobody in (browser("ada", sign_in=False), caller("ada")):
        with pytest.raises(WebSocketDisconnect) as refusal, opened(nobody):
            pass
        assert refusal.value.code == 4401
    assert noted(service) == [(None, 401, [])] * 2


@pytest.mark.usefixtures("train")
def test_only_running_sessions_have_terminals(browser, caller, service):
    submitted(caller("ada"), name="waits")
    ada = browser("ada")
    code, reason = refused(ada, "waits")
    assert (code, reason) == (4409, "session waits is PENDING; terminals are for sessions that are RUNNING")
    assert refused(ada, kernel="sub9")[0] == 4404
    assert ada.get("/sessions/waits/terminal").status_code == 409
    half = placed_on(make_session(5, name="half", cluster_size=2), "a1")
    service.store.add([replace(half, kernels=(half.main, replace(half.kernels[1], container_state="exited")))])
    assert refused(ada, "half", "sub1") == (4409, "container sub1 of session half has ended; choose another")


@pytest.mark.usefixtures("train")
def test_the_number_of_open_terminals_is_limited(browser, service, monkeypatch):
    service.set_web(terminals=1)
    ada, root = browser("ada"), browser("root", Scope.ADMIN)
    with opened(ada) as socket:
        shown_until(socket, b"ready")
        assert refused(ada) == (4429, "1 terminals of yours are open; close one")
        with opened(root) as other:
            shown_until(other, b"ready")
        monkeypatch.setattr(terminal, "MAX_TERMINALS", 1)
        assert refused(root) == (4429, "1 terminals are open; try again later")
    with opened(ada) as socket:
        shown_until(socket, b"ready")


@pytest.mark.parametrize("how", ["revoked", "signed out", "demoted", "ended", "restarted", "server"])
def test_a_terminal_ends_with_its_token_its_session_and_the_server(browser, train, ssh, service, app, monkeypatch, how):
    monkeypatch.setattr(terminal, "CHECK_S", 0.1)
    ada = browser("ada", name="mine")
    with opened(ada) as socket:
        shown_until(socket, b"ready")
        pid = int((ssh / "pid").read_text())
        if how == "revoked":
            service.store.tokens.remove("mine")
        elif how == "signed out":
            ada.post("/sign-out")
        elif how == "demoted":
            service.service.tokens.renewed("mine", "ada", Scope.READ, 3600)
        elif how == "server":
            for one in tuple(app.state.terminals):
                one.stop()
        else:
            changed_session(service, train, how)
        code, _ = closed(socket)
    assert code == {"revoked": 4401, "signed out": 4401, "demoted": 4403, "server": 1012}.get(how, 4409)
    assert gone(pid)
    assert not app.state.terminals


def changed_session(service, session_id, how):
    if how == "ended":
        service.service.commands.terminate([session_id], "ada")
    else:
        service.service.commands.restart([session_id], "ada")
    assert service.store.get([session_id])[session_id].state is not SessionState.RUNNING


@pytest.mark.usefixtures("train")
def test_a_program_that_writes_for_ever_waits_for_its_reader(browser, ssh, app):
    (ssh / "script").write_text(FLOOD)
    with opened(browser("ada")) as socket:
        shown = 0
        while shown < 2 * WINDOW_BYTES:
            shown += len(socket.receive_bytes())
            if shown >= WINDOW_BYTES:
                socket.send_text(json.dumps({"taken": shown - WINDOW_BYTES // 2}))
        (one,) = app.state.terminals
        one.stop()
        while (message := socket.receive())["type"] == "websocket.send":
            shown += len(message["bytes"])
    # The window, and the piece that went beyond it.
    assert shown < 2 * WINDOW_BYTES + WINDOW_BYTES // 2 + (16 << 10)


@pytest.mark.usefixtures("train")
def test_more_than_is_read_is_not_kept(browser, ssh):
    (ssh / "script").write_text("echo ready; exec sleep 1000")
    with opened(browser("ada")) as socket:
        shown_until(socket, b"ready")
        for _ in range(2 + WINDOW_BYTES // (32 << 10)):
            socket.send_bytes(b"x" * (32 << 10))
        code, reason = closed(socket)
    assert (code, reason) == (4400, "more input was sent than the window allows; wait for {taken}")


@pytest.mark.usefixtures("train")
def test_the_browser_gets_the_number_of_bytes_read(browser, ssh):
    (ssh / "script").write_text("echo ready; exec cat >/dev/null")
    with opened(browser("ada")) as socket:
        shown_until(socket, b"ready")
        for _ in range(8):
            socket.send_bytes(b"x" * (16 << 10))
        taken = 0
        while taken < 7 * (16 << 10):
            taken = json.loads(socket.receive_text())["taken"]
        assert taken <= 8 * (16 << 10)


def test_a_program_finds_its_size_and_no_signal_meets_it_as_it_starts(tmp_path, monkeypatch):
    start = subprocess.Popen

    def start_and_be_late(*arguments, **options):
        process = start(*arguments, **options)
        eventually((tmp_path / "traps").exists)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_and_be_late)
    # As in a shell, a trapped signal interrupts `read`.
    script = f"stty size; trap 'echo resized' WINCH; touch {tmp_path}/traps; read -r line; echo got $line"
    made = Terminal(make_session(1), ["sh", "-c", script])
    made.write(b"this\n")
    shown = read_until(made, b"got")
    made.end()
    assert b"24 80" in shown
    assert b"resized" not in shown


def read_until(made, end):
    """Return the output of a terminal's program up to the text."""
    shown = b""
    deadline = time.monotonic() + PATIENCE_S
    while end not in shown:
        assert time.monotonic() < deadline, shown
        try:
            shown += made.read()
        except BlockingIOError:
            time.sleep(0.01)
    return shown


def test_a_program_that_ignores_the_hangup_is_killed():
    child = "import signal, time; signal.signal(signal.SIGHUP, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
    made = Terminal(make_session(1), [sys.executable, "-c", child])
    read_until(made, b"up")
    pid = made._process.pid
    made.end()
    made.end()
    assert gone(pid)


def test_a_process_that_ends_kills_it_first_no_matter_which_thread_ended_the_terminal():
    """The broker's threads are daemons; and with nohup all programs ignore the hangup."""
    script = """
import sys, threading, time
from muster.service.reach.terminal import Terminal
from tests.strategies.sessions import make_session
child = "import signal, time; signal.signal(signal.SIGHUP, signal.SIG_IGN); print('up', flush=True); time.sleep(99)"
made = Terminal(make_session(1), [sys.executable, "-c", child])
while True:
    try:
        if b"up" in made.read():
            break
    except BlockingIOError:
        time.sleep(0.01)
print(made._process.pid, flush=True)
ending = threading.Thread(target=made.end, daemon=True)
ending.start()
ending.join()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert gone(int(done.stdout))


def test_a_control_node_without_ssh_says_so():
    with pytest.raises(MusterError, match="install openssh-client"):
        Terminal(make_session(1), ["no-such-program"])


def test_the_page_names_its_kernels_and_loads_what_is_here(browser, train):
    page = browser("ada").get("/sessions/train/terminal?kernel=sub1").text
    assert f'data-session="{train}" data-kernel="sub1"' in page
    assert f'href="/sessions/{train}"' in page
    assert 'value="sub1" selected' in page
    assert browser("bob").get(f"/sessions/{train}/terminal").status_code == 404
