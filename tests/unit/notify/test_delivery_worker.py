"""The delivery worker: a target that is slow or away delays no other."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from muster.core.lifecycle.transitions import transition
from muster.core.model.session import SessionState
from muster.core.notify.callback_hosts import CallbackHosts
from muster.core.notify.deliveries import MAX_ATTEMPTS, retry_at
from muster.service.notify import delivery_worker
from muster.service.notify.delivery_worker import DeliveryWorker, hooks_in
from muster.store.store import Store
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW
from tests.waiting import PATIENCE_S, eventually

S = SessionState


class Site:
    """A web server: /slow answers after `let_go`, /away redirects, /bad answers 500, /ok accepts everything."""

    def __init__(self) -> None:
        site = self
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.let_go = threading.Event()
        self.location = "file:///etc/passwd"

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                site.received.append((self.path, body))
                if self.path == "/slow":
                    site.let_go.wait(PATIENCE_S)
                self.send_response({"/away": 302, "/bad": 500}.get(self.path, 200))
                self.send_header("Location", site.location)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def paths(self) -> list[str]:
        return [path for path, _ in self.received]


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.let_go.set()
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture
def store(tmp_path, empty_database) -> Iterator[Store]:
    shutil.copy(empty_database, tmp_path / "muster.db")
    opened = Store(f"sqlite:///{tmp_path / 'muster.db'}")
    yield opened
    opened.close()


@pytest.fixture
def worker(store, tmp_path) -> DeliveryWorker:
    (tmp_path / "hooks").mkdir()
    return DeliveryWorker(store.deliveries, tmp_path / "hooks", CallbackHosts.of(["127.0.0.0/8"]))


def work_until(worker: DeliveryWorker, reached) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline
        worker.send_out()
        worker.wait_for_news(0.05)


def notes(store: Store, session) -> list[str]:
    return [line.reason for line in store.story(session.id) if "failed: " in line.reason]


def test_a_slow_target_delays_no_other_and_each_keeps_its_order(worker, store, site):
    slow, quick = make_session(1, callback=site.url("/slow")), make_session(2, callback=site.url("/ok"))
    store.add([slow, quick])
    store.apply([transition(session, S.SCHEDULED, "placed", NOW) for session in (slow, quick)])
    # A request of the slow one has come and waits, whichever of the two targets was posted to first.
    work_until(worker, lambda: site.paths().count("/ok") == 2 and "/slow" in site.paths())
    assert site.paths().count("/slow") == 1
    site.let_go.set()
    work_until(worker, lambda: site.paths().count("/slow") == 2)
    for session in (slow, quick):
        assert [body["to"] for _, body in site.received if body["id"] == session.id] == ["PENDING", "SCHEDULED"]


@pytest.mark.parametrize(("path", "problem"), [("/away", "status 302"), ("/bad", "status 500")])
def test_any_other_status_than_success_is_retried_and_no_redirect_is_followed(worker, store, site, path, problem):
    session = make_session(1, callback=site.url(path))
    store.add([session])
    work_until(worker, lambda: notes(store, session))
    assert notes(store, session) == [f"callback failed: 127.0.0.1 answered with {problem}"]
    work_until(worker, lambda: len(site.received) == 2)
    assert site.received[0] == site.received[1]


def test_a_callback_that_nobody_answers_is_noted_without_its_path(worker, store):
    session = make_session(1, callback="http://127.0.0.1:1/hidden-in-the-url")
    store.add([session])
    work_until(worker, lambda: notes(store, session))
    assert notes(store, session) == ["callback failed: 127.0.0.1 cannot be reached: ConnectionError"]


def hook(directory: Path, name: str, text: str) -> None:
    (directory / "hooks" / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / "hooks" / name).chmod(0o755)


def test_a_hook_reads_the_change_and_a_failing_one_appears_in_the_story(worker, store, tmp_path):
    hook(tmp_path, "good", f"cat > {tmp_path}/received.new; mv {tmp_path}/received.new {tmp_path}/received")
    hook(tmp_path, "bad", "echo no luck >&2; exit 3")
    (tmp_path / "hooks" / "README").write_text("not a program")
    hook(tmp_path, ".hidden", "exit 1")
    assert hooks_in(tmp_path / "hooks") == ["bad", "good"]
    session = make_session(1)
    store.add([session])
    work_until(worker, lambda: notes(store, session) and (tmp_path / "received").exists())
    assert notes(store, session) == ["hook:bad failed: it ended with exit code 3: no luck"]
    message = json.loads((tmp_path / "received").read_text())
    assert {name: message[name] for name in ("session", "id", "owner", "from", "to", "reason")} == {
        "session": "s1",
        "id": session.id,
        "owner": "ada",
        "from": None,
        "to": "PENDING",
        "reason": "submitted",
    }


def test_what_a_hook_says_is_noted_as_one_line_of_text(worker, store, tmp_path):
    hook(tmp_path, "binary", r"printf 'no\000 \033[31mluck\015\n' >&2; exit 3")
    session = make_session(1)
    store.add([session])
    work_until(worker, lambda: notes(store, session))
    assert notes(store, session) == ["hook:binary failed: it ended with exit code 3: no [31mluck"]


@pytest.mark.parametrize("name", ["caf\udce9", "x" * 251, "a\nb"])
def test_a_file_whose_name_no_database_takes_is_no_hook_and_stops_no_delivery(worker, store, site, tmp_path, name):
    hook(tmp_path, name, "exit 0")
    session = make_session(1, callback=site.url("/ok"))
    store.add([session])
    work_until(worker, lambda: site.paths() == ["/ok"])


def test_a_hook_that_takes_too_long_is_ended_with_what_it_started(worker, store, tmp_path, monkeypatch):
    monkeypatch.setattr(delivery_worker, "_HOOK_TIMEOUT_S", 0.5)
    hook(tmp_path, "slow", f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    session = make_session(1)
    store.add([session])
    work_until(worker, lambda: notes(store, session))
    assert notes(store, session) == ["hook:slow failed: it was killed after 0 s"]
    started = Path("/proc", (tmp_path / "pid").read_text().strip(), "cmdline")
    eventually(lambda: started.exists() and b"sleep" in started.read_bytes(), lambda runs: not runs)


def test_a_hook_that_was_removed_holds_up_no_delivery(worker, store, tmp_path):
    hook(tmp_path, "bad", "exit 3")
    session = make_session(1)
    store.add([session])
    work_until(worker, lambda: notes(store, session))
    (tmp_path / "hooks" / "bad").unlink()
    work_until(worker, lambda: not store.deliveries.due(time.time() + 10_000))


def test_retries_come_at_growing_intervals_for_a_day():
    waits = [retry_at(attempts, NOW) - NOW for attempts in range(1, MAX_ATTEMPTS)]
    assert waits[:4] == [1, 2, 4, 8]
    assert waits == sorted(waits)
    assert 23 * 3600 <= sum(waits) <= 26 * 3600
    assert retry_at(MAX_ATTEMPTS, NOW) is None
