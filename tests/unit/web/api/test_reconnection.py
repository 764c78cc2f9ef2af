"""Clients that wait: for many sessions at once, and while the server restarts."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from muster.client import Client, ServerError, SessionState
from muster.remote import reconnection
from muster.remote.backend import RemoteBackend
from muster.remote.client import Client as ApiClient
from muster.service.sessions.views import SessionView
from muster.web_settings import WebSettings
from tests.strategies.sessions import make_session
from tests.waiting import PATIENCE_S

SPEC = {"cpu": 1, "mem": "64M", "command": "true"}


@contextmanager
def served(app: FastAPI, path: Path) -> Iterator[None]:
    """Serve the API at a Unix socket for as long as the context lasts."""
    running = uvicorn.Server(uvicorn.Config(app, uds=str(path), log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield
    running.should_exit = True
    thread.join(30)
    path.unlink(missing_ok=True)


@pytest.fixture
def client(tmp_path, secret_of) -> Iterator[Client]:
    """Return a client at a socket. It has a token, since this app knows no Unix users."""
    with Client(f"unix:{tmp_path / 'api.sock'}") as made:
        made._backend._client._http.headers["Authorization"] = f"Bearer {secret_of('ada')}"
        yield made


def test_a_client_that_waits_goes_on_when_the_server_was_restarted(app, tmp_path, client, monkeypatch):
    monkeypatch.setattr(reconnection, "_RETRY_S", 0.01)
    ended: list[SessionState] = []
    first_answer = threading.Event()
    with served(app, tmp_path / "api.sock"):
        job = client.submit(SPEC)
        waits = threading.Thread(
            target=lambda: ended.append(client.wait(job, changed=lambda _now: first_answer.set()).state)
        )
        waits.start()
        assert first_answer.wait(PATIENCE_S)
    assert not ended
    with served(app, tmp_path / "api.sock"):
        client.cancel(job)
        waits.join(30)
    assert ended == [SessionState.CANCELLED]


def test_a_client_gives_up_when_the_server_stays_away(app, tmp_path, client, monkeypatch):
    monkeypatch.setattr(reconnection, "_RETRY_S", 0.01)
    backend = client._backend
    backend._reconnection = reconnection.Reconnection(backend._client, away_s=0.0)
    with served(app, tmp_path / "api.sock"):
        job = client.submit(SPEC)
    with pytest.raises(ServerError, match="cannot be reached"):
        list(backend.wait_for([job], lambda _session: False))
    backend._reconnection = reconnection.Reconnection(backend._client)
    with pytest.raises(TimeoutError):
        list(backend.wait_for([job], lambda _session: False, timeout_s=0.1))


@pytest.mark.parametrize("count", [1, 400])
def test_who_waits_for_many_sessions_leaves_most_of_their_requests_to_others(monkeypatch, count):
    sessions = {session.id: session for session in map(make_session, range(1, count + 1))}
    requests, slept_s = 0, 0.0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal requests
        requests += 1
        session = sessions[request.url.path.rpartition("/")[2]]
        state = SessionState.CANCELLED if slept_s > 60 else SessionState.PENDING
        return httpx.Response(200, json=SessionView.of(replace(session, state=state)).as_json())

    def sleep(seconds: float) -> None:
        nonlocal slept_s
        slept_s += seconds

    monkeypatch.setattr("muster.remote.backend.time.sleep", sleep)
    backend = RemoteBackend(ApiClient("https://muster.example", "muster_x", httpx.MockTransport(answer)))
    views = [SessionView.of(session) for session in sessions.values()]
    *_, last = backend.wait_for(views, lambda _session: False)
    assert {session.state for session in last} == {SessionState.CANCELLED}
    assert requests / slept_s <= WebSettings().requests_per_minute / 60 / 2


def test_a_wait_for_many_sessions_sleeps_no_longer_than_its_deadline(monkeypatch):
    views = [SessionView.of(make_session(number)) for number in range(1, 51)]
    slept: list[float] = []
    monkeypatch.setattr("muster.remote.backend.time.sleep", slept.append)
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json=views[0].as_json()))
    backend = RemoteBackend(ApiClient("https://muster.example", "muster_x", transport))
    with pytest.raises(TimeoutError):
        list(backend.wait_for(views, lambda _session: False, timeout_s=0.05))
    assert slept
    assert max(slept) <= 0.05
